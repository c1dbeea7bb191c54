#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "acespec/base/error.h"
#include "acespec/tree/attention_bias.h"
#include "acespec/tree/token_tree.h"

using namespace acespec;

namespace {

constexpr Position kNoLimit{1 << 20};

TokenId token(std::int32_t id) {
  return TokenId{id};
}

std::vector<NodeId> frontier(const TokenTree& tree, std::size_t most, float floor = -100.0F,
                             Position limit = kNoLimit) {
  std::vector<NodeId> out(most);
  out.resize(tree.frontier(out, floor, limit));
  return out;
}

}  // namespace

TEST_CASE("a tree grows below its root, likeliest child first") {
  TokenTree tree(8);
  const NodeId root = tree.reset(token(5), Position{10});
  tree.expand(root, KvSlot{0});
  const NodeId a = *tree.grow(root, token(1), -0.1F);
  const NodeId b = *tree.grow(root, token(2), -2.0F);
  tree.expand(a, KvSlot{1});
  const NodeId c = *tree.grow(a, token(3), -0.5F);
  CHECK(tree[c].position == Position{12});
  CHECK(tree[c].log_weight == doctest::Approx(-0.6F));
  CHECK(tree.chain_length() == 2);
  CHECK(tree.chain_tip() == c);
  CHECK(frontier(tree, 8) == std::vector{c, b});
  CHECK(frontier(tree, 1) == std::vector{c});
  CHECK(frontier(tree, 8, -1.0F) == std::vector{c});
  CHECK(frontier(tree, 8, -100.0F, Position{12}) == std::vector{b});
  CHECK(frontier(tree, 0).empty());
  tree.seal(c);
  CHECK(frontier(tree, 8) == std::vector{b});
}

TEST_CASE("a node keeps what was thought of it, and its number until it is the root") {
  TokenTree tree(8);
  const NodeId root = tree.reset(token(5), Position{10});
  const NodeId a = *tree.grow(root, token(1), -0.1F, {.confidence = 0.7F, .prior = 0.9F});
  const NodeId b = *tree.grow(a, token(2), -0.1F);
  CHECK(tree[a].number == 0);
  tree.set_number(a, 3);
  tree.set_number(b, 4);
  CHECK(tree[a].guess.confidence == 0.7F);
  CHECK(tree[a].guess.prior == 0.9F);
  tree.reroot(a, [](NodeId) {});
  CHECK(tree[a].number == 0);
  CHECK(tree[b].number == 4);
  tree.reset(token(1), Position{11});
  CHECK(tree[*tree.grow(tree.root(), token(2), -0.1F)].number == 0);  // a cell used before
}

TEST_CASE("a full pool refuses to grow and is whole again after a reset") {
  TokenTree tree(3);
  const NodeId root = tree.reset(token(0), Position{0});
  CHECK(tree.grow(root, token(1), -1.0F));
  CHECK(tree.grow(root, token(2), -1.0F));
  CHECK_FALSE(tree.grow(root, token(3), -1.0F));
  tree.reset(token(9), Position{1});
  CHECK(tree.size() == 1);
  CHECK(tree.grow(tree.root(), token(1), -1.0F));
  CHECK_THROWS_AS(TokenTree{1}, UsageError);
}

TEST_CASE("a positive log-probability cannot make a node likelier than its parent") {
  TokenTree tree(3);
  const NodeId root = tree.reset(token(0), Position{0});
  CHECK(tree[*tree.grow(root, token(1), 0.3F)].log_weight == 0.0F);
}

TEST_CASE("re-rooting keeps the subtree and drops the rest, children before parents") {
  TokenTree tree(16);
  const NodeId root = tree.reset(token(0), Position{0});
  const NodeId a = *tree.grow(root, token(1), -0.1F);
  const NodeId b = *tree.grow(root, token(2), -1.0F);
  const NodeId c = *tree.grow(root, token(3), -2.0F);
  const NodeId a1 = *tree.grow(a, token(4), -0.1F);
  const NodeId b1 = *tree.grow(b, token(5), -0.1F);
  const NodeId b2 = *tree.grow(b1, token(6), -0.1F);
  std::vector<NodeId> dropped;
  tree.reroot(b, [&](NodeId id) { dropped.push_back(id); });
  CHECK(dropped == std::vector{a1, a, c, root});
  CHECK(tree.root() == b);
  CHECK(tree[b].parent == b);
  CHECK_FALSE(tree[b].next_sibling);
  CHECK(tree.chain_tip() == b2);
  CHECK(tree.chain_length() == 2);
  CHECK(tree.size() == 3);
}

TEST_CASE("a collapsed node is a candidate again") {
  TokenTree tree(8);
  const NodeId root = tree.reset(token(0), Position{0});
  tree.expand(root, KvSlot{0});
  const NodeId a = *tree.grow(root, token(1), -0.1F);
  tree.expand(a, KvSlot{1});
  tree.grow(a, token(2), -0.1F);
  tree.grow(a, token(3), -0.2F);
  std::size_t dropped = 0;
  tree.collapse(a, [&](NodeId) { ++dropped; });
  CHECK(dropped == 2);
  CHECK(frontier(tree, 4) == std::vector{a});
  CHECK(tree.grow(a, token(7), -0.3F));
}

TEST_CASE("random trees: re-rooting equals the plain definition") {
  std::mt19937 random(3);
  TokenTree tree(200);
  for (int round = 0; round < 300; ++round) {
    NodeId root = tree.reset(token(0), Position{round});
    std::map<NodeId, NodeId> parent;
    std::vector<NodeId> nodes{root};
    while (nodes.size() < 1 + random() % 199) {
      const NodeId above = nodes[random() % nodes.size()];
      const NodeId below = *tree.grow(above, token(static_cast<std::int32_t>(random() % 50)), -0.5F);
      parent[below] = above;
      nodes.push_back(below);
    }
    const NodeId target = nodes[random() % nodes.size()];
    std::set<NodeId> kept;
    for (const NodeId id : nodes) {
      NodeId at = id;
      while (at != target && at != root) {
        at = parent[at];
      }
      if (at == target) {
        kept.insert(id);
      }
    }
    std::set<NodeId> dropped;
    tree.reroot(target, [&](NodeId id) { CHECK(dropped.insert(id).second); });
    CHECK(dropped.size() + kept.size() == nodes.size());
    const std::set<NodeId> live(tree.live().begin(), tree.live().end());
    CHECK(live == kept);
  }
}

TEST_CASE("a row sees the context, its ancestors and itself, and nothing else") {
  TokenTree tree(16);
  AttentionBias bias(12, 4);
  // The context lies in slots 7 and 2; slot 7 is the root.
  bias.show(KvSlot{2});
  bias.show(KvSlot{7});
  const NodeId root = tree.reset(token(0), Position{1});
  tree.expand(root, KvSlot{7});
  const NodeId a = *tree.grow(root, token(1), -0.1F);
  const NodeId b = *tree.grow(root, token(2), -0.2F);
  tree.expand(a, KvSlot{0});
  tree.expand(b, KvSlot{5});
  const NodeId a1 = *tree.grow(a, token(3), -0.1F);
  const NodeId b1 = *tree.grow(b, token(4), -0.1F);

  bias.begin(10);
  bias.add_context_row();
  bias.add_node_row(tree, a1, KvSlot{1});
  bias.add_node_row(tree, b1, KvSlot{9});
  REQUIRE(bias.rows().size() == 30);
  const auto seen = [&](std::size_t row) {
    std::set<std::size_t> slots;
    for (std::size_t index = 0; index < 10; ++index) {
      const float value = bias.rows()[row * 10 + index];
      CHECK((value == 0.0F || value == AttentionBias::kHidden));
      if (value == 0.0F) {
        slots.insert(index);
      }
    }
    return slots;
  };
  CHECK(seen(0) == std::set<std::size_t>{2, 7});
  CHECK(seen(1) == std::set<std::size_t>{0, 1, 2, 7});
  CHECK(seen(2) == std::set<std::size_t>{2, 5, 7, 9});

  bias.hide(KvSlot{2});
  bias.begin(12);
  bias.add_context_row();
  CHECK(bias.rows()[2] == AttentionBias::kHidden);
  bias.add_context_row();
  bias.add_context_row();
  bias.add_context_row();
  CHECK_THROWS_AS(bias.add_context_row(), UsageError);
}
