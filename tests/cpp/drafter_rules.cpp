// Drafting under the rules that change logits, and under a grammar.
#include <algorithm>
#include <random>

#include "acespec/base/error.h"
#include "drafter_bench.h"

using namespace acespec;
using namespace acespec::test;

namespace {

/// Allows the tokens whose sum with the text so far leaves a remainder of 1 or 2 by 4.
std::vector<std::uint32_t> by_sum(std::span<const TokenId> text) {
  std::int32_t sum = 0;
  for (const TokenId token : text) {
    sum += token.value();
  }
  std::uint32_t word = 0;
  for (std::int32_t token = 0; token < 32; ++token) {
    const std::int32_t rest = (sum + token) % 4;
    word |= rest == 1 || rest == 2 ? 1U << static_cast<unsigned>(token) : 0U;
  }
  return {word};
}

Terms with(SamplingRules rules) {
  return {.rules = std::move(rules)};
}

std::vector<Terms> every_rule() {
  SamplingRules all{.temperature = 0.8F, .top_k = 12, .top_p = 0.97F, .min_p = 0.01F, .seed = 4};
  all.repetition_penalty = 1.3F;
  all.presence_penalty = 0.4F;
  all.frequency_penalty = 0.7F;
  all.logit_bias = {{TokenId{3}, 2.0F}, {TokenId{9}, -100.0F}};
  all.banned = tokens_of({1, 2});
  all.min_tokens = 12;
  SamplingRules forced{.temperature = 1.0F, .seed = 2};
  forced.allowed = tokens_of({4, 5, 6, 7, 8, 20});
  return {
      with({.repetition_penalty = 1.5F}),
      with({.temperature = 1.0F, .seed = 1, .frequency_penalty = 1.5F}),
      with({.presence_penalty = -1.0F}),
      with(forced),
      {.rules = all, .stop_ids = tokens_of({11, 30, 99})},
      {.rules = {.temperature = 1.0F, .seed = 8}, .mask = by_sum},
      {.rules = all, .stop_ids = tokens_of({11}), .mask = by_sum},
  };
}

}  // namespace

TEST_CASE("the chain is the drafter's own plain decoding under every rule, counted along its path") {
  for (const Terms& terms : every_rule()) {
    Bench bench(model(), {.context = 128}, terms);
    bench.begin(tokens_of({1, 2, 3, 3}));
    bench.draft(9);
    const auto chain = bench.drafter.take_chain(9).tokens;
    CHECK(chain == bench.plain(chain.size()));
    CHECK((chain.size() == 9 || std::ranges::find(terms.stop_ids, chain.back()) != terms.stop_ids.end()));
  }
}

TEST_CASE("rejected drafts leave no trace in the counts (S4)") {
  std::mt19937 random(3);
  for (const Terms& terms : every_rule()) {
    Bench bench(model(), {.context = 128, .candidates = 3, .max_nodes = 30}, terms);
    bench.begin(tokens_of({5}));
    for (int round = 0; round < 8; ++round) {
      bench.draft(4);
      for (int step = 0; step < 3; ++step) {
        bench.step(6, false);
      }
      bench.send_chain(4);
      bench.commit({TokenId{static_cast<std::int32_t>(random() % 32)}});
    }
    bench.draft(4);
    bench.send_chain(4);
  }
}

TEST_CASE("random generations under every rule equal the target's plain decoding") {
  std::mt19937 random(23);
  std::size_t hits = 0;
  for (const Terms& terms : every_rule()) {
    for (const std::size_t slots : {80U, 256U}) {
      Bench bench(model(0.15F, slots), {.context = 64, .candidates = 4, .max_nodes = 40}, terms);
      bench.begin(tokens_of({7, 7, 21}));
      while (bench.drafter.room() > 0) {
        bench.draft(1 + random() % 6);
        const auto chain = bench.drafter.take_chain(random() % 7).tokens;
        REQUIRE(chain == bench.plain(chain.size()));
        for (std::size_t step = random() % 6; step > 0; --step) {
          bench.step(1 + random() % 16, false);
        }
        std::vector<TokenId> verdict;
        std::vector<TokenId> text = bench.text;
        for (std::size_t index = 0; index <= chain.size() && verdict.size() < bench.drafter.room(); ++index) {
          verdict.push_back(choose(model(), text, bench.prompt, terms));
          text.push_back(verdict.back());
          if (index == chain.size() || verdict.back() != chain[index]) {
            break;
          }
        }
        hits += bench.commit(verdict).hit ? 1 : 0;
      }
    }
  }
  CHECK(hits > 20);
}

TEST_CASE("nothing is drafted below a stop id (E1)") {
  Bench free(model());
  free.begin(tokens_of({1, 2}));
  free.draft(6);
  const auto chain = free.drafter.take_chain(6).tokens;
  for (std::size_t place = 0; place < chain.size(); ++place) {
    Bench bench(model(), {.context = 128}, {.stop_ids = {chain[place]}});
    bench.begin(tokens_of({1, 2}));
    bench.draft(8);
    const auto first = static_cast<std::size_t>(std::ranges::find(chain, chain[place]) - chain.begin());
    CHECK(bench.drafter.ready() == first + 1);
    while (!bench.step(8, false).exhausted) {
    }
    for (const auto& node : bench.drafter.snapshot().nodes) {
      CHECK((!node.expanded || node.token != chain[place] || node.position.value() == 1));
    }
  }
}

TEST_CASE("a dead end of the grammar ends the chain, not the request") {
  Terms terms{.rules = {}, .mask = [](std::span<const TokenId> text) {
                return std::vector<std::uint32_t>{text.size() < 5 ? 0xFFFFU : 0U};
              }};
  Bench bench(model(), {.context = 128}, terms);
  bench.begin(tokens_of({1, 2}));
  bench.draft(8);
  CHECK(bench.drafter.ready() == 3);
  CHECK(bench.step(8, true).exhausted);
  const auto chain = bench.drafter.take_chain(8).tokens;
  bench.commit(chain);
  CHECK_THROWS_AS(bench.drafter.step(4, true), NoTokenError);  // known without another forward
  bench.begin(tokens_of({1, 2, 3, 4, 5}));
  CHECK_THROWS_AS(bench.drafter.step(4, true), NoTokenError);
  bench.sound();
  bench.drafter.set_mask(nullptr);
  CHECK(bench.step(4, true).prefilling);
  CHECK(bench.drafter.ready() == 1);
}

TEST_CASE("a mask ends with its request, and a failing one leaves no slot behind") {
  Bench bench(model(), {.context = 128}, {.mask = by_sum});
  bench.begin(tokens_of({1, 2}));
  bench.draft(3);
  bench.drafter.set_mask([](std::span<const TokenId> path) -> std::span<const std::uint32_t> {
    throw EngineError("grammar of " + std::to_string(path.size()));
  });
  for (int turn = 0; turn < 30; ++turn) {
    CHECK_THROWS_WITH_AS(bench.drafter.step(4, false), doctest::Contains("grammar of"), EngineError);
    bench.sound();
  }
  bench.terms.mask = nullptr;
  bench.begin(tokens_of({1, 2}));
  bench.draft(4);
  CHECK(bench.drafter.take_chain(4).tokens == bench.plain(4));
}

TEST_CASE("misuse of rules and masks is named") {
  Bench bench(model());
  SamplingRules rules;
  rules.banned = tokens_of({32});
  CHECK_THROWS_WITH_AS(bench.drafter.begin(tokens_of({1}), rules), doctest::Contains("banned"), UsageError);
  bench.begin(tokens_of({1}));
  bench.drafter.set_mask([](std::span<const TokenId>) -> std::span<const std::uint32_t> { return {}; });
  bench.draft(2);
  CHECK(bench.drafter.take_chain(2).tokens == bench.plain(2));
}
