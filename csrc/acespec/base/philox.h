// Counter-based random numbers: the noise that both sides of a request share.
#pragma once

#include <cmath>
#include <cstdint>

#include "acespec/base/ids.h"

namespace acespec {

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a pure
/// function of a counter of four words and a key of two. Equal inputs give equal words on every machine.
struct PhiloxWords {
  std::uint32_t w0 = 0;
  std::uint32_t w1 = 0;
  std::uint32_t w2 = 0;
  std::uint32_t w3 = 0;
  bool operator==(const PhiloxWords&) const = default;
};

/// What the key grows by after each round.
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9U;
inline constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85U;

/// One of the ten rounds; inline, so that loops over many counters vectorise.
[[nodiscard]] constexpr PhiloxWords philox_round(PhiloxWords x, std::uint32_t key0,
                                                 std::uint32_t key1) noexcept {
  const std::uint64_t a = std::uint64_t{0xD2511F53U} * x.w0;
  const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * x.w2;
  return {static_cast<std::uint32_t>(b >> 32U) ^ x.w1 ^ key0, static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32U) ^ x.w3 ^ key1, static_cast<std::uint32_t>(a)};
}

[[nodiscard]] constexpr PhiloxWords philox4x32(PhiloxWords counter, std::uint32_t key0,
                                               std::uint32_t key1) noexcept {
  for (int round = 0; round < 10; ++round) {
    counter = philox_round(counter, key0, key1);
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return counter;
}

/// Last counter word of the coupled noise.
inline constexpr std::uint32_t kGumbelStream = 0x41636553U;

/// Last counter word of the other uses of a request's seed, each independent of the rest (docs/protocol.md,
/// "Residual mode").
enum class Stream : std::uint32_t {
  kDraw = 0x41636544U,      ///< the edge: a drafted token
  kAccept = 0x41636541U,    ///< the cloud: whether it takes it
  kTail = 0x41636554U,      ///< the cloud: the samples of a sparse row
  kResidual = 0x41636552U,  ///< the edge: the token in place of a rejected one
};

/// The words of the `attempt`-th number that a stream needs at a position.
[[nodiscard]] constexpr PhiloxWords stream_words(std::uint64_t seed, Stream stream, Position position,
                                                 std::uint32_t attempt) noexcept {
  return philox4x32(
      {static_cast<std::uint32_t>(position.value()), attempt, 0U, static_cast<std::uint32_t>(stream)},
      static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U));
}

/// Uniform on [0, 1), a multiple of 2^-53, from two words.
[[nodiscard]] constexpr double uniform(std::uint32_t high, std::uint32_t low) noexcept {
  return static_cast<double>(std::uint64_t{high} << 21U | low >> 11U) * 0x1p-53;
}

/// Tokens are numbered into blocks tile by tile, so that a tile's noise is computed without a shuffle: word k
/// of the i-th block of a tile belongs to the tile's token 64 k + i.
inline constexpr std::uint32_t kGumbelTile = 256;

/// The noise word of a token (docs/protocol.md, "Coupled noise").
[[nodiscard]] std::uint32_t gumbel_word(std::uint64_t seed, Position position, TokenId token) noexcept;

/// Standard Gumbel variate of a noise word: `-ln(-ln U)`, `U = (word + 0.5) / 2^32`, in double.
/// Finite for every word and strictly increasing in it.
[[nodiscard]] inline double gumbel(std::uint32_t word) noexcept {
  return -std::log(-std::log((static_cast<double>(word) + 0.5) * 0x1p-32));
}

/// Bounds of gumbel(): -3.12999 and 22.87386, rounded outwards.
inline constexpr double kGumbelLowest = -3.13;
inline constexpr double kGumbelHighest = 22.874;

}  // namespace acespec
