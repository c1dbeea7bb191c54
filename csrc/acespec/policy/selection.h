// How many of the likeliest nodes are worth sending.
#pragma once

#include <cstddef>
#include <span>

namespace acespec {

/// What a verification costs: `round` seconds without nodes, `node` seconds for each one sent and verified.
struct Prices {
  double round = 0.0;
  double node = 0.0;
};

/// A choice of the first `count` nodes, and the tokens a second expected of it.
struct Selection {
  std::size_t count = 0;
  double rate = 0.0;
};

// Weights are probabilities that the target's text runs through a node, best first. The best N nodes of a
// tree are the N likeliest: weights fall along every path, so those are closed under parents. Every function
// throws UsageError when a weight is not from 0 to 1 or above the one before it, or a price is negative or
// not finite, and takes O(weights).

/// How many nodes are worth their price when a token is worth 1 / rate seconds: those with
/// w >= rate * prices.node. Throws UsageError when `rate`, in tokens a second, is not positive.
[[nodiscard]] std::size_t best_count(std::span<const float> weights, const Prices& prices, double rate);

/// Tokens a second of a verification of the first `count` nodes: (1 + sum of their w) / (round + node *
/// count). Throws UsageError when there are fewer, or prices.round is not positive.
[[nodiscard]] double expected_rate(std::span<const float> weights, std::size_t count, const Prices& prices);

/// The count with the largest expected_rate(); the smallest among equals. Throws UsageError when prices.round
/// is not positive.
[[nodiscard]] Selection best_ratio(std::span<const float> weights, const Prices& prices);

}  // namespace acespec
