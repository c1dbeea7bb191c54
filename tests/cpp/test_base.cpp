#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "acespec/base/ids.h"
#include "acespec/base/philox.h"

using namespace acespec;

TEST_CASE("philox gives the known answers of its authors") {
  CHECK(philox4x32({0, 0, 0, 0}, 0, 0) == PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff) ==
        PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0) ==
        PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a token's noise word is its word of its block") {
  constexpr std::uint64_t kSeed = 0x0123456789abcdefU;
  const PhiloxWords block = philox4x32({77, 2 * 64 + 5, 0, kGumbelStream}, 0x89abcdef, 0x01234567);
  CHECK(gumbel_word(kSeed, Position{77}, TokenId{2 * 256 + 5}) == block.w0);
  CHECK(gumbel_word(kSeed, Position{77}, TokenId{2 * 256 + 64 + 5}) == block.w1);
  CHECK(gumbel_word(kSeed, Position{77}, TokenId{2 * 256 + 128 + 5}) == block.w2);
  CHECK(gumbel_word(kSeed, Position{77}, TokenId{2 * 256 + 192 + 5}) == block.w3);
}

TEST_CASE("seed, position and token each change the noise") {
  std::set<std::uint32_t> words;
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32U}) {
    for (std::int32_t position = 0; position < 8; ++position) {
      for (std::int32_t token = 0; token < 8; ++token) {
        words.insert(gumbel_word(seed, Position{position}, TokenId{token}));
      }
    }
  }
  CHECK(words.size() == 3U * 8U * 8U);
}

TEST_CASE("gumbel is finite and increasing at both ends") {
  CHECK(gumbel(0) == doctest::Approx(-3.12999).epsilon(1e-4));
  CHECK(gumbel(0xffffffffU) == doctest::Approx(22.8739).epsilon(1e-4));
  CHECK(gumbel(0) > kGumbelLowest);
  CHECK(gumbel(0xffffffffU) < kGumbelHighest);
  CHECK(gumbel(0) < gumbel(1));
  CHECK(gumbel(0xfffffffeU) < gumbel(0xffffffffU));
}

TEST_CASE("strong ids compare and hash by value") {
  CHECK(TokenId{3} < TokenId{4});
  CHECK(std::hash<NodeId>{}(NodeId{9}) == std::hash<std::uint32_t>{}(9U));
  CHECK(Position{5}.index() == 5U);
}

TEST_CASE("noise words are the golden ones") {
  std::ifstream file(ACESPEC_VECTORS "/noise.txt");
  std::string line;
  int rows = 0;
  while (std::getline(file, line)) {
    if (line.starts_with('#')) {
      continue;
    }
    std::istringstream fields(line);
    std::uint64_t seed = 0;
    std::int32_t position = 0;
    std::int32_t token = 0;
    std::uint32_t word = 0;
    fields >> std::hex >> seed >> std::dec >> position >> token >> std::hex >> word;
    CAPTURE(line);
    CHECK(gumbel_word(seed, Position{position}, TokenId{token}) == word);
    ++rows;
  }
  CHECK(rows >= 16);
}
