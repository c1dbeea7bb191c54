// How many of the likeliest nodes are worth sending.
#pragma once

#include <cstddef>
#include <span>

namespace acespec {

/// How many nodes to send when a token is worth 1 / rate seconds: the n that maximises
/// `sum of the first n weights / rate - seconds[n]`, the smallest among equals.
///
/// `weights`: probabilities that the target's text runs through a node, best first. The best n nodes of a
/// tree are the n likeliest: weights fall along every path, so those are closed under parents. `seconds[n]`:
/// what sending and verifying n nodes takes, for n from 0 to the number of weights at least; it never falls,
/// and need not be convex, so all n are looked at. O(weights). Throws UsageError when a weight is not from 0
/// to 1 or above the one before it, the seconds are too few, negative, not finite or falling, or `rate`, in
/// tokens a second, is not positive.
[[nodiscard]] std::size_t best_count(std::span<const float> weights, std::span<const double> seconds,
                                     double rate);

}  // namespace acespec
