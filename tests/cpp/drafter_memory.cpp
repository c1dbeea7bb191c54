// What the drafter allocates once a request runs. Not under the address sanitizer, which has operators of its
// own.
#if !defined(__SANITIZE_ADDRESS__)
#include <atomic>
#include <cstdlib>
#include <new>

#include "drafter_bench.h"

namespace {

std::atomic<std::size_t> allocations = 0;

}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) {
    return memory;
  }
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

using namespace acespec;
using namespace acespec::test;

TEST_CASE("verdicts allocate nothing, whether they hit or miss") {
  Bench bench(model(), {.context = 128});
  bench.begin(tokens_of({1, 2, 3}));
  std::size_t hits = 0;
  for (int round = 0; round < 12; ++round) {
    bench.draft(4);
    bench.step(8, false);
    static_cast<void>(bench.drafter.take(6));
    std::vector<TokenId> verdict = bench.plain(2);
    if (round % 3 == 2) {
      verdict.back() = TokenId{(verdict.back().value() + 7) % 32};
    }
    const std::size_t before = allocations;
    hits += bench.drafter.apply_verdict(verdict).hit ? 1 : 0;
    CHECK(allocations == before);
    bench.text.insert(bench.text.end(), verdict.begin(), verdict.end());
  }
  CHECK(hits > 4);
  CHECK(hits < 12);
}

#endif
