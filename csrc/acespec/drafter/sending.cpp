// What is sent of the tree, and under which numbers.
#include <algorithm>
#include <cmath>

#include "acespec/base/error.h"
#include "acespec/drafter/drafter.h"

namespace acespec {

namespace {

constexpr std::uint32_t kFarthestParent = 255;  // the wire has one byte for how far back a parent is

// Whether `number` can name its parent: the root is named without a distance.
bool reaches(std::uint32_t number, std::uint32_t parent) {
  return parent == 0 || number - parent <= kFarthestParent;
}

}  // namespace

// The heaviest nodes that can be sent, heaviest first, into picked_: a heap of the nodes whose parents the
// target knows or will know. Weights fall along every path, so that no parent is left out for its child.
void Drafter::pick(std::size_t most) {
  // One position is kept for the token that a verdict adds to what it accepts.
  const auto shallow = [this](NodeId node) { return tree_[node].position.index() + 2 <= limit_; };
  const auto lighter = [this](const Pick& a, const Pick& b) {
    const float wa = tree_[a.node].log_weight;
    const float wb = tree_[b.node].log_weight;
    return wa != wb ? wa < wb : a.node > b.node;
  };
  picked_.clear();
  sendable_.clear();
  for (const NodeId node : tree_.live()) {
    const TokenTree::Node& cell = tree_[node];
    const bool known = cell.parent == tree_.root() || tree_[cell.parent].number != 0;
    if (node != tree_.root() && cell.number == 0 && known && shallow(node)) {
      sendable_.push_back({node, tree_[cell.parent].number});
    }
  }
  std::ranges::make_heap(sendable_, lighter);
  while (!sendable_.empty() && picked_.size() < most) {
    std::ranges::pop_heap(sendable_, lighter);
    const Pick next = sendable_.back();
    sendable_.pop_back();
    const std::uint32_t number = next_number_ + static_cast<std::uint32_t>(picked_.size());
    if (!reaches(number, next.parent)) {
      continue;
    }
    picked_.push_back(next);
    for (auto child = tree_[next.node].first_child; child; child = tree_[*child].next_sibling) {
      if (shallow(*child)) {
        sendable_.push_back({*child, number});
        std::ranges::push_heap(sendable_, lighter);
      }
    }
  }
}

std::vector<float> Drafter::survey(std::size_t most) {
  const Exclusive::Scope scope(busy_, "this drafter");
  pick(residual_ ? 0 : most);
  std::vector<float> weights;
  weights.reserve(picked_.size());
  const float root = tree_[tree_.root()].log_weight;
  for (const Pick& pick : picked_) {
    weights.push_back(std::exp(tree_[pick.node].log_weight - root));
  }
  return weights;
}

Prospect Drafter::prospect(std::size_t count) {
  const Exclusive::Scope scope(busy_, "this drafter");
  pick(residual_ ? 0 : count);
  const float root = tree_[tree_.root()].log_weight;
  const auto weight = [&](const Pick& pick) { return std::exp(tree_[pick.node].log_weight - root); };
  Prospect prospect;
  std::vector<bool> goes_on(picked_.size());
  for (std::size_t index = picked_.size(); index-- > 0;) {
    const Pick& pick = picked_[index];
    if (pick.parent >= next_number_) {
      prospect.accepted += weight(pick);
      goes_on[pick.parent - next_number_] = true;
    } else if (goes_on[index]) {
      prospect.fits += weight(pick);
    }
  }
  return prospect;
}

Taken Drafter::take(std::size_t count) {
  const Exclusive::Scope scope(busy_, "this drafter");
  if (residual_) {
    throw UsageError("residual mode sends chains; use take_chain()");
  }
  pick(count);
  Taken taken;
  taken.tokens.reserve(picked_.size());
  taken.parents.reserve(picked_.size());
  for (const Pick& pick : picked_) {
    give(pick.node, taken);
  }
  return taken;
}

Taken Drafter::take_chain(std::size_t length) {
  const Exclusive::Scope scope(busy_, "this drafter");
  if (!in_flight_.empty()) {
    throw UsageError("residual mode has one chain in flight; apply its verdict before taking another");
  }
  Taken taken;
  auto next = tree_[last_sent()].first_child;
  while (taken.tokens.size() < length && next && reaches(next_number_, tree_[tree_[*next].parent].number)) {
    give(*next, taken);
    if (residual_) {
      in_flight_.push_back(*next);
    }
    next = tree_[*next].first_child;
  }
  return taken;
}

// The node is known to the target from now on, while it lives: its state must not be evicted.
void Drafter::give(NodeId node, Taken& taken) {
  taken.tokens.push_back(tree_[node].token);
  taken.parents.push_back(tree_[tree_[node].parent].number);
  tree_.set_number(node, next_number_++);
  if (tree_[node].slot) {
    cache_.pin(*tree_[node].slot);
  }
}

void Drafter::skip_numbers(std::uint32_t count) {
  const Exclusive::Scope scope(busy_, "this drafter");
  next_number_ += count;
}

// The last node of the main chain that is sent; the root when none is.
NodeId Drafter::last_sent() const {
  NodeId at = tree_.root();
  while (tree_[at].first_child && tree_[*tree_[at].first_child].number != 0) {
    at = *tree_[at].first_child;
  }
  return at;
}

std::size_t Drafter::ready() const {
  const Exclusive::Scope scope(busy_, "this drafter");
  return tree_.chain_length();
}

std::size_t Drafter::unsent() const {
  const Exclusive::Scope scope(busy_, "this drafter");
  return tree_[tree_.chain_tip()].depth - tree_[last_sent()].depth;
}

std::vector<float> Drafter::chain_acceptances(std::size_t most) const {
  const Exclusive::Scope scope(busy_, "this drafter");
  std::vector<float> acceptances;
  NodeId at = tree_.root();
  while (acceptances.size() < most && tree_[at].first_child) {
    const NodeId child = *tree_[at].first_child;
    acceptances.push_back(std::exp(tree_[child].log_weight - tree_[at].log_weight));
    at = child;
  }
  return acceptances;
}

float Drafter::acceptance() const {
  const Exclusive::Scope scope(busy_, "this drafter");
  return records_[kind()].acceptance();
}

}  // namespace acespec
