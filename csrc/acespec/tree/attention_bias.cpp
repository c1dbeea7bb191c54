#include "acespec/tree/attention_bias.h"

#include <algorithm>

#include "acespec/base/error.h"

namespace acespec {

AttentionBias::AttentionBias(std::size_t slots, std::size_t max_rows)
    : context_(slots, kHidden), rows_(slots * max_rows, kHidden) {}

void AttentionBias::begin(std::size_t visible) {
  visible_ = visible;
  used_ = 0;
}

std::span<float> AttentionBias::next_row() {
  if (used_ + visible_ > rows_.size()) {
    throw UsageError("AttentionBias: more rows than the engine takes in one forward");
  }
  const std::span<float> row(rows_.data() + used_, visible_);
  used_ += visible_;
  std::copy_n(context_.begin(), visible_, row.begin());
  return row;
}

void AttentionBias::add_context_row() {
  next_row();
}

void AttentionBias::add_node_row(const TokenTree& tree, NodeId node, KvSlot slot) {
  const std::span<float> row = next_row();
  row[slot.index()] = 0.0F;
  for (NodeId at = tree[node].parent; at != tree.root(); at = tree[at].parent) {
    row[tree[at].slot->index()] = 0.0F;
  }
}

}  // namespace acespec
