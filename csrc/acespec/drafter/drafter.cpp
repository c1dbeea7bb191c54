#include "acespec/drafter/drafter.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "acespec/base/error.h"

namespace acespec {

namespace {

constexpr std::size_t kLeastBranchSlots = 16;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Position position_of(std::size_t index) {
  return Position{static_cast<std::int32_t>(index)};
}

constexpr std::size_t kLookedUp = 256;  // nodes of the tree that are only looked up, at most

// Every expanded node, the root among them, has at most `candidates` children from its logits.
std::size_t tree_capacity(const DrafterOptions& options) {
  return 1 + options.candidates * (options.max_nodes + 1) + (options.lookup > 0 ? kLookedUp : 0);
}

const Engine& checked(const std::shared_ptr<Engine>& engine, const DrafterOptions& options) {
  if (!engine) {
    throw UsageError("Drafter: an engine is required");
  }
  if (options.candidates > 64 || (options.candidates == 0 && options.lookup == 0)) {
    throw UsageError("DrafterOptions.candidates is " + std::to_string(options.candidates) +
                     "; use 1 to 64, or 0 with lookup");
  }
  if (options.lookup > kLookedUp) {
    throw UsageError("DrafterOptions.lookup is " + std::to_string(options.lookup) + "; use 0 to " +
                     std::to_string(kLookedUp));
  }
  if (options.max_nodes < 1 || options.max_nodes > 65536) {
    throw UsageError("DrafterOptions.max_nodes is " + std::to_string(options.max_nodes) + "; use 1 to 65536");
  }
  if (!(options.sharpness > 0.0F) || !(options.floor < 0.0F)) {
    throw UsageError("DrafterOptions: sharpness must be above 0 and floor below 0");
  }
  const std::size_t slots = engine->info().slots;
  if (options.context < 1 || slots < options.context + kLeastBranchSlots) {
    throw UsageError("DrafterOptions.context is " + std::to_string(options.context) +
                     ", but the engine's ring has " + std::to_string(slots) +
                     " slots; it must hold the context and at least " + std::to_string(kLeastBranchSlots) +
                     " branch slots");
  }
  return *engine;
}

}  // namespace

Drafter::Drafter(std::shared_ptr<Engine> engine, const DrafterOptions& options)
    : engine_(std::move(engine)),
      options_(options),
      limit_(std::min(options.context, checked(engine_, options).info().max_positions)),
      ownership_(engine_->owner, "this engine"),
      cache_({engine_->info().slots, engine_->info().bytes_per_slot, tree_capacity(options)}),
      tree_(tree_capacity(options)),
      bias_(engine_->info().slots, engine_->max_rows()),
      sampler_(engine_->info().vocabulary),
      records_{TrackRecord(options.sharpness), TrackRecord(options.sharpness),
               TrackRecord(options.sharpness)} {
  if (options_.lookup > 0) {
    index_.emplace(limit_);
  }
  const std::size_t rows = engine_->max_rows();
  committed_.reserve(limit_);
  context_slots_.reserve(limit_);
  in_flight_.reserve(limit_);
  alternatives_.reserve(limit_);
  chosen_.reserve(rows);
  openings_.reserve(tree_.capacity());
  sendable_.reserve(tree_.capacity());
  picked_.reserve(tree_.capacity());
  batch_.reserve(rows);
  tokens_.reserve(rows);
  positions_.reserve(rows);
  slots_.reserve(rows);
  all_rows_.resize(rows);
  std::iota(all_rows_.begin(), all_rows_.end(), 0U);
  candidates_.resize(options_.candidates);
  scores_.resize(options_.candidates);
  confidences_.resize(options_.candidates);
  priors_.resize(options_.candidates);
  path_.reserve(limit_);
}

void Drafter::check_tokens(std::span<const TokenId> tokens) const {
  for (const TokenId token : tokens) {
    if (token.value() < 0 || token.index() >= sampler_.vocabulary()) {
      throw UsageError("token " + std::to_string(token.value()) + " is outside the drafter's vocabulary of " +
                       std::to_string(sampler_.vocabulary()));
    }
  }
}

std::size_t Drafter::begin(std::span<const TokenId> prompt, const SamplingRules& rules,
                           std::span<const TokenId> stop_ids, bool residual, bool lookup) {
  const Exclusive::Scope scope(busy_, "this drafter");
  if (prompt.empty()) {
    throw UsageError("the prompt is empty; at least one token is needed");
  }
  if (prompt.size() > limit_) {
    throw UsageError("the prompt has " + std::to_string(prompt.size()) +
                     " tokens, the drafter's context holds " + std::to_string(limit_));
  }
  check_tokens(prompt);
  if (residual && options_.candidates == 0) {
    throw UsageError("residual mode draws from a model's distribution, and this drafter has no model");
  }
  LogitShaper shaper(sampler_.vocabulary(), rules, prompt, stop_ids);

  drop_tree();
  // The last prompt token is always forwarded again: its logits are needed.
  const std::size_t longest = std::min(context_slots_.size(), prompt.size() - 1);
  std::size_t shared = 0;
  while (shared < longest && committed_[shared] == prompt[shared]) {
    ++shared;
  }
  while (context_slots_.size() > shared) {
    bias_.hide(context_slots_.back());
    cache_.release(context_slots_.back());
    context_slots_.pop_back();
  }
  committed_.assign(prompt.begin(), prompt.end());
  rules_ = rules;
  shaper_ = std::move(shaper);
  mask_ = nullptr;
  residual_ = residual;
  lookup_ = lookup && index_ && !residual;
  next_number_ = 1;
  if (residual_) {
    drawn_from_.resize(tree_.capacity());
    likeliest_.resize(std::min(sampler_.vocabulary(), QuantisedDistribution::kMostTokens));
  }
  stop_ids_.assign(stop_ids.begin(), stop_ids.end());
  tree_.reset(committed_.back(), position_of(committed_.size() - 1));
  if (index_) {
    index_->assign(committed_);
  }
  suggest(tree_.root());
  return shared;
}

StepReport Drafter::step(std::size_t width, bool extend) {
  const Exclusive::Scope scope(busy_, "this drafter");
  if (committed_.empty()) {
    throw UsageError("step() before begin()");
  }
  if (width < 1 || width > engine_->max_rows()) {
    throw UsageError("width is " + std::to_string(width) + "; the engine takes 1 to " +
                     std::to_string(engine_->max_rows()) + " nodes in one forward");
  }
  try {
    return pending() > 0 ? feed() : expand(width, extend);
  } catch (...) {
    abandon();
    throw;
  }
}

std::size_t Drafter::visible() const {
  const std::size_t granule = engine_->visible_granule();
  const std::size_t rounded = (cache_.ring().high_water() + granule - 1) / granule * granule;
  return std::min(rounded, engine_->info().slots);
}

std::span<const float> Drafter::forward(std::span<const std::uint32_t> rows, StepReport& report) {
  const auto start = Clock::now();
  const auto wanted = rows.first(options_.candidates > 0 ? rows.size() : 0);
  const auto logits = engine_->forward({tokens_, positions_, slots_, bias_.rows(), visible(), wanted});
  report.rows = tokens_.size();
  report.seconds = seconds_since(start);
  return logits;
}

StepReport Drafter::feed() {
  StepReport report;
  report.prefilling = true;
  const std::size_t first = context_slots_.size();
  const std::size_t count = std::min(pending(), engine_->max_rows());
  tokens_.clear();
  positions_.clear();
  slots_.clear();
  for (std::size_t index = first; index < first + count; ++index) {
    // The context fits the ring by construction, and nothing else has a slot while tokens are pending.
    context_slots_.push_back(*cache_.acquire_context());
    tokens_.push_back(committed_[index]);
    positions_.push_back(position_of(index));
    slots_.push_back(context_slots_.back());
  }
  bias_.begin(visible());
  for (const KvSlot slot : slots_) {
    bias_.show(slot);
    bias_.add_context_row();
  }
  const auto last = static_cast<std::uint32_t>(count - 1);
  const auto logits = forward({&last, 1}, report);
  if (pending() == 0) {
    tree_.expand(tree_.root(), slots_.back());
    grow_candidates(tree_.root(), logits);
  }
  return report;
}

// After a fault nothing in the ring can be trusted: a NaN among the keys shows through every mask.
void Drafter::abandon() {
  batch_.clear();
  drop_tree();
  for (const KvSlot slot : context_slots_) {
    bias_.hide(slot);
    cache_.release(slot);
  }
  context_slots_.clear();
  tree_.reset(committed_.back(), position_of(committed_.size() - 1));
  engine_->clear();
}

std::size_t Drafter::held() const noexcept {
  return cache_.ring().evictable() + cache_.ring().pinned() - context_slots_.size();
}

}  // namespace acespec
