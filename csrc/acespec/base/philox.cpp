#include "acespec/base/philox.h"

namespace acespec {

std::uint32_t gumbel_word(std::uint64_t seed, Position position, TokenId token) noexcept {
  constexpr std::uint32_t kBlocks = kGumbelTile / 4;
  const auto id = static_cast<std::uint32_t>(token.value());
  const std::uint32_t tile = id / kGumbelTile;
  const std::uint32_t within = id % kGumbelTile;
  const PhiloxWords words = philox4x32(
      {static_cast<std::uint32_t>(position.value()), tile * kBlocks + within % kBlocks, 0U, kGumbelStream},
      static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U));
  switch (within / kBlocks) {
    case 0:
      return words.w0;
    case 1:
      return words.w1;
    case 2:
      return words.w2;
    default:
      return words.w3;
  }
}

}  // namespace acespec
