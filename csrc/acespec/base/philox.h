// Counter-based random numbers: the noise that both sides of a request share.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "acespec/base/ids.h"

namespace acespec {

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
/// A pure function of counter and key: equal inputs give equal words on every machine.
[[nodiscard]] std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                      std::array<std::uint32_t, 2> key) noexcept;

/// Last counter word of the coupled noise; other uses of one seed must take another stream.
inline constexpr std::uint32_t kGumbelStream = 0x41636553U;

/// Words for tokens `first` .. `first + out.size() - 1` are produced in blocks of this many.
inline constexpr std::uint32_t kGumbelBlock = 4;

/// The four noise words of tokens 4*block .. 4*block + 3 at `position` under `seed`
/// (docs/protocol.md, "Coupled noise").
[[nodiscard]] std::array<std::uint32_t, 4> gumbel_block(std::uint64_t seed, Position position,
                                                        std::uint32_t block) noexcept;

/// The noise word of one token.
[[nodiscard]] std::uint32_t gumbel_word(std::uint64_t seed, Position position, TokenId token) noexcept;

/// Standard Gumbel variate of a noise word: `-ln(-ln U)`, `U = (word + 0.5) / 2^32`, in double.
/// Finite for every word (-3.13 .. 22.87) and strictly increasing in it.
[[nodiscard]] inline double gumbel(std::uint32_t word) noexcept {
  return -std::log(-std::log((static_cast<double>(word) + 0.5) * 0x1p-32));
}

}  // namespace acespec
