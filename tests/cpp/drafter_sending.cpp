// What a drafter gives away: which nodes, under which numbers, and what of them outlives a verdict.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "acespec/base/error.h"
#include "drafter_bench.h"

using namespace acespec;
using namespace acespec::test;

namespace {

using Text = std::vector<TokenId>;
using Nodes = std::vector<DrafterSnapshot::Node>;

/// The target's side, by the plain definition: what a sent node says is a text, and the node lives while that
/// goes on from what is committed.
struct Sent {
  std::map<std::uint32_t, Text> texts;
  std::uint32_t next = 1;

  void add(const Taken& taken, const Text& committed) {
    REQUIRE(taken.parents.size() == taken.tokens.size());
    for (std::size_t index = 0; index < taken.tokens.size(); ++index) {
      const std::uint32_t parent = taken.parents[index];
      REQUIRE((parent == 0 || (texts.contains(parent) && next - parent <= 255)));
      Text text = parent == 0 ? committed : texts[parent];
      text.push_back(taken.tokens[index]);
      texts[next++] = std::move(text);
    }
  }

  void commit(const Text& committed) {
    std::erase_if(texts, [&committed](const auto& entry) {
      const Text& text = entry.second;
      return text.size() <= committed.size() || !std::equal(committed.begin(), committed.end(), text.begin());
    });
  }
};

const DrafterSnapshot::Node& node_of(const Nodes& nodes, NodeId id) {
  return *std::ranges::find(nodes, id, &DrafterSnapshot::Node::id);
}

/// The drafter's own account of what is sent and lives.
std::map<std::uint32_t, Text> sent_by(const Bench& bench) {
  const Nodes nodes = bench.drafter.snapshot().nodes;
  std::map<std::uint32_t, Text> texts;
  for (const auto& node : nodes) {
    if (node.number != 0) {
      Text path;
      for (const auto* at = &node; at->id != nodes.front().id; at = &node_of(nodes, at->parent)) {
        path.push_back(at->token);
      }
      Text text = bench.text;
      text.insert(text.end(), path.rbegin(), path.rend());
      texts[node.number] = std::move(text);
    }
  }
  return texts;
}

/// What survey() is to find, by looking through all nodes for every one.
std::vector<float> best_to_send(const Bench& bench, std::size_t most, std::uint32_t next,
                                std::size_t context) {
  const Nodes nodes = bench.drafter.snapshot().nodes;
  const auto& root = nodes.front();
  std::map<NodeId, std::uint32_t> numbers{{root.id, 0}};
  for (const auto& node : nodes) {
    if (node.number != 0) {
      numbers[node.id] = node.number;
    }
  }
  std::vector<float> weights;
  while (weights.size() < most) {
    const DrafterSnapshot::Node* best = nullptr;
    for (const auto& node : nodes) {
      const auto parent = numbers.find(node.parent);
      if (numbers.contains(node.id) || parent == numbers.end() || node.position.index() + 2 > context ||
          (parent->second != 0 && next - parent->second > 255)) {
        continue;
      }
      if (best == nullptr || node.log_weight > best->log_weight ||
          (node.log_weight == best->log_weight && node.id < best->id)) {
        best = &node;
      }
    }
    if (best == nullptr) {
      break;
    }
    numbers[best->id] = next++;
    weights.push_back(std::exp(best->log_weight - root.log_weight));
  }
  return weights;
}

}  // namespace

TEST_CASE("the best nodes are given away parents first, and those of the next draft hang below them") {
  Bench bench(model(), {.context = 128, .candidates = 3});
  bench.begin(tokens_of({1, 2, 3}));
  CHECK(bench.drafter.survey(8).empty());
  for (int step = 0; step < 4; ++step) {
    bench.step(4, false);
  }
  Sent sent;
  const std::vector<float> weights = bench.drafter.survey(9);
  REQUIRE(weights.size() == 9);
  CHECK(std::ranges::is_sorted(weights, std::greater<>()));
  CHECK(weights.front() <= 1.0F);
  const Taken first = bench.drafter.take(5);
  REQUIRE(first.tokens.size() == 5);
  sent.add(first, bench.text);
  // What is left are the others of the same order.
  CHECK(bench.drafter.survey(4) == std::vector(weights.begin() + 5, weights.end()));
  bench.step(8, false);
  sent.add(bench.drafter.take(12), bench.text);
  bench.sound();
  CHECK(sent.next == 18);
  CHECK(sent_by(bench) == sent.texts);
  CHECK(bench.drafter.take(0).tokens.empty());
}

TEST_CASE("chains and trees share their numbers, and a chain goes on below what is sent of it") {
  Bench bench(model());
  bench.begin(tokens_of({4}));
  bench.draft(6);
  Sent sent;
  CHECK(bench.drafter.unsent() == 6);
  sent.add(bench.drafter.take_chain(2), bench.text);
  CHECK(bench.drafter.unsent() == 4);
  sent.add(bench.drafter.take(3), bench.text);
  sent.add(bench.drafter.take_chain(2), bench.text);
  bench.sound();
  CHECK(sent_by(bench) == sent.texts);
  Text own = bench.text;
  for (const TokenId token : bench.plain(4)) {
    own.push_back(token);
    CHECK(std::ranges::any_of(sent.texts, [&own](const auto& entry) { return entry.second == own; }));
  }
  bench.begin(tokens_of({4}));
  bench.draft(2);
  CHECK(bench.drafter.take_chain(2).parents == std::vector<std::uint32_t>{0, 1});
}

TEST_CASE("a node that is sent before it is expanded is pinned when it is") {
  Bench bench(model(0.0F, 64), {.context = 40, .candidates = 4, .max_nodes = 24});
  bench.begin(tokens_of({1, 2}));
  bench.draft(2);
  static_cast<void>(bench.drafter.take(6));
  while (!bench.step(8, false).exhausted) {
  }
  std::size_t expanded = 0;
  for (const auto& node : bench.drafter.snapshot().nodes) {
    expanded += node.number != 0 && node.expanded ? 1 : 0;
  }
  CHECK(expanded > 2);  // and check() says that all of them are pinned
}

TEST_CASE("no node is numbered more than 255 above its parent") {
  Bench bench(model(0.0F, 320), {.context = 128, .candidates = 8, .max_nodes = 180});
  bench.begin(tokens_of({3}));
  bench.draft(3);
  Sent sent;
  sent.add(bench.drafter.take_chain(2), bench.text);
  while (!bench.step(16, false).exhausted) {
  }
  const auto expected = best_to_send(bench, 400, sent.next, 128);
  REQUIRE(expected.size() > 256);
  CHECK(bench.drafter.survey(400) == expected);
  sent.add(bench.drafter.take(400), bench.text);
  bench.sound();
  CHECK(sent_by(bench) == sent.texts);
  // Numbers have run away from what was sent first; what hangs from the last is still within reach.
  CHECK(bench.drafter.survey(400) == best_to_send(bench, 400, sent.next, 128));
  const auto chain = bench.plain(2);
  bench.commit({chain.front()});
  sent.commit(bench.text);
  CHECK(sent_by(bench) == sent.texts);
}

TEST_CASE("a chain whose end is out of reach is not given away") {
  Bench bench(model(0.0F, 320), {.context = 128, .candidates = 8, .max_nodes = 180});
  bench.begin(tokens_of({3}));
  bench.draft(3);
  while (bench.drafter.snapshot().nodes.size() < 330) {
    REQUIRE_FALSE(bench.step(8, false).exhausted);
  }
  Sent sent;
  sent.add(bench.drafter.take(400), bench.text);
  const std::size_t length = bench.drafter.ready();
  bench.drafter.set_arm(Arm::kNone);
  bench.draft(length + 2);
  Text end = bench.text;
  for (const TokenId token : bench.plain(length)) {
    end.push_back(token);
  }
  REQUIRE(bench.drafter.unsent() == 2);
  const auto last = std::ranges::find(sent.texts, end, [](const auto& entry) { return entry.second; });
  REQUIRE(last != sent.texts.end());
  REQUIRE(sent.next - last->first > 255);
  CHECK(bench.drafter.take_chain(2).tokens.empty());
  // Once the verdict has it as the root, it needs no number.
  bench.commit({end.begin() + static_cast<std::ptrdiff_t>(bench.text.size()), end.end()});
  CHECK(bench.drafter.take_chain(2).parents == std::vector<std::uint32_t>{0, sent.next});
}

TEST_CASE("nothing is given away that a verdict would leave no position behind") {
  Bench bench(model(0.0F, 64), {.context = 12});
  bench.begin(tokens_of({1, 2, 3, 4, 5, 6, 7, 8}));
  for (int step = 0; step < 30; ++step) {
    bench.step(4, step % 2 == 0);
  }
  Sent sent;
  sent.add(bench.drafter.take(200), bench.text);
  std::size_t longest = 0;
  for (const auto& [number, text] : sent.texts) {
    longest = std::max(longest, text.size());
  }
  CHECK(longest == 11);
  CHECK(bench.drafter.survey(200).empty());
}

TEST_CASE("residual mode has one chain in flight and sends no trees") {
  Bench bench(model(), {.context = 128}, {.rules = {.temperature = 1.0F}, .residual = true});
  bench.begin(tokens_of({1}));
  bench.draft(4);
  CHECK(bench.drafter.survey(4).empty());
  CHECK_THROWS_WITH_AS(bench.drafter.take(1), doctest::Contains("take_chain"), UsageError);
  const Taken chain = bench.drafter.take_chain(3);
  CHECK(chain.parents == std::vector<std::uint32_t>{0, 1, 2});
  CHECK_THROWS_WITH_AS(bench.drafter.take_chain(1), doctest::Contains("one chain in flight"), UsageError);
  // What of it is left is not known to the target, whose verdict has answered it.
  bench.commit({chain.tokens[0]});
  CHECK(bench.drafter.unsent() == 3);
  const Taken rest = bench.drafter.take_chain(2);
  CHECK(rest.tokens == std::vector(chain.tokens.begin() + 1, chain.tokens.end()));
  CHECK(rest.parents == std::vector<std::uint32_t>{0, 4});
}

// Any order of steps, drafts and verdicts, the latter for the newest text or an older one, under any arm and
// over rings from roomy to absurdly small: the drafter's account of what is sent equals the plain one.
TEST_CASE("random drafts in flight equal the plain model") {
  std::mt19937 random(29);
  std::size_t kept = 0;
  std::size_t hits = 0;
  for (const std::size_t slots : {80U, 96U, 256U}) {
    for (int run = 0; run < 8; ++run) {
      const SamplingRules rules{.temperature = run % 2 == 0 ? 0.0F : 0.9F, .seed = random()};
      const std::size_t candidates = 1 + random() % 5;
      Bench bench(model(0.2F, slots),
                  {.context = 64, .candidates = candidates, .max_nodes = 4 + random() % 60},
                  {.rules = rules});
      bench.begin(Text(1 + random() % 4, TokenId{static_cast<std::int32_t>(random() % 32)}));
      Sent sent;
      while (bench.drafter.room() > 0) {
        switch (random() % 7) {
          case 0:
            bench.drafter.set_arm(static_cast<Arm>(random() % 4));
            bench.drafter.allot(std::vector<std::size_t>{random() % 4, random() % 3, random() % 2});
            break;
          case 1:
            sent.add(bench.drafter.take_chain(random() % 4), bench.text);
            break;
          case 2: {
            const std::size_t most = random() % 12;
            const auto expected = best_to_send(bench, most, sent.next, 64);
            REQUIRE(bench.drafter.survey(most) == expected);
            const Taken taken = bench.drafter.take(most);
            REQUIRE(taken.tokens.size() == expected.size());
            sent.add(taken, bench.text);
            break;
          }
          case 3: {
            // The text of a node that was sent, or a part of it, and often a token more.
            Text verdict;
            if (!sent.texts.empty()) {
              const auto pick = static_cast<std::ptrdiff_t>(random() % sent.texts.size());
              const Text& text = std::next(sent.texts.begin(), pick)->second;
              verdict.assign(text.begin() + static_cast<std::ptrdiff_t>(bench.text.size()), text.end());
              verdict.resize(1 + random() % verdict.size());
            }
            if (verdict.empty() || random() % 2 == 0) {
              verdict.emplace_back(static_cast<std::int32_t>(random() % 32));
            }
            verdict.resize(std::min(verdict.size(), bench.drafter.room()));
            hits += bench.commit(verdict).hit ? 1 : 0;
            sent.commit(bench.text);
            kept += sent.texts.size();
            break;
          }
          default:
            bench.step(1 + random() % 16, random() % 3 == 0);
        }
        bench.sound();
        REQUIRE(sent_by(bench) == sent.texts);
      }
    }
  }
  CHECK(hits > 20);
  CHECK(kept > 100);
}
