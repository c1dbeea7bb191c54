// Memory in large pages: what blocks are like, what becomes of free parts, and random use against a plain
// record.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "acespec/engine/ort/huge_pages.h"

namespace {

using acespec::ort::HugePages;

constexpr std::size_t kMiB = std::size_t{1} << 20U;

bool aligned(const void* block) {
  return reinterpret_cast<std::uintptr_t>(block) % HugePages::kAlignment == 0;
}

}  // namespace

TEST_CASE("small blocks come from the C library, large ones from regions") {
  HugePages memory;
  void* const small = memory.take(HugePages::kLarge - 1);
  REQUIRE(small != nullptr);
  CHECK(aligned(small));
  CHECK(memory.reserved() == 0);
  void* const large = memory.take(HugePages::kLarge);
  REQUIRE(large != nullptr);
  CHECK(aligned(large));
  CHECK(memory.reserved() == HugePages::kRegion);
  memory.give_back(small);
  memory.give_back(large);
  memory.give_back(nullptr);
}

TEST_CASE("a block of nothing is one's own all the same") {
  HugePages memory;
  void* const one = memory.take(0);
  void* const other = memory.take(0);
  CHECK(one != nullptr);
  CHECK(one != other);
  memory.give_back(one);
  memory.give_back(other);
}

TEST_CASE("a block larger than a region has one of its own, which goes with it") {
  HugePages memory;
  void* const block = memory.take(50 * kMiB);
  REQUIRE(block != nullptr);
  CHECK(memory.reserved() == 52 * kMiB);
  memory.give_back(block);
  CHECK(memory.reserved() == 0);
}

TEST_CASE("neighbouring free parts become one, and one free region stays") {
  HugePages memory;
  std::vector<void*> blocks;
  for (int i = 0; i < 14; ++i)
    blocks.push_back(memory.take(5 * kMiB));
  CHECK(memory.reserved() == 3 * HugePages::kRegion);
  for (const std::size_t order : {1U, 3U, 5U, 7U, 9U, 11U, 13U, 0U, 4U, 2U, 8U, 6U, 12U, 10U})
    memory.give_back(blocks[order]);
  CHECK(memory.reserved() == HugePages::kRegion);
  void* const whole = memory.take(31 * kMiB);
  CHECK(memory.reserved() == HugePages::kRegion);
  memory.give_back(whole);
}

TEST_CASE("what cannot be had is nullptr") {
  HugePages memory;
  CHECK(memory.take(SIZE_MAX) == nullptr);
  CHECK(memory.take(SIZE_MAX / 4) == nullptr);
  CHECK(memory.reserved() == 0);
}

TEST_CASE("random use: no block touches another, and all memory comes back") {
  HugePages memory;
  std::mt19937 chance(11);
  struct Block {
    unsigned char* start;
    std::size_t size;
    unsigned char mark;
  };
  std::vector<Block> live;
  const auto check_and_drop = [&](std::size_t which) {
    const Block block = live[which];
    CHECK(block.start[0] == block.mark);
    CHECK(block.start[block.size / 2] == block.mark);
    CHECK(block.start[block.size - 1] == block.mark);
    memory.give_back(block.start);
    live[which] = live.back();
    live.pop_back();
  };
  std::size_t most = 0;
  for (int step = 0; step < 4000; ++step) {
    if (live.size() < 60 && chance() % 2 == 0) {
      const std::size_t size = 1 + chance() % (chance() % 8 == 0 ? 3 * kMiB : 3 * HugePages::kLarge);
      auto* const start = static_cast<unsigned char*>(memory.take(size));
      REQUIRE(start != nullptr);
      REQUIRE(aligned(start));
      const auto mark = static_cast<unsigned char>(step);
      start[0] = start[size / 2] = start[size - 1] = mark;
      live.push_back({start, size, mark});
    } else if (!live.empty()) {
      check_and_drop(chance() % live.size());
    }
    most = std::max(most, memory.reserved());
  }
  while (!live.empty())
    check_and_drop(live.size() - 1);
  CHECK(most <= 4 * HugePages::kRegion);
  CHECK(memory.reserved() <= HugePages::kRegion);
}
