// Where along a chain the alternatives go: the arms of AceSpec's ablation.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace acespec {

// For a chain of K drafted tokens, every function speaks of K + 1 depths: depth i < K is the place of token
// i, depth K that of the bonus token behind the whole chain. Results hold the number of alternatives b_i of
// each depth. All are O((K + B) log) or better, B being the alternatives given out, kMostAlternatives a depth
// at most.

inline constexpr std::size_t kMostAlternatives = 65536;

/// Where the target first leaves the chain: P_i = (prod_{j<i} a_j)(1 - a_i), and P_K = prod a_j for the
/// bonus. Throws UsageError when an acceptance is not from 0 to 1.
[[nodiscard]] std::vector<double> stop_probabilities(std::span<const double> acceptances);

/// As many at each depth, what is left to the first ones. `budget`: alternatives in all. Throws UsageError
/// when that is more than kMostAlternatives a depth.
[[nodiscard]] std::vector<std::size_t> allocate_uniform(std::size_t length, std::size_t budget);

/// AceSpec (arXiv:2609.02514), branch allocation in closed form, for the coverage C(b) = 1 - (1 +
/// b)^(-exponent): maximises sum P_i C(b_i) subject to sum b_i cost_i <= budget. The optimum over real
/// numbers, b_i = (exponent P_i / (lambda cost_i))^(1 / (1 + exponent)) - 1 clipped at 0 with lambda by
/// bisection, is rounded down, and what the budget still holds goes where it gains most for its cost. With
/// one cost for all that is the optimum over integers.
///
/// `stops`: P_i, from stop_probabilities(). `costs`: of one alternative at each depth, above 0, in the unit
/// of `budget`. Throws UsageError when sizes differ, a number is out of range, or the budget holds more than
/// kMostAlternatives at one depth.
[[nodiscard]] std::vector<std::size_t> allocate_nonuniform(std::span<const double> stops,
                                                           std::span<const double> costs, double budget,
                                                           double exponent);

}  // namespace acespec
