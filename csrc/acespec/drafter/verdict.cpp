// What a verdict leaves of the tree, what it teaches, and residual mode's draw where it rejects.
#include <algorithm>
#include <chrono>
#include <string>

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
  forget_draw(node);
}

void Drafter::forget_draw(NodeId node) {
  if (!drawn_from_.empty()) {
    drawn_from_[node.index()] = {};
  }
}

void Drafter::drop_tree() {
  for (const NodeId node : tree_.live()) {
    const auto slot = tree_[node].slot;
    if (slot && !cache_.holds_context(*slot)) {
      cache_.release(*slot);
    }
    forget_draw(node);
  }
  cache_.unlink_all();
  in_flight_.clear();
}

std::vector<std::uint16_t> Drafter::chain_weights() const {
  const Exclusive::Scope scope(busy_, "this drafter");
  std::vector<std::uint16_t> weights;
  if (residual_) {
    for (const NodeId node : in_flight_) {
      const std::uint32_t weight = drawn_from_[tree_[node].parent.index()].weight(tree_[node].token);
      weights.push_back(static_cast<std::uint16_t>(weight - 1));
    }
  }
  return weights;
}

std::optional<TokenId> Drafter::resample(std::size_t depth, const SparseRow& row) const {
  const Exclusive::Scope scope(busy_, "this drafter");
  if (!residual_ || depth >= in_flight_.size()) {
    throw UsageError("token " + std::to_string(depth) + " of the chain is to be resampled; " +
                     (residual_ ? std::to_string(in_flight_.size()) + " are in flight"
                                : std::string("the request is not in residual mode")));
  }
  const TokenTree::Node& rejected = tree_[in_flight_[depth]];
  const auto token = residual_draw(row, drawn_from_[rejected.parent.index()], rules_.seed, rejected.position);
  if (token && (token->value() < 0 || token->index() >= sampler_.vocabulary())) {
    throw PeerError("a sparse row leads to token " + std::to_string(token->value()) +
                    "; the vocabulary has " + std::to_string(sampler_.vocabulary()));
  }
  return token;
}

// Whether the target took a candidate is known wherever its text ran through the parent.
void Drafter::learn(NodeId parent, TokenId committed) {
  TrackRecord& record = records_[kind()];
  const auto first = tree_[parent].first_child;
  for (auto at = first; at; at = tree_[*at].next_sibling) {
    const TokenTree::Node& candidate = tree_[*at];
    const Guess& guess = candidate.guess;
    const bool taken = candidate.token == committed;
    if (at == first) {
      record.observe_first(taken);
    }
    if (guess.rank != Guess::kUnranked) {
      record.calibration.observe(guess.rank, guess.confidence, guess.prior, taken);
    }
    if (guess.match > 0) {
      record.matches.observe(guess.match, taken);
    }
  }
}

// Residual mode has one chain in flight, which its verdict answers: what of it lives on was never sent.
// Deepest first keeps ancestors more recent.
void Drafter::recall_chain() {
  for (std::size_t index = in_flight_.size(); index-- > 0;) {
    const NodeId node = in_flight_[index];
    if (tree_[node].live && tree_[node].number != 0) {
      tree_.set_number(node, 0);
      if (tree_[node].slot) {
        cache_.unpin(*tree_[node].slot);
      }
    }
  }
  in_flight_.clear();
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
  bool inside = true;              // the text runs through the tree, and what it reached can be gone on from
  bool expanded = pending() == 0;  // all of it that it ran through has keys and values
  for (const TokenId token : tokens) {
    committed_.push_back(token);
    if (index_) {
      index_->append(token);
    }
    if (inside) {
      learn(at, token);
    }
    const auto child = inside ? cache_.find(at, token) : std::nullopt;
    expanded = expanded && child && tree_[*child].slot;
    inside = child && (expanded || !tree_[*child].sealed);
    if (inside) {
      cache_.unlink(at, token);
      at = *child;
    }
    if (expanded) {
      const KvSlot slot = *tree_[at].slot;
      cache_.commit(slot);
      bias_.show(slot);
      context_slots_.push_back(slot);
    }
  }
  recovery.hit = expanded;
  if (inside) {
    tree_.reroot(at, [this](NodeId node) { forget(node); });
    recall_chain();
  } else {
    drop_tree();
    tree_.reset(committed_.back(), Position{static_cast<std::int32_t>(committed_.size() - 1)});
  }
  suggest(tree_.root());
  recovery.ready = tree_.chain_length();
  recovery.microseconds =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  return recovery;
}

}  // namespace acespec
