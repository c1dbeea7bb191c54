// Who may see whom: the [T, S] attention bias of one forward.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "acespec/base/ids.h"
#include "acespec/tree/token_tree.h"

namespace acespec {

/// Invariant: a row sees the committed context, its own ancestors and itself, and nothing else.
///
/// Keeps one template row for the context, changed as tokens are committed and dropped, so that a row costs
/// one copy of S floats and a walk up its ancestors. Memory for `max_rows` x `slots` floats is taken at
/// construction. Not thread-safe.
class AttentionBias {
 public:
  static constexpr float kHidden =
      -1e9F;  ///< finite, so that a softmax over hidden slots alone could not make NaN

  AttentionBias(std::size_t slots, std::size_t max_rows);

  void show(KvSlot context_slot) { context_[context_slot.index()] = 0.0F; }
  void hide(KvSlot context_slot) { context_[context_slot.index()] = kHidden; }

  /// Starts a batch of rows over the first `visible` slots.
  void begin(std::size_t visible);
  /// A row that sees the context as it is now (a committed token: call show() for its own slot first).
  void add_context_row();
  /// A row for `node`, which is about to be written to `slot`: context, expanded ancestors below the root,
  /// itself.
  void add_node_row(const TokenTree& tree, NodeId node, KvSlot slot);

  [[nodiscard]] std::span<const float> rows() const noexcept { return {rows_.data(), used_}; }

 private:
  std::span<float> next_row();

  std::vector<float> context_;
  std::vector<float> rows_;
  std::size_t visible_ = 0;
  std::size_t used_ = 0;  // floats
};

}  // namespace acespec
