// Growing the tree: slots for the chosen nodes, and one forward.
#include <algorithm>
#include <string>

#include "acespec/base/error.h"
#include "acespec/drafter/drafter.h"

namespace acespec {

// Whether a slot is free for `node`, after an eviction if need be: a branch makes room only for a likelier
// one, or for the main chain when `insist`. Likelier ones replacing others, the tree only gets better, and
// the exchange comes to an end.
bool Drafter::make_room(NodeId node, bool insist) {
  if (held() < options_.max_nodes && cache_.ring().free() > 0) {
    return true;
  }
  const auto victim = cache_.ring().victim();
  if (!victim) {
    return false;
  }
  const NodeId owner = cache_.ring().owner(*victim);
  if (!insist && tree_[owner].log_weight >= tree_[node].log_weight) {
    return false;
  }
  tree_.collapse(owner, [this](NodeId dropped) { forget(dropped); });
  forget_draw(owner);
  cache_.release(*victim);
  return true;
}

// Takes slots for the chosen nodes and expands them, which the forward must then make true. Parents are
// touched first, and slots stay pinned until the forward is
// over, so that room is made among other branches first. When even that is not enough a chosen node can lose
// its parent: it is then dropped from the tree, and from the batch.
void Drafter::reserve(bool extend) {
  batch_.clear();
  for (const NodeId node : chosen_) {
    touch_ancestors(node);
  }
  for (const NodeId node : chosen_) {
    if (!tree_[node].live) {
      continue;
    }
    const NodeId parent = tree_[node].parent;
    if (!tree_[parent].slot && std::ranges::find(batch_, parent, &Row::node) == batch_.end()) {
      continue;
    }
    if (!make_room(node, extend && node == chosen_.front())) {
      continue;  // a heavier one may follow: only the measured arm chooses by weight alone
    }
    if (tree_[node].live) {
      const KvSlot slot = *cache_.acquire(node);
      cache_.pin(slot);
      batch_.push_back({node, slot});
    }
  }
  std::erase_if(batch_, [this](const Row& row) {
    const bool gone = !tree_[row.node].live;
    if (gone) {
      cache_.release(row.slot);
    }
    return gone;
  });
  for (const Row& row : batch_) {
    tree_.expand(row.node, row.slot);
  }
}

StepReport Drafter::expand(std::size_t width, bool extend) {
  StepReport report;
  if (tree_[tree_.root()].sealed) {
    throw NoTokenError("the rules leave no token after the " + std::to_string(committed_.size()) +
                       " committed ones");
  }
  choose(width, extend);
  reserve(extend);
  if (batch_.empty()) {
    report.exhausted = true;
    return report;
  }
  tokens_.clear();
  positions_.clear();
  slots_.clear();
  bias_.begin(visible());
  for (const Row& row : batch_) {
    tokens_.push_back(tree_[row.node].token);
    positions_.push_back(tree_[row.node].position);
    slots_.push_back(row.slot);
    bias_.add_node_row(tree_, row.node, row.slot);
  }
  const auto logits = forward(std::span(all_rows_).first(batch_.size()), report);
  const std::size_t columns = engine_->info().logits_width;
  for (std::size_t row = 0; row < batch_.size(); ++row) {
    const auto [node, slot] = batch_[row];
    grow_candidates(node, logits.subspan(row * columns, columns));
    suggest(node);
    // A node that was sent stays pinned: its verdict must find it.
    if (tree_[node].number == 0) {
      cache_.unpin(slot);
    }
    touch_ancestors(node);
  }
  batch_.clear();
  return report;
}

void Drafter::touch_ancestors(NodeId node) {
  for (NodeId at = tree_[node].parent; at != tree_.root(); at = tree_[at].parent) {
    if (tree_[at].slot) {
      cache_.touch(*tree_[at].slot);
    }
  }
}

}  // namespace acespec
