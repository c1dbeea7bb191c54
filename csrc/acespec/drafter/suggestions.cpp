// Tokens that are looked up: where the text has gone before after the same tokens.
#include <algorithm>
#include <cmath>

#include "acespec/drafter/drafter.h"

namespace acespec {

// Looked-up nodes leave room for the children of every node that can still be expanded.
bool Drafter::room_to_suggest() const {
  const std::size_t growth = options_.candidates * (options_.max_nodes + 1 - held());
  return tree_.size() + growth < tree_.capacity();
}

// Grows below `node` what followed its path's last tokens where they last stood in the text; past the end of
// the text it goes on with the path and with itself, as a text of one repeated phrase does. Every token makes
// the match one longer. No forward is made: the nodes are expanded when it is their turn, several in one
// forward.
void Drafter::suggest(NodeId node) {
  if (!lookup_) {
    return;
  }
  trace_path(node);
  const auto match = index_->find(path_);
  if (!match) {
    return;
  }
  const MatchRecord& record = records_[kind()].matches;
  NodeId at = node;
  for (std::size_t depth = 0; depth < options_.lookup; ++depth) {
    const bool last = tree_[at].position.index() + 1 >= limit_;
    if (last || tree_[at].sealed) {
      return;
    }
    const std::size_t from = match->next + depth;
    const TokenId token = from < committed_.size() ? committed_[from] : path_[from - committed_.size()];
    const std::size_t length = std::min(match->length + depth, NgramIndex::kLongest);
    const float log_p = std::log(record.probability(length));
    auto child = cache_.find(at, token);
    if (child) {
      Guess guess = tree_[*child].guess;
      if (length > guess.match) {
        guess.match = static_cast<std::uint8_t>(length);
        tree_.revise(*child, log_p, guess);
      }
    } else if (room_to_suggest() &&
               grow_child(at, token, log_p, {.match = static_cast<std::uint8_t>(length)})) {
      child = cache_.find(at, token);
    } else {
      return;
    }
    path_.push_back(token);
    at = *child;
  }
}

}  // namespace acespec
