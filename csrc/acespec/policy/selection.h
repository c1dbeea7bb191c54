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

/// How many nodes are worth their price when a token is worth 1 / rate seconds: those with
/// w >= rate * prices.node. `weights`: probabilities that the target's text runs through a node, best first.
/// The best N nodes of a tree are the N likeliest: weights fall along every path, so those are closed under
/// parents. O(weights). Throws UsageError when a weight is not from 0 to 1 or above the one before it,
/// prices.node is negative or not finite, or `rate`, in tokens a second, is not positive.
[[nodiscard]] std::size_t best_count(std::span<const float> weights, const Prices& prices, double rate);

}  // namespace acespec
