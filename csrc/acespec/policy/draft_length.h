// How many tokens a chain should have.
#pragma once

#include <cstddef>
#include <span>

namespace acespec {

/// K* of AceSpec (arXiv:2609.02514): the K from 1 to `most` that maximises the tokens a second of a round,
/// (1 + sum of prefix_i, i <= K) / seconds_K; the smallest among equals, 0 when `most` is 0.
///
/// `prefix[i - 1]`: probability that the first i drafted tokens are all accepted; it never rises, and goes on
/// geometrically past its end. `seconds[K]`: what a round with K drafted tokens takes, for K from 0 to `most`
/// at least; positive, and it never falls. Throws UsageError when one of these does not hold.
/// O(prefix + most).
[[nodiscard]] std::size_t best_length(std::span<const double> prefix, std::span<const double> seconds,
                                      std::size_t most);

}  // namespace acespec
