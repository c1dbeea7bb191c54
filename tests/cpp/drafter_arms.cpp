// What the drafter expands under each arm of the ablation, and what verdicts teach it.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "drafter_bench.h"

using namespace acespec;
using namespace acespec::test;

namespace {

using Nodes = std::vector<DrafterSnapshot::Node>;

/// Children by parent, likeliest first: without experience the estimates fall with the rank.
std::map<NodeId, Nodes> children_of(const Nodes& nodes) {
  std::map<NodeId, Nodes> children;
  for (const auto& node : nodes) {
    if (node.id != nodes.front().id) {
      children[node.parent].push_back(node);
    }
  }
  for (auto& [parent, below] : children) {
    std::ranges::sort(below, std::greater<>(), &DrafterSnapshot::Node::log_weight);
  }
  return children;
}

/// The nodes that an allotment opens, by the plain definition, each with its distance from where it leaves
/// the chain.
std::map<NodeId, std::size_t> opened(const Nodes& nodes, const std::vector<std::size_t>& alternatives) {
  std::map<NodeId, Nodes> children = children_of(nodes);
  std::map<NodeId, std::size_t> open;
  const auto follow = [&](NodeId at, std::size_t first) {
    for (std::size_t distance = first;; ++distance) {
      open[at] = distance;
      if (!children.contains(at)) {
        return;
      }
      at = children[at].front().id;
    }
  };
  NodeId at = nodes.front().id;
  for (std::size_t depth = 0; children.contains(at); ++depth) {
    const Nodes below = children[at];
    const std::size_t most = depth < alternatives.size() ? alternatives[depth] : 0;
    for (std::size_t rank = 1; rank < below.size() && rank <= most; ++rank) {
      follow(below[rank].id, 0);
    }
    at = below.front().id;
    open[at] = depth < alternatives.size() ? 0 : depth + 1 - alternatives.size();
  }
  return open;
}

std::set<NodeId> expanded(const Nodes& nodes) {
  std::set<NodeId> ids;
  for (const auto& node : nodes) {
    if (node.expanded) {
      ids.insert(node.id);
    }
  }
  return ids;
}

}  // namespace

TEST_CASE("the arm 'none' expands nothing but the chain that is to be extended") {
  Bench bench(model());
  bench.drafter.set_arm(Arm::kNone);
  bench.begin(tokens_of({1, 2}));
  CHECK(bench.step(8, false).prefilling);
  CHECK(bench.step(8, false).exhausted);
  CHECK(bench.step(8, true).rows == 1);
  CHECK(bench.drafter.ready() == 2);
}

TEST_CASE("the arm 'single' goes on with the main chain alone") {
  Bench bench(model());
  bench.drafter.set_arm(Arm::kSingle);
  bench.drafter.allot(std::vector<std::size_t>{3, 3});  // of another arm
  bench.begin(tokens_of({1, 2}));
  bench.step(8, false);
  for (std::size_t length = 2; length < 7; ++length) {
    CHECK(bench.step(8, length % 2 == 0).rows == 1);
    CHECK(bench.drafter.ready() == length);
  }
}

TEST_CASE("an allotment opens its alternatives, each before any goes on") {
  const std::vector<std::size_t> alternatives{2, 0, 3};
  Bench bench(model());
  bench.drafter.set_arm(Arm::kNone);
  bench.begin(tokens_of({5, 6}));
  bench.draft(3);
  bench.drafter.set_arm(Arm::kAllotted);
  bench.drafter.allot(alternatives);
  const auto before = expanded(bench.drafter.snapshot().nodes);
  CHECK(bench.step(6, false).rows == 6);
  const Nodes nodes = bench.drafter.snapshot().nodes;
  const auto open = opened(nodes, alternatives);
  std::size_t fresh = 0;
  for (const NodeId id : expanded(nodes)) {
    if (!before.contains(id)) {
      CHECK(open.at(id) == 0);
      ++fresh;
    }
  }
  CHECK(fresh == 6);  // five alternatives, and the continuation of the chain
  CHECK(bench.step(16, false).rows == 6);
  CHECK(bench.step(2, true).rows == 2);
}

TEST_CASE("only what is allotted is expanded, shortest continuation first") {
  std::mt19937 random(5);
  for (int run = 0; run < 30; ++run) {
    std::vector<std::size_t> alternatives;
    for (std::size_t depth = random() % 5; depth > 0; --depth) {
      alternatives.push_back(random() % 5);
    }
    Bench bench(model(0.0F, 256), {.context = 100, .candidates = 4, .max_nodes = 150});
    bench.drafter.set_arm(Arm::kAllotted);
    bench.drafter.allot(alternatives);
    bench.begin(tokens_of({run, 3}));
    bench.step(8, false);
    for (int step = 0; step < 12; ++step) {
      const Nodes before = bench.drafter.snapshot().nodes;
      const auto open_before = opened(before, alternatives);
      const bool none = bench.step(1 + random() % 6, false).exhausted;
      const Nodes after = bench.drafter.snapshot().nodes;
      std::size_t farthest = 0;
      for (const NodeId id : expanded(after)) {
        if (!expanded(before).contains(id)) {
          REQUIRE(open_before.contains(id));
          farthest = std::max(farthest, open_before.at(id));
        }
      }
      // Whatever could have been expanded in its place is no shorter a continuation.
      for (const auto& node : before) {
        if (open_before.contains(node.id) && !node.expanded && !expanded(after).contains(node.id)) {
          REQUIRE_FALSE(none);
          REQUIRE(open_before.at(node.id) >= farthest);
        }
      }
    }
  }
}

TEST_CASE("depths of an allotment count from the root that a verdict leaves") {
  Bench bench(model());
  bench.begin(tokens_of({5, 6}));
  bench.draft(4);
  const auto chain = bench.drafter.take_chain(4).tokens;
  CHECK(bench.commit({chain[0], chain[1]}).hit);
  bench.drafter.set_arm(Arm::kAllotted);
  bench.drafter.allot(std::vector<std::size_t>{1});
  bench.step(2, false);
  const Nodes nodes = bench.drafter.snapshot().nodes;
  const auto below = children_of(nodes).at(nodes.front().id);
  CHECK(below[1].expanded);
  CHECK_FALSE(below[2].expanded);
}

TEST_CASE("acceptance is the share of first candidates taken, for each kind of request by itself") {
  Bench bench(model());
  const auto restart = [&bench](float temperature, bool residual) {
    bench.terms = {.rules = {.temperature = temperature}, .residual = residual};
    bench.begin(tokens_of({7}));
  };
  restart(0.0F, false);
  CHECK(bench.drafter.acceptance() == doctest::Approx(0.8));
  bench.commit(tokens_of({1}));  // nothing was foretold
  CHECK(bench.drafter.acceptance() == doctest::Approx(0.8));
  for (int round = 0; round < 30; ++round) {
    bench.draft(1);
    bench.commit(bench.plain(1));
  }
  const float greedy = bench.drafter.acceptance();
  CHECK(greedy > 0.9F);
  restart(1.0F, false);
  CHECK(bench.drafter.acceptance() == doctest::Approx(0.8));
  for (int round = 0; round < 30; ++round) {
    bench.draft(1);
    const TokenId other{(bench.plain(1).front().value() + 1) % 32};
    bench.commit({other});
  }
  CHECK(bench.drafter.acceptance() < 0.4F);
  restart(1.0F, true);
  CHECK(bench.drafter.acceptance() == doctest::Approx(0.8));
  restart(0.0F, false);
  CHECK(bench.drafter.acceptance() == greedy);
}

// What is taken or not is known for every candidate of a place that the target's text ran through.
TEST_CASE("estimates are those of a calibration that saw the same verdicts") {
  std::mt19937 random(8);
  for (const float temperature : {0.0F, 1.0F}) {
    const SamplingRules rules{.temperature = temperature, .seed = 11};
    Bench bench(model(), {.context = 200, .candidates = 4}, {.rules = rules});
    Calibration reference(DrafterOptions{}.sharpness);
    Sampler sampler(32);
    std::vector<Candidate> candidates(4);
    std::vector<float> confidences(4);
    std::vector<float> priors(4);
    const auto assess = [&](const std::vector<TokenId>& text) {
      sampler.rank(fake_logits(bench.options, text), rules, Position{static_cast<std::int32_t>(text.size())},
                   candidates);
      std::vector<float> scores;
      for (const Candidate& candidate : candidates) {
        scores.push_back(candidate.score);
      }
      reference.assess(scores, confidences, priors);
    };
    bench.begin(tokens_of({1, 2, 3}));
    for (int round = 0; round < 40; ++round) {
      // The tree is new in every round, so that all of it was estimated with what is known now.
      bench.draft(3);
      const std::vector<TokenId> chain = bench.plain(3);
      const std::vector<float> estimates = bench.drafter.chain_acceptances(9);
      REQUIRE(estimates.size() == 3);
      REQUIRE(bench.drafter.chain_acceptances(2).size() == 2);
      std::vector<TokenId> text = bench.text;
      for (std::size_t depth = 0; depth < 3; ++depth) {
        assess(text);
        CHECK(estimates[depth] ==
              doctest::Approx(reference.probability(0, confidences[0], priors[0])).epsilon(1e-4));
        text.push_back(chain[depth]);
      }
      // Some of the chain is right; then comes a candidate that is not expanded, or no candidate at all.
      std::vector<TokenId> verdict(chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(random() % 3));
      text = bench.text;
      text.insert(text.end(), verdict.begin(), verdict.end());
      assess(text);
      const TokenId alternative = candidates[1 + random() % 3].token;
      TokenId foreign{0};
      while (std::ranges::find(candidates, foreign, &Candidate::token) != candidates.end()) {
        foreign = TokenId{foreign.value() + 1};
      }
      verdict.push_back(random() % 2 == 0 ? alternative : foreign);
      text = bench.text;
      for (const TokenId token : verdict) {
        assess(text);
        for (std::size_t rank = 0; rank < 4; ++rank) {
          reference.observe(rank, confidences[rank], priors[rank], candidates[rank].token == token);
        }
        text.push_back(token);
      }
      verdict.emplace_back(static_cast<std::int32_t>(random() % 32));  // outside the tree, nothing is learnt
      CHECK_FALSE(bench.commit(verdict).hit);
    }
  }
}
