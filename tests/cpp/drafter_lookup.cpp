// Looked-up nodes in the tree: alone, and among the model's own.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/engine/blank_engine.h"
#include "drafter_bench.h"

using namespace acespec;
using namespace acespec::test;

namespace {

Drafter without_model(std::size_t lookup = 6) {
  return Drafter(std::make_shared<BlankEngine>(32, 256), {.context = 200, .candidates = 0, .lookup = lookup});
}

void feed(Drafter& drafter) {
  while (drafter.pending() > 0) {
    drafter.step(8, false);
  }
}

}  // namespace

TEST_CASE("a text goes on as it did, without a model and before anything is fed") {
  Drafter drafter = without_model();
  drafter.begin(tokens_of({1, 2, 3, 4, 5, 9, 1, 2, 3}), {});
  CHECK(drafter.take_chain(8).tokens == tokens_of({4, 5, 9, 1, 2, 3}));
  CHECK(drafter.check() == std::vector<std::string>{});
  feed(drafter);
  CHECK(drafter.step(4, true).exhausted);
  CHECK(drafter.frontier(4).empty());
  // What was sent stays sent under its number; what follows is looked up anew.
  const Recovery recovery = drafter.apply_verdict(tokens_of({4, 5}));
  CHECK(drafter.check() == std::vector<std::string>{});
  CHECK(recovery.ready == 6);
  const Taken more = drafter.take(2);
  CHECK(more.tokens == tokens_of({4, 5}));
  CHECK(more.parents == std::vector<std::uint32_t>{6, 7});
}

TEST_CASE("a text of one repeated token goes on with itself (G1)") {
  Drafter drafter = without_model();
  drafter.begin(std::vector<TokenId>(48, TokenId{7}), {});
  CHECK(drafter.take_chain(20).tokens == std::vector<TokenId>(6, TokenId{7}));
}

TEST_CASE("nothing is looked up below a stop id, past the context, or for a text that never repeats") {
  Drafter drafter = without_model();
  const auto stop = tokens_of({5});
  drafter.begin(tokens_of({1, 2, 3, 4, 5, 9, 1, 2, 3}), {}, stop);
  CHECK(drafter.take_chain(8).tokens == tokens_of({4, 5}));
  drafter.begin(tokens_of({1, 2, 3, 4}), {});
  CHECK(drafter.ready() == 0);
  std::vector<TokenId> full(198, TokenId{7});
  drafter.begin(full, {});
  CHECK(drafter.ready() == 2);
}

TEST_CASE("residual mode needs a model") {
  Drafter drafter = without_model();
  CHECK_THROWS_WITH_AS(drafter.begin(tokens_of({1, 2}), {}, {}, true), doctest::Contains("no model"),
                       UsageError);
  CHECK_THROWS_WITH_AS(Drafter(std::make_shared<BlankEngine>(32, 256), {.context = 200, .candidates = 0}),
                       doctest::Contains("candidates is 0"), UsageError);
}

TEST_CASE("a looked-up line is expanded in one forward, and the model's candidates stand beside it") {
  Bench bench(model(), {.context = 128, .lookup = 6});
  bench.begin(tokens_of({1, 2, 3, 4, 5, 9, 1, 2, 3}));
  CHECK(bench.drafter.ready() == 6);
  while (bench.drafter.pending() > 0) {
    bench.step(8, false);
  }
  const StepReport report = bench.step(16, false);
  CHECK(report.rows >= 7);
  const auto nodes = bench.drafter.snapshot().nodes;
  std::size_t expanded = 0;
  NodeId at = nodes.front().id;
  for (const TokenId token : tokens_of({4, 5, 9, 1, 2, 3})) {
    const auto next = std::ranges::find_if(
        nodes, [&](const auto& node) { return node.id != at && node.parent == at && node.token == token; });
    REQUIRE(next != nodes.end());
    at = next->id;
    expanded += next->expanded ? 1 : 0;
    const auto siblings = std::ranges::count_if(
        nodes, [&](const auto& node) { return node.parent == next->parent && node.id != node.parent; });
    CHECK(siblings >= 4);
  }
  CHECK(expanded == 6);
}

TEST_CASE("random requests with lookup keep every invariant and what was sent") {
  std::mt19937 random(11);
  const auto below = [&random](std::size_t most) { return random() % most; };
  for (int run = 0; run < 12; ++run) {
    const bool sampled = run % 3 == 2;
    Bench bench(model(0.3F),
                {.context = 128, .candidates = 2, .max_nodes = 1 + below(24), .lookup = 1 + below(12)},
                {.rules = {.temperature = sampled ? 1.0F : 0.0F, .seed = 4}});
    std::vector<TokenId> prompt;
    for (std::size_t length = 2 + below(40); prompt.size() < length;) {
      prompt.emplace_back(static_cast<std::int32_t>(below(run % 2 == 0 ? 4 : 32)));
    }
    bench.begin(prompt);
    std::map<std::uint32_t, std::vector<TokenId>> sent;  // text below the prompt by number
    std::vector<TokenId> text;
    while (bench.drafter.room() > 20) {
      for (std::size_t step = below(5); step > 0; --step) {
        bench.step(1 + below(16), below(3) == 0);
      }
      const Taken taken = below(2) == 0 ? bench.drafter.take(below(12)) : bench.drafter.take_chain(below(6));
      bench.sound();
      std::uint32_t number = sent.empty() ? 1 : sent.rbegin()->first + 1;
      for (std::size_t index = 0; index < taken.tokens.size(); ++index, ++number) {
        const std::uint32_t parent = taken.parents[index];
        REQUIRE((parent == 0 || sent.contains(parent)));
        std::vector<TokenId> path = parent == 0 ? text : sent[parent];
        REQUIRE(std::ranges::equal(std::span(path).first(std::min(path.size(), text.size())),
                                   std::span(text).first(std::min(path.size(), text.size()))));
        path.push_back(taken.tokens[index]);
        sent[number] = path;
      }
      // The target goes down a random line of what was sent, and adds a token.
      std::vector<TokenId> verdict;
      if (!sent.empty() && below(4) > 0) {
        auto pick = sent.begin();
        std::advance(pick, static_cast<std::ptrdiff_t>(below(sent.size())));
        const auto& path = pick->second;
        if (path.size() > text.size() && std::equal(text.begin(), text.end(), path.begin())) {
          verdict.assign(path.begin() + static_cast<std::ptrdiff_t>(text.size()), path.end());
        }
      }
      verdict.resize(std::min(verdict.size(), bench.drafter.room() - 1));
      verdict.emplace_back(static_cast<std::int32_t>(below(run % 2 == 0 ? 4 : 32)));
      bench.commit(verdict);
      text.insert(text.end(), verdict.begin(), verdict.end());
    }
  }
}
