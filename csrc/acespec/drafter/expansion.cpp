// Growing the tree: which nodes, in which slots, and one forward.
#include <algorithm>
#include <string>

#include "acespec/base/error.h"
#include "acespec/drafter/drafter.h"

namespace acespec {

void Drafter::choose(std::size_t width, bool extend) {
  const Position limit{static_cast<std::int32_t>(limit_)};
  chosen_.clear();
  if (extend) {
    const NodeId tip = tree_.chain_tip();
    if (tree_[tip].slot || tree_[tip].sealed || tree_[tip].position >= limit) {
      return;
    }
    chosen_.push_back(tip);
  }
  if (expanded_ >= options_.max_nodes) {
    return;
  }
  const std::size_t taken = chosen_.size();
  chosen_.resize(width);
  const std::size_t found = tree_.frontier(std::span(chosen_).subspan(taken), options_.floor, limit);
  chosen_.resize(taken + found);
  if (extend) {
    const auto twice = std::find(chosen_.begin() + 1, chosen_.end(), chosen_.front());
    if (twice != chosen_.end()) {
      chosen_.erase(twice);
    }
  }
}

void Drafter::evict(const SlotRing::Grant& grant) {
  if (grant.evicted) {
    tree_.collapse(*grant.evicted, [this](NodeId node) { forget(node); });
    forget_draw(*grant.evicted);
  }
}

// Takes slots for the chosen nodes. Parents are touched first, and slots stay pinned until the forward is
// over, so that a full ring evicts other branches first. When even that is not enough a chosen node can lose
// its parent: it is then dropped from the tree, and from the batch.
void Drafter::reserve() {
  batch_.clear();
  for (const NodeId node : chosen_) {
    touch_ancestors(node);
  }
  for (const NodeId node : chosen_) {
    if (!tree_[node].live) {
      continue;
    }
    const auto grant = cache_.acquire(node);
    if (!grant) {
      break;
    }
    evict(*grant);
    cache_.pin(grant->slot);
    batch_.push_back({node, grant->slot});
  }
  std::erase_if(batch_, [this](const Row& row) {
    const bool gone = !tree_[row.node].live;
    if (gone) {
      cache_.release(row.slot);
    }
    return gone;
  });
}

StepReport Drafter::expand(std::size_t width, bool extend) {
  StepReport report;
  if (tree_[tree_.root()].sealed) {
    throw NoTokenError("the rules leave no token after the " + std::to_string(committed_.size()) +
                       " committed ones");
  }
  choose(width, extend);
  reserve();
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
  std::size_t done = 0;
  try {
    const auto logits = forward(std::span(all_rows_).first(batch_.size()), report);
    const std::size_t columns = engine_->info().logits_width;
    for (; done < batch_.size(); ++done) {
      const Row& row = batch_[done];
      grow_candidates(row.node, logits.subspan(done * columns, columns));
      tree_.expand(row.node, row.slot);
      cache_.unpin(row.slot);
      touch_ancestors(row.node);
    }
  } catch (...) {
    for (; done < batch_.size(); ++done) {
      cache_.release(batch_[done].slot);
    }
    throw;
  }
  expanded_ += batch_.size();
  return report;
}

void Drafter::touch_ancestors(NodeId node) {
  for (NodeId at = tree_[node].parent; at != tree_.root(); at = tree_[at].parent) {
    cache_.touch(*tree_[at].slot);
  }
}

}  // namespace acespec
