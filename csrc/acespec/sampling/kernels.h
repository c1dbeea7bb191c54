// The loops over a whole vocabulary, written so that the compiler vectorises them.
//
// Every function works on one tile of at most kTile tokens and rounds alike on every machine: no fused
// multiply-add, sums in one fixed order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "acespec/base/ids.h"
#include "acespec/base/philox.h"

namespace acespec::kernels {

inline constexpr std::size_t kTile = kGumbelTile;

/// Largest logit of a tile; `bad` becomes true when one is NaN or +Inf (the result is then meaningless).
[[nodiscard]] float tile_max(const float* logits, std::size_t count, bool& bad);

/// 1 / temperature as the `scale` of the functions below; finite for every positive temperature.
[[nodiscard]] float inverse(double temperature);

/// terms[i] = exp((logit - top) * scale), where no logit is above top. Relative error 3e-7;
/// 0 under e^-87.
void tile_exp(const float* logits, std::size_t count, float top, float scale, float* terms);

/// The sum of those terms.
[[nodiscard]] float tile_sum_exp(const float* logits, std::size_t count, float top, float scale);

/// The noise words of all kTile tokens of tile number `tile`; returns the largest.
std::uint32_t tile_noise(std::uint64_t seed, Position position, std::uint32_t tile, std::uint32_t* words);

inline constexpr std::size_t kGroup = 32;

/// Bit g is set when one of the kTile words' group g, of kGroup words, reaches `least`.
[[nodiscard]] std::uint32_t tile_groups(const std::uint32_t* words, std::uint32_t least);

}  // namespace acespec::kernels
