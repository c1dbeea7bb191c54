#include "acespec/base/philox.h"

namespace acespec {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t low = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t high = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(high >> 32U) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(high),
               static_cast<std::uint32_t>(low >> 32U) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(low)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

std::array<std::uint32_t, 4> gumbel_block(std::uint64_t seed, Position position, std::uint32_t block) noexcept {
  return philox4x32({static_cast<std::uint32_t>(position.value()), block, 0U, kGumbelStream},
                    {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U)});
}

std::uint32_t gumbel_word(std::uint64_t seed, Position position, TokenId token) noexcept {
  const auto id = static_cast<std::uint32_t>(token.value());
  return gumbel_block(seed, position, id / kGumbelBlock)[id % kGumbelBlock];
}

}  // namespace acespec
