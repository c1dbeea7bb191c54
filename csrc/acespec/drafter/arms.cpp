// Which nodes a step expands.
#include <algorithm>
#include <cmath>
#include <string>

#include "acespec/base/error.h"
#include "acespec/drafter/drafter.h"

namespace acespec {

void Drafter::set_arm(Arm arm) {
  const Exclusive::Scope scope(busy_, "this drafter");
  arm_ = arm;
}

void Drafter::allot(std::span<const std::size_t> alternatives) {
  const Exclusive::Scope scope(busy_, "this drafter");
  if (alternatives.size() > limit_) {
    throw UsageError("alternatives are allotted to " + std::to_string(alternatives.size()) +
                     " depths, the drafter's context has " + std::to_string(limit_) + " positions");
  }
  alternatives_.assign(alternatives.begin(), alternatives.end());
}

std::vector<float> Drafter::frontier(std::size_t most) {
  const Exclusive::Scope scope(busy_, "this drafter");
  std::vector<float> weights;
  if (pending() > 0) {
    return weights;
  }
  choose(std::min(most, engine_->max_rows()), false);
  weights.reserve(chosen_.size());
  const float root = tree_[tree_.root()].log_weight;
  for (const NodeId node : chosen_) {
    weights.push_back(std::exp(tree_[node].log_weight - root));
  }
  return weights;
}

bool Drafter::expandable(NodeId node) const {
  const TokenTree::Node& cell = tree_[node];
  return !cell.slot && !cell.sealed && cell.position.index() < limit_;
}

// Where the line of first children from `node` is to be expanded next.
NodeId Drafter::open_end(NodeId node) const {
  while (tree_[node].slot && tree_[node].first_child) {
    node = *tree_[node].first_child;
  }
  return node;
}

void Drafter::choose(std::size_t width, bool extend) {
  chosen_.clear();
  if (options_.candidates == 0) {
    return;
  }
  if (extend) {
    const NodeId tip = open_end(tree_.root());
    if (!expandable(tip)) {
      return;
    }
    chosen_.push_back(tip);
  }
  if (arm_ == Arm::kMeasured) {
    choose_likeliest(width);
  } else if (arm_ != Arm::kNone) {
    choose_opened(width);
  }
}

void Drafter::choose_likeliest(std::size_t width) {
  const std::size_t before = chosen_.size();
  chosen_.resize(width);
  const Position limit{static_cast<std::int32_t>(limit_)};
  const std::size_t found = tree_.frontier(std::span(chosen_).subspan(before), options_.floor, limit);
  chosen_.resize(before + found);
  if (before > 0) {
    const auto twice = std::find(chosen_.begin() + 1, chosen_.end(), chosen_.front());
    if (twice != chosen_.end()) {
      chosen_.erase(twice);
    }
  }
}

// The lines that are open: the main chain and the alternatives allotted beside it, each going on by first
// children; however unlikely, for the caller opened them. The shortest continuation goes first, so that every
// alternative has one before any has more; the chain's own counts from the last depth that has an allotment.
void Drafter::choose_opened(std::size_t width) {
  openings_.clear();
  const std::size_t depths = arm_ == Arm::kAllotted ? alternatives_.size() : 0;
  NodeId at = tree_.root();
  std::size_t depth = 0;
  while (tree_[at].first_child) {
    const NodeId child = *tree_[at].first_child;
    auto sibling = tree_[child].next_sibling;
    for (std::size_t left = depth < depths ? alternatives_[depth] : 0; left > 0 && sibling; --left) {
      open_line(*sibling, 0);
      sibling = tree_[*sibling].next_sibling;
    }
    at = child;
    ++depth;
  }
  open_line(at, depth > depths ? depth - depths : 0);

  const auto before = [this](const Opening& a, const Opening& b) {
    if (a.continuation != b.continuation) {
      return a.continuation < b.continuation;
    }
    const float wa = tree_[a.node].log_weight;
    const float wb = tree_[b.node].log_weight;
    return wa != wb ? wa > wb : a.node < b.node;
  };
  const std::size_t most = std::min(width - chosen_.size(), openings_.size());
  std::partial_sort(openings_.begin(), openings_.begin() + static_cast<std::ptrdiff_t>(most), openings_.end(),
                    before);
  for (const Opening& opening : std::span(openings_).first(most)) {
    chosen_.push_back(opening.node);
  }
}

void Drafter::open_line(NodeId node, std::size_t continuation) {
  const std::uint32_t start = tree_[node].depth;
  node = open_end(node);
  continuation += tree_[node].depth - start;
  const bool chosen = !chosen_.empty() && chosen_.front() == node;
  if (!chosen && expandable(node)) {
    openings_.push_back({node, continuation});
  }
}

}  // namespace acespec
