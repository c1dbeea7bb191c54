// What may follow a node: the rules along its path, the shared noise, and the children grown from them.
#include <algorithm>
#include <cmath>

#include "acespec/base/error.h"
#include "acespec/drafter/drafter.h"

namespace acespec {

// The tokens from below the root down to `node`.
void Drafter::trace_path(NodeId node) {
  path_.clear();
  for (NodeId at = node; at != tree_.root(); at = tree_[at].parent) {
    path_.push_back(tree_[at].token);
  }
  std::ranges::reverse(path_);
}

// Fills candidates_ for the token after `node`. A drafted path after which the rules leave nothing is a dead
// end, not an error, until it is committed: the target will not take it.
std::size_t Drafter::rank_after(NodeId node, std::span<const float> logits) {
  const Position next{tree_[node].position.value() + 1};
  if (!shaper_->shapes() && !mask_) {
    return sampler_.rank(logits, rules_, next, candidates_);
  }
  trace_path(node);
  const std::span<const std::uint32_t> mask = mask_ ? mask_(path_) : std::span<const std::uint32_t>{};
  try {
    return sampler_.rank(shaper_->shape(logits, path_, mask), rules_, next, candidates_);
  } catch (const NoTokenError&) {
    if (node == tree_.root()) {
      throw;
    }
    tree_.seal(node);
    return 0;
  }
}

void Drafter::grow_candidates(NodeId node, std::span<const float> logits) {
  const std::size_t count = rank_after(node, logits);
  // Softmax of score / sharpness over the candidates; the best score is first, so nothing overflows.
  float total = 0.0F;
  for (std::size_t rank = 0; rank < count; ++rank) {
    total += std::exp((candidates_[rank].score - candidates_[0].score) / options_.sharpness);
  }
  for (std::size_t rank = 0; rank < count; ++rank) {
    const Candidate& candidate = candidates_[rank];
    const float log_p = (candidate.score - candidates_[0].score) / options_.sharpness - std::log(total);
    const auto child = tree_.grow(node, candidate.token, log_p);
    if (!child) {
      return;
    }
    cache_.link(node, candidate.token, *child);
    if (std::ranges::find(stop_ids_, candidate.token) != stop_ids_.end()) {
      tree_.seal(*child);
    }
  }
}

}  // namespace acespec
