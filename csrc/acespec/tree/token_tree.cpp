#include "acespec/tree/token_tree.h"

#include <algorithm>

#include "acespec/base/error.h"

namespace acespec {

TokenTree::TokenTree(std::size_t capacity) : cells_(capacity), live_place_(capacity, 0) {
  if (capacity < 2 || capacity > UINT32_MAX) {
    throw UsageError("TokenTree: capacity must be between 2 and 2^32 - 1");
  }
  vacant_.reserve(capacity);
  live_.reserve(capacity);
  reset(TokenId{0}, Position{0});
}

NodeId TokenTree::take() {
  const NodeId node{vacant_.back()};
  vacant_.pop_back();
  cells_[node.index()] = Node{};
  cells_[node.index()].live = true;
  live_place_[node.index()] = static_cast<std::uint32_t>(live_.size());
  live_.push_back(node);
  return node;
}

NodeId TokenTree::reset(TokenId token, Position position) {
  for (const NodeId node : live_) {
    cells_[node.index()].live = false;
  }
  live_.clear();
  vacant_.clear();
  for (std::size_t cell = cells_.size(); cell-- > 0;) {
    vacant_.push_back(static_cast<std::uint32_t>(cell));
  }
  root_ = take();
  Node& root = cells_[root_.index()];
  root.parent = root_;
  root.token = token;
  root.position = position;
  return root_;
}

std::optional<NodeId> TokenTree::grow(NodeId parent, TokenId token, float log_p, const Guess& guess) {
  if (vacant_.empty()) {
    return std::nullopt;
  }
  const NodeId node = take();
  Node& child = cells_[node.index()];
  Node& above = cells_[parent.index()];
  child.parent = parent;
  child.token = token;
  child.position = Position{above.position.value() + 1};
  child.log_weight = above.log_weight + std::min(log_p, 0.0F);
  child.depth = above.depth + 1;
  child.guess = guess;
  if (above.last_child) {
    cells_[above.last_child->index()].next_sibling = node;
  } else {
    above.first_child = node;
  }
  above.last_child = node;
  return node;
}

void TokenTree::revise(NodeId node, float log_p, const Guess& guess) {
  Node& cell = cells_[node.index()];
  cell.guess = guess;
  const float gain = cells_[cell.parent.index()].log_weight + std::min(log_p, 0.0F) - cell.log_weight;
  if (gain <= 0.0F) {
    return;
  }
  // Depth first: down to first children, then on to a sibling, of the node or of the nearest ancestor below
  // the revised one that has one.
  for (NodeId at = node;;) {
    Node& raised = cells_[at.index()];
    raised.log_weight = std::min(raised.log_weight + gain, cells_[raised.parent.index()].log_weight);
    if (raised.first_child) {
      at = *raised.first_child;
      continue;
    }
    while (at != node && !cells_[at.index()].next_sibling) {
      at = cells_[at.index()].parent;
    }
    if (at == node) {
      return;
    }
    at = *cells_[at.index()].next_sibling;
  }
}

void TokenTree::drop(NodeId node, const std::function<void(NodeId)>& on_drop) {
  on_drop(node);
  cells_[node.index()].live = false;
  vacant_.push_back(node.value());
  const std::uint32_t place = live_place_[node.index()];
  live_[place] = live_.back();
  live_place_[live_[place].index()] = place;
  live_.pop_back();
}

// Depth first without recursion or scratch memory: descend to a first child until there is none, drop that
// leaf, go on with its sibling or, after the last one, with its parent.
void TokenTree::drop_below(NodeId node, const std::function<void(NodeId)>& on_drop) {
  NodeId at = node;
  while (true) {
    Node& cell = cells_[at.index()];
    if (cell.first_child) {
      at = *cell.first_child;
      continue;
    }
    if (at == node) {
      cell.last_child.reset();
      return;
    }
    const NodeId parent = cell.parent;
    cells_[parent.index()].first_child = cell.next_sibling;
    drop(at, on_drop);
    at = parent;
  }
}

void TokenTree::collapse(NodeId node, const std::function<void(NodeId)>& on_drop) {
  drop_below(node, on_drop);
  cells_[node.index()].slot.reset();
}

void TokenTree::reroot(NodeId node, const std::function<void(NodeId)>& on_drop) {
  // Each step unhooks the child on the way, drops everything else below the old root, then the old root.
  while (root_ != node) {
    NodeId kept = node;
    while (cells_[kept.index()].parent != root_) {
      kept = cells_[kept.index()].parent;
    }
    Node& old_root = cells_[root_.index()];
    std::optional<NodeId> before;
    for (auto at = old_root.first_child; at && *at != kept; at = cells_[at->index()].next_sibling) {
      before = at;
    }
    const auto after = cells_[kept.index()].next_sibling;
    (before ? cells_[before->index()].next_sibling : old_root.first_child) = after;
    cells_[kept.index()].next_sibling.reset();
    drop_below(root_, on_drop);
    drop(root_, on_drop);
    root_ = kept;
    cells_[kept.index()].parent = kept;
  }
  set_number(root_, 0);
}

std::size_t TokenTree::chain_length() const {
  return cells_[chain_tip().index()].depth - cells_[root_.index()].depth;
}

NodeId TokenTree::chain_tip() const {
  NodeId at = root_;
  while (cells_[at.index()].first_child) {
    at = *cells_[at.index()].first_child;
  }
  return at;
}

std::size_t TokenTree::frontier(std::span<NodeId> out, float floor, Position limit) const {
  const float lightest = cells_[root_.index()].log_weight + floor;
  // Ties go to the shallower, so that parents come first, then to the older cell, so that the choice does not
  // depend on the order of `live_`.
  const auto heavier = [this](NodeId a, NodeId b) {
    const float wa = cells_[a.index()].log_weight;
    const float wb = cells_[b.index()].log_weight;
    if (wa != wb) {
      return wa > wb;
    }
    const std::uint32_t da = cells_[a.index()].depth;
    const std::uint32_t db = cells_[b.index()].depth;
    return da != db ? da < db : a < b;
  };
  std::size_t count = 0;
  for (const NodeId node : live_) {
    const Node& cell = cells_[node.index()];
    if (cell.slot || cell.sealed || cell.log_weight < lightest || cell.position >= limit) {
      continue;
    }
    if (count == out.size()) {
      if (count == 0 || !heavier(node, out[count - 1])) {
        continue;
      }
      --count;
    }
    const auto end = out.begin() + static_cast<std::ptrdiff_t>(count);
    const auto place = std::upper_bound(out.begin(), end, node, heavier);
    std::move_backward(place, end, end + 1);
    *place = node;
    ++count;
  }
  return count;
}

}  // namespace acespec
