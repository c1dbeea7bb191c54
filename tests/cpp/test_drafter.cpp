#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <utility>

#include "acespec/base/error.h"
#include "drafter_bench.h"

using namespace acespec;
using namespace acespec::test;

TEST_CASE("the chain is the drafter's own plain decoding") {
  for (const float temperature : {0.0F, 1.0F}) {
    Bench bench(model(), {.context = 128}, {.rules = {.temperature = temperature, .seed = 3}});
    bench.begin(tokens_of({1, 2, 3}));
    CHECK(bench.step(1, true).prefilling);
    bench.draft(8);
    CHECK(bench.drafter.take_chain(8).tokens == bench.plain(8));
  }
}

TEST_CASE("long prompts are fed in chunks, whatever their length (G3)") {
  for (const int length : {1, 15, 16, 17, 31, 32, 33, 64}) {
    Bench bench(model());
    std::vector<TokenId> prompt;
    for (int index = 0; index < length; ++index) {
      prompt.emplace_back(index % 32);
    }
    bench.begin(prompt);
    std::size_t fed = 0;
    while (bench.drafter.ready() == 0) {
      const StepReport report = bench.step(4, false);
      CHECK(report.prefilling);
      fed += report.rows;
    }
    CHECK(fed == prompt.size());
    bench.draft(3);
    CHECK(bench.drafter.take_chain(3).tokens == bench.plain(3));
  }
}

TEST_CASE("a fully accepted chain and its bonus recover without a forward") {
  Bench bench(model());
  bench.begin(tokens_of({1, 2}));
  bench.draft(4);
  const auto chain = bench.drafter.take_chain(4).tokens;
  while (!bench.step(4, false).exhausted && bench.drafter.ready() < 12) {
  }
  auto verdict = chain;
  verdict.push_back(bench.plain(5).back());
  const Recovery recovery = bench.commit(verdict);
  CHECK(recovery.hit);
  CHECK(recovery.ready >= 7);
  CHECK(bench.drafter.take_chain(recovery.ready).tokens == bench.plain(recovery.ready));
}

TEST_CASE("a correction among the alternatives is a hit, another one a miss of one forward") {
  Bench bench(model(), {.context = 128, .candidates = 3, .max_nodes = 200});
  bench.begin(tokens_of({9, 4}));
  bench.draft(3);
  const auto chain = bench.drafter.take_chain(3).tokens;
  for (int step = 0; step < 12; ++step) {
    bench.step(8, false);
  }
  const auto snapshot = bench.drafter.snapshot();
  const auto root = snapshot.nodes.front();
  std::vector<TokenId> cached;
  for (const auto& node : snapshot.nodes) {
    if (node.id != root.id && node.parent == root.id && node.expanded) {
      cached.push_back(node.token);
    }
  }
  REQUIRE(cached.size() >= 2);
  REQUIRE(cached.front() == chain.front());

  SUBCASE("hit") {
    const Recovery recovery = bench.commit({cached[1]});
    CHECK(recovery.hit);
    CHECK(recovery.ready >= 1);
    CHECK(bench.drafter.take_chain(1).tokens == bench.plain(1));
  }
  SUBCASE("miss") {
    TokenId other{0};
    while (std::ranges::find(cached, other) != cached.end()) {
      other = TokenId{other.value() + 1};
    }
    const Recovery recovery = bench.commit({other});
    CHECK_FALSE(recovery.hit);
    CHECK(recovery.ready == 0);
    CHECK(bench.step(8, true).rows == 1);
    CHECK(bench.drafter.ready() == 1);
    bench.draft(4);
    CHECK(bench.drafter.take_chain(4).tokens == bench.plain(4));
  }
}

TEST_CASE("a verdict that commits a part of the chain keeps the rest of it, sent") {
  Bench bench(model());
  bench.begin(tokens_of({7}));
  bench.draft(5);
  const auto chain = bench.drafter.take_chain(5).tokens;
  CHECK(bench.commit({chain[0], chain[1]}).hit);
  CHECK(bench.drafter.ready() == 3);
  CHECK(bench.drafter.unsent() == 0);
  bench.draft(5);
  const auto five = bench.plain(5);
  const Taken next = bench.drafter.take_chain(3);
  CHECK(next.tokens == std::vector(five.begin() + 3, five.end()));
  CHECK(next.parents == std::vector<std::uint32_t>{5, 6});
}

TEST_CASE("a verdict during the prefill only adds tokens to feed") {
  Bench bench(model());
  bench.begin(std::vector<TokenId>(40, TokenId{3}));
  bench.step(1, false);
  CHECK_FALSE(bench.commit(tokens_of({8, 9})).hit);
  bench.draft(3);
  CHECK(bench.drafter.take_chain(3).tokens == bench.plain(3));
}

TEST_CASE("a shared prefix is not fed again") {
  Bench bench(model());
  bench.begin(tokens_of({1, 2, 3, 4, 5}));
  bench.draft(2);
  CHECK(bench.drafter.begin(tokens_of({1, 2, 3, 9}), {}) == 3);
  bench.text = tokens_of({1, 2, 3, 9});
  bench.prompt = bench.text.size();
  bench.sound();
  CHECK(bench.step(1, false).rows == 1);
  CHECK(bench.drafter.take_chain(1).tokens == bench.plain(1));
  CHECK(bench.drafter.begin(tokens_of({1, 2, 3, 9}), {}) == 3);
}

TEST_CASE("the drafter stops at the end of its context (C1)") {
  Bench bench(model(0.0F, 64), {.context = 12});
  bench.begin(tokens_of({1, 2, 3, 4, 5, 6, 7, 8}));
  CHECK(bench.drafter.room() == 4);
  for (int step = 0; step < 40; ++step) {
    bench.step(4, step % 2 == 0);
  }
  for (const auto& node : bench.drafter.snapshot().nodes) {
    CHECK(node.position.value() <= 12);
    CHECK((!node.expanded || node.position.value() < 12));
  }
  CHECK_THROWS_AS(bench.drafter.apply_verdict(std::vector<TokenId>(5, TokenId{1})), UsageError);
  bench.commit(std::vector<TokenId>(4, TokenId{1}));
  CHECK(bench.drafter.room() == 0);
}

TEST_CASE("max_nodes bounds the tree, and growing it comes to an end") {
  for (const std::size_t max_nodes : {1U, 5U, 20U, 200U}) {
    Bench bench(model(0.0F, 48), {.context = 16, .candidates = 4, .max_nodes = max_nodes});
    bench.begin(tokens_of({1}));
    std::size_t steps = 0;
    while (!bench.step(8, false).exhausted) {
      const auto snapshot = bench.drafter.snapshot();
      REQUIRE(snapshot.cache.evictable <= std::min<std::size_t>(max_nodes, 48 - snapshot.committed));
      REQUIRE(++steps < 300);
    }
  }
}

TEST_CASE("a full ring gives a slot up only for a likelier branch") {
  Bench bench(model(0.0F, 64), {.context = 40, .candidates = 4, .max_nodes = 200});
  bench.begin(tokens_of({1, 2}));
  bench.draft(4);
  static_cast<void>(bench.drafter.take_chain(4));
  const auto held = [&bench] {
    double total = 0.0;
    for (const auto& node : bench.drafter.snapshot().nodes) {
      total += node.expanded ? std::exp(node.log_weight) : 0.0;
    }
    return total;
  };
  double before = held();
  while (!bench.step(8, false).exhausted) {
    const double now = held();
    REQUIRE(now >= before - 1e-5);
    before = now;
  }
}

TEST_CASE("a chain in flight is found by its verdict, however full the ring was") {
  Bench bench(model(0.0F, 64), {.context = 40, .candidates = 4, .max_nodes = 200});
  bench.begin(tokens_of({1, 2}));
  bench.draft(5);
  auto verdict = bench.drafter.take_chain(5).tokens;
  while (!bench.step(8, false).exhausted) {
  }
  CHECK(bench.commit(verdict).hit);
}

TEST_CASE("misuse is named") {
  const auto engine = std::make_shared<FakeEngine>(model());
  CHECK_THROWS_AS(Drafter(engine, {.context = 256}), UsageError);
  CHECK_THROWS_AS(Drafter(nullptr, {}), UsageError);
  Drafter drafter(engine, {.context = 100});
  CHECK_THROWS_AS(Drafter(engine, {.context = 100}), UsageError);
  CHECK_THROWS_AS(drafter.step(1, true), UsageError);
  CHECK_THROWS_AS(drafter.apply_verdict(tokens_of({1})), UsageError);
  CHECK_THROWS_AS(drafter.begin({}, {}), UsageError);
  CHECK_THROWS_AS(drafter.begin(tokens_of({32}), {}), UsageError);
  CHECK_THROWS_AS(drafter.begin(std::vector<TokenId>(101, TokenId{1}), {}), UsageError);
  CHECK_THROWS_AS(drafter.begin(tokens_of({1}), {.temperature = -1.0F}), UsageError);
  drafter.begin(tokens_of({1}), {});
  CHECK_THROWS_AS(drafter.step(0, true), UsageError);
  CHECK_THROWS_AS(drafter.step(17, true), UsageError);
  CHECK_THROWS_AS(drafter.apply_verdict({}), UsageError);
  CHECK_THROWS_AS(drafter.apply_verdict(tokens_of({-1})), UsageError);
  drafter.step(1, true);
  CHECK_THROWS_WITH_AS(drafter.allot(std::vector<std::size_t>(101, 1)), doctest::Contains("101 depths"),
                       UsageError);
}

namespace {

// Fails every `period`-th forward; every other time it returns NaN in the last row instead, and goes on doing
// so until its ring is cleared, as keys that are NaN would make it.
class Flaky final : public Engine {
 public:
  Flaky(std::shared_ptr<Engine> inner, std::size_t period) : inner_(std::move(inner)), period_(period) {}
  const EngineInfo& info() const noexcept override { return inner_->info(); }
  std::size_t max_rows() const noexcept override { return inner_->max_rows(); }
  std::size_t visible_granule() const noexcept override { return inner_->visible_granule(); }
  std::span<const float> forward(const Forward& batch) override {
    const auto logits = inner_->forward(batch);
    ++calls_;
    if (calls_ % (2 * period_) == 0) {
      throw EngineError("no");
    }
    poisoned_ = poisoned_ || calls_ % period_ == 0;
    if (poisoned_) {
      broken_.assign(logits.begin(), logits.end());
      broken_.back() = std::nanf("");
      return broken_;
    }
    return logits;
  }
  void clear() override {
    poisoned_ = false;
    inner_->clear();
  }

 private:
  std::shared_ptr<Engine> inner_;
  std::size_t period_;
  std::size_t calls_ = 0;
  bool poisoned_ = false;
  std::vector<float> broken_;
};

}  // namespace

TEST_CASE("after a fault the drafter starts over and drafts as before (N1)") {
  const FakeOptions options = model();
  Bench bench(options);
  Drafter drafter(std::make_shared<Flaky>(std::make_shared<FakeEngine>(options), 4), {.context = 128});
  bench.text = tokens_of({1, 2, 3});
  drafter.begin(bench.text, {});
  std::size_t failures = 0;
  for (int step = 0; step < 120; ++step) {
    try {
      drafter.step(4, step % 2 == 0);
    } catch (const EngineError&) {
      ++failures;
      CHECK(drafter.snapshot().cache.free == drafter.snapshot().cache.capacity);
      CHECK(drafter.ready() == 0);
    }
    REQUIRE(drafter.check() == std::vector<std::string>{});
    if (step % 7 == 6) {
      const std::size_t sent = drafter.ready() - drafter.unsent();
      std::vector<TokenId> whole = bench.plain(sent);
      const auto chain = drafter.take_chain(3).tokens;
      whole.insert(whole.end(), chain.begin(), chain.end());
      REQUIRE(whole == bench.plain(whole.size()));
      bench.text.emplace_back(step % 32);
      drafter.apply_verdict({&bench.text.back(), 1});
      REQUIRE(drafter.check() == std::vector<std::string>{});
    }
  }
  CHECK(failures > 10);
}

TEST_CASE("a second thread is told so") {
  FakeOptions options = model();
  options.base_seconds = 0.05;
  Drafter drafter(std::make_shared<FakeEngine>(options), {.context = 64});
  const std::vector<TokenId> prompt = tokens_of({1});
  drafter.begin(prompt, {});
  std::atomic<bool> told = false;
  std::thread worker([&] {
    while (!told) {
      try {
        drafter.step(1, false);
      } catch (const UsageError&) {
        told = true;
      }
    }
  });
  while (!told) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    try {
      drafter.begin(prompt, {});
    } catch (const UsageError&) {
      told = true;
    }
  }
  worker.join();
  CHECK(drafter.check() == std::vector<std::string>{});
}

// A whole generation against a target that disagrees, over rings from roomy to absurdly small: the committed
// text must be the target's, every drafted chain the drafter's own, and every invariant must hold after every
// call.
TEST_CASE("random generations equal the target's plain decoding") {
  std::mt19937 random(17);
  std::size_t hits = 0;
  std::size_t verdicts = 0;
  for (const std::size_t slots : {80U, 84U, 96U, 256U}) {
    for (int run = 0; run < 6; ++run) {
      const FakeOptions target = model(0.0F);
      const SamplingRules rules{.temperature = run % 2 == 0 ? 0.0F : 0.9F, .seed = random()};
      Bench bench(model(0.2F, slots),
                  {.context = 64, .candidates = 1 + random() % 6, .max_nodes = 1 + random() % 60},
                  {.rules = rules});
      bench.begin(std::vector<TokenId>(1 + random() % 8, TokenId{static_cast<std::int32_t>(random() % 32)}));
      while (bench.drafter.room() > 0) {
        bench.draft(1 + random() % 8);
        const auto chain = bench.drafter.take_chain(random() % 9).tokens;
        REQUIRE(chain == bench.plain(chain.size()));
        for (std::size_t step = random() % 10; step > 0; --step) {
          bench.step(1 + random() % 16, random() % 4 == 0);
        }
        std::vector<TokenId> verdict;
        std::vector<TokenId> text = bench.text;
        for (std::size_t index = 0; index <= chain.size() && verdict.size() < bench.drafter.room(); ++index) {
          verdict.push_back(choose(target, text, bench.prompt, bench.terms));
          text.push_back(verdict.back());
          if (index == chain.size() || verdict.back() != chain[index]) {
            break;
          }
        }
        hits += bench.commit(verdict).hit ? 1 : 0;
        ++verdicts;
      }
    }
  }
  CHECK(hits > verdicts / 5);
  CHECK(hits < verdicts);
}

TEST_CASE("recovering from a hit, after a short and a long context (tools/bench/recovery measures it)") {
  const auto recover = [](std::size_t prompt) {
    Bench bench(model(0.0F, 2560), {.context = 2304, .candidates = 4, .max_nodes = 64});
    bench.begin(std::vector<TokenId>(prompt, TokenId{1}));
    std::vector<double> times;
    for (int round = 0; round < 25; ++round) {
      bench.draft(6);
      auto verdict = bench.drafter.take_chain(6).tokens;
      bench.draft(9);
      verdict.push_back(bench.plain(7).back());
      const Recovery recovery = bench.commit(verdict);
      CHECK(recovery.hit);
      times.push_back(recovery.microseconds);
    }
    std::ranges::nth_element(times, times.begin() + 12);
    return times[12];
  };
  const double near = recover(128);
  const double far = recover(2048);
  MESSAGE("recovery: ", near, " us after 128 tokens, ", far, " us after 2048");
}
