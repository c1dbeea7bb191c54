// What the edge draws in place of a token that the cloud rejected.
#pragma once

#include <cstdint>
#include <optional>

#include "acespec/base/ids.h"
#include "acespec/sampling/quantised.h"
#include "acespec/sampling/sparse_row.h"

namespace acespec {

/// Draws from `(p - q)+`, renormalised: with the drafted token drawn from `q` and taken with probability
/// min(1, p/q), the outcome has distribution p (Leviathan, Kalman, Matias: "Fast inference from transformers
/// via speculative decoding", 2023), here from a sparse row. An attempt picks a token of the head by its `(p
/// - q)+`, or the tail by its mass; then the next tail sample is taken with probability `(1 - q/p)+`, which
/// leaves each tail token its `(p - q)+`, and otherwise the next attempt is made.
///
/// A function of its arguments: nullopt when it wants more samples than there are, and with the same row and
/// more of them behind, it goes on where it stopped. When rounding leaves no weight at all, the outcome is
/// the head's token of the largest p. O(head + tail).
[[nodiscard]] std::optional<TokenId> residual_draw(const SparseRow& row, const QuantisedDistribution& q,
                                                   std::uint64_t seed, Position position);

}  // namespace acespec
