// What may follow a node: the rules along its path, the shared noise, and the children grown from them.
#include <algorithm>
#include <cmath>
#include <utility>

#include "acespec/base/error.h"
#include "acespec/base/philox.h"
#include "acespec/drafter/drafter.h"

namespace acespec {

namespace {

constexpr float kLeast = 1e-9F;  // probability of a candidate: weights stay finite

}  // namespace

// The tokens from below the root down to `node`.
void Drafter::trace_path(NodeId node) {
  path_.clear();
  for (NodeId at = node; at != tree_.root(); at = tree_[at].parent) {
    path_.push_back(tree_[at].token);
  }
  std::ranges::reverse(path_);
}

// The row after `node` as the rules leave it.
std::span<const float> Drafter::shaped(NodeId node, std::span<const float> logits) {
  if (!shaper_->shapes() && !mask_) {
    return logits;
  }
  trace_path(node);
  return shaper_->shape(logits, path_, mask_ ? mask_(path_) : std::span<const std::uint32_t>{});
}

// A drafted path after which the rules leave nothing is a dead end, not an error, until it is committed: the
// target will not take it.
void Drafter::grow_candidates(NodeId node, std::span<const float> logits) {
  if (options_.candidates == 0) {
    return;
  }
  const std::span<const float> row = shaped(node, logits);
  try {
    if (residual_) {
      grow_drawn(node, row);
    } else {
      grow_likeliest(node, row);
    }
  } catch (const NoTokenError&) {
    if (node == tree_.root() || row.data() == logits.data()) {
      throw;
    }
    if (!tree_[node].first_child) {
      tree_.seal(node);
    }
  }
}

void Drafter::grow_likeliest(NodeId node, std::span<const float> row) {
  const Position next{tree_[node].position.value() + 1};
  const std::size_t count = sampler_.rank(row, rules_, next, candidates_);
  for (std::size_t rank = 0; rank < count; ++rank) {
    scores_[rank] = candidates_[rank].score;
  }
  const Calibration& calibration = records_[kind()].calibration;
  const auto confidences = std::span(confidences_).first(count);
  const auto priors = std::span(priors_).first(count);
  calibration.assess(std::span(scores_).first(count), confidences, priors);
  for (std::size_t rank = 0; rank < count; ++rank) {
    Guess guess{confidences[rank], priors[rank], static_cast<std::uint8_t>(rank)};
    const float probability = calibration.probability(rank, guess.confidence, guess.prior);
    const float log_p = std::log(std::max(probability, kLeast));
    if (const auto known = cache_.find(node, candidates_[rank].token)) {
      guess.match = tree_[*known].guess.match;
      tree_.revise(*known, log_p, guess);
    } else if (!grow_child(node, candidates_[rank].token, log_p, guess)) {
      return;
    }
  }
}

// The main chain goes on with the drawn token, which the target takes more often than not however unlikely it
// is; the likeliest of the others are where the text may go instead.
void Drafter::grow_drawn(NodeId node, std::span<const float> row) {
  // An estimate that orders the work: how it came about has nothing to do with which token is drawn.
  const float taken = records_[kind()].acceptance();
  const std::span<const Candidate> likeliest =
      std::span(likeliest_).first(sampler_.likeliest(row, rules_, likeliest_));
  // Under greedy rules the likeliest token is all there is to draw.
  QuantisedDistribution q(likeliest.first(rules_.greedy() ? 1 : likeliest.size()));
  const Position next{tree_[node].position.value() + 1};
  const TokenId drawn = q.draw(stream_words(rules_.seed, Stream::kDraw, next, 0).w0);
  drawn_from_[node.index()] = std::move(q);
  if (!grow_child(node, drawn, std::log(taken))) {
    return;
  }
  std::size_t others = 0;
  float mass = 0.0F;
  for (const Candidate& candidate : likeliest) {
    if (others + 1 == options_.candidates) {
      break;
    }
    if (candidate.token != drawn) {
      candidates_[others++] = candidate;
      mass += std::exp(candidate.log_p);
    }
  }
  for (const Candidate& candidate : std::span(candidates_).first(others)) {
    if (!grow_child(node, candidate.token, std::log1p(-taken) + candidate.log_p - std::log(mass))) {
      return;
    }
  }
}

// False when the tree is full.
bool Drafter::grow_child(NodeId node, TokenId token, float log_p, const Guess& guess) {
  const auto child = tree_.grow(node, token, log_p, guess);
  if (!child) {
    return false;
  }
  cache_.link(node, token, *child);
  if (std::ranges::find(stop_ids_, token) != stop_ids_.end()) {
    tree_.seal(*child);
  }
  return true;
}

}  // namespace acespec
