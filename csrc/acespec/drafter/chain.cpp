// The chain that is sent, and what its verdict leaves of the tree.
#include <algorithm>
#include <chrono>

#include "acespec/base/error.h"
#include "acespec/drafter/drafter.h"

namespace acespec {

// What the tree drops leaves the cache, except a slot that has become context.
void Drafter::forget(NodeId node) {
  const TokenTree::Node& cell = tree_[node];
  if (cell.slot && !cache_.holds_context(*cell.slot)) {
    cache_.release(*cell.slot);
  }
  if (cell.parent != node) {
    cache_.unlink(cell.parent, cell.token);
  }
}

void Drafter::drop_tree() {
  for (const NodeId node : tree_.live()) {
    const auto slot = tree_[node].slot;
    if (slot && !cache_.holds_context(*slot)) {
      cache_.release(*slot);
    }
  }
  cache_.unlink_all();
  in_flight_.clear();
}

std::vector<TokenId> Drafter::take_chain(std::size_t length) {
  const Exclusive::Scope scope(busy_, "this drafter");
  if (!in_flight_.empty()) {
    throw UsageError("a chain is in flight; apply its verdict before taking another");
  }
  std::vector<TokenId> tokens;
  NodeId at = tree_.root();
  while (tokens.size() < length && tree_[at].first_child) {
    at = *tree_[at].first_child;
    tokens.push_back(tree_[at].token);
    in_flight_.push_back(at);
    if (tree_[at].slot) {
      cache_.pin(*tree_[at].slot);
    }
  }
  return tokens;
}

Recovery Drafter::apply_verdict(std::span<const TokenId> tokens) {
  const Exclusive::Scope scope(busy_, "this drafter");
  const auto start = std::chrono::steady_clock::now();
  if (committed_.empty()) {
    throw UsageError("apply_verdict() before begin()");
  }
  if (tokens.empty()) {
    throw UsageError("a verdict commits at least one token");
  }
  if (tokens.size() > room()) {
    throw UsageError("the verdict commits " + std::to_string(tokens.size()) +
                     " tokens, the drafter's context has room for " + std::to_string(room()));
  }
  check_tokens(tokens);

  shaper_->commit(tokens);

  Recovery recovery;
  NodeId at = tree_.root();
  bool inside = pending() == 0;
  for (const TokenId token : tokens) {
    committed_.push_back(token);
    const auto child = inside ? cache_.find(at, token) : std::nullopt;
    inside = child && tree_[*child].slot;
    if (inside) {
      const KvSlot slot = *tree_[*child].slot;
      cache_.unlink(at, token);
      cache_.commit(slot);
      bias_.show(slot);
      context_slots_.push_back(slot);
      at = *child;
    }
  }
  recovery.hit = inside;
  if (inside) {
    tree_.reroot(at, [this](NodeId node) { forget(node); });
    // A verdict for an older base can leave part of the chain alive. Deepest first keeps ancestors more
    // recent.
    for (std::size_t index = in_flight_.size(); index-- > 0;) {
      const NodeId node = in_flight_[index];
      const auto slot = tree_[node].slot;
      if (tree_[node].live && slot && !cache_.holds_context(*slot) &&
          cache_.ring().state(*slot) == SlotState::kPinned) {
        cache_.unpin(*slot);
      }
    }
    in_flight_.clear();
  } else {
    drop_tree();
    tree_.reset(committed_.back(), Position{static_cast<std::int32_t>(committed_.size() - 1)});
  }
  recovery.ready = tree_.chain_length();
  recovery.microseconds =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  return recovery;
}

}  // namespace acespec
