// The edge's speculation: one object that joins tree, cache, engine and sampling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "acespec/base/exclusive.h"
#include "acespec/base/ids.h"
#include "acespec/cache/state_cache.h"
#include "acespec/drafter/reports.h"
#include "acespec/engine/engine.h"
#include "acespec/sampling/residual.h"
#include "acespec/sampling/sampler.h"
#include "acespec/sampling/shaper.h"
#include "acespec/tree/attention_bias.h"
#include "acespec/tree/token_tree.h"

namespace acespec {

/// What a grammar allows after the committed tokens and `path`: a mask as LogitShaper::shape() takes it,
/// valid until the next call, or nothing when all is allowed.
using MaskSource = std::function<std::span<const std::uint32_t>(std::span<const TokenId> path)>;

/// Life of a request: begin(), then step() while waiting, take_chain() to send, apply_verdict() for what came
/// back.
///
/// Invariants: every committed token but the pending tail has one pinned slot; every expanded node below the
/// root has one slot and one path link; an ancestor is used at least as recently as its descendants, so
/// eviction takes leaves. apply_verdict() does one lookup a token and drops what no longer descends: its cost
/// follows the tree, never the context, and it copies no keys or values. Memory is taken at construction;
/// what a request's rules need, at begin(); in residual mode every expanded node has a distribution of its
/// own. One thread at a time: a call that comes while another runs gets a UsageError.
class Drafter {
 public:
  /// Throws UsageError when the engine's ring does not hold the context and at least 16 branch slots, and
  /// when another drafter uses the engine.
  Drafter(std::shared_ptr<Engine> engine, const DrafterOptions& options);
  Drafter(const Drafter&) = delete;
  Drafter& operator=(const Drafter&) = delete;

  /// Starts a request. Keys and values of the longest prefix shared with the last one are kept; returns its
  /// length. Nothing is drafted below a stop id. `residual`: the main chain is drawn from the drafter's own
  /// distribution, quantised, for a target that accepts with min(1, p/q); how many tokens are then sent must
  /// not depend on what they are. Throws UsageError on an empty prompt, one longer than the context, a token
  /// outside the vocabulary, bad rules.
  std::size_t begin(std::span<const TokenId> prompt, const SamplingRules& rules,
                    std::span<const TokenId> stop_ids = {}, bool residual = false);

  /// Holds the drafts of this request to a grammar; begin() ends it. `source` is asked in step(), for every
  /// node expanded, and what it throws ends that step as an engine's failure does.
  void set_mask(MaskSource source) { mask_ = std::move(source); }

  /// One forward. While committed tokens lack keys and values it feeds those; then it expands up to `width`
  /// nodes: the tip of the main chain first when `extend` (exhausted when it cannot be), otherwise the
  /// likeliest first. Throws EngineError (NoTokenError is one, for rules that leave nothing after the
  /// committed tokens); the drafter then holds no keys and values, and the next step feeds the committed
  /// tokens anew.
  StepReport step(std::size_t width, bool extend);

  /// Drafted tokens on the main chain from the root.
  [[nodiscard]] std::size_t ready() const;

  /// The first `length` tokens of the main chain (fewer if fewer are ready); their state is pinned until the
  /// next verdict, which must have come before a second chain is taken (UsageError).
  std::vector<TokenId> take_chain(std::size_t length);

  /// Residual mode: the weight less 1 of each token of the chain in flight, in the distribution that it was
  /// drawn from.
  [[nodiscard]] std::vector<std::uint16_t> chain_weights() const;

  /// Residual mode: the token in place of number `depth` (from 0) of the chain in flight, which the target
  /// rejected under `row`; the verdict is still to be applied. nullopt: more tail samples are needed, to be
  /// put behind those of `row` for another call. Throws UsageError when no such token is in flight, PeerError
  /// when the row leads to a token outside the vocabulary.
  [[nodiscard]] std::optional<TokenId> resample(std::size_t depth, const SparseRow& row) const;

  /// Commits `tokens`: the accepted ones and the correction or bonus, in order.
  /// Throws UsageError when they are none, do not fit the context, or lie outside the vocabulary.
  Recovery apply_verdict(std::span<const TokenId> tokens);

  [[nodiscard]] std::size_t committed() const noexcept { return committed_.size(); }
  /// Tokens that can still be committed.
  [[nodiscard]] std::size_t room() const noexcept { return limit_ - committed_.size(); }
  [[nodiscard]] DrafterSnapshot snapshot() const;
  /// Violated invariants, a line each; empty when sound.
  [[nodiscard]] std::vector<std::string> check() const;

 private:
  struct Row {
    NodeId node;
    KvSlot slot;
  };

  StepReport feed();
  StepReport expand(std::size_t width, bool extend);
  void choose(std::size_t width, bool extend);
  void reserve(bool extend);
  void grow_candidates(NodeId node, std::span<const float> logits);
  void grow_likeliest(NodeId node, std::span<const float> row);
  void grow_drawn(NodeId node, std::span<const float> row);
  bool grow_child(NodeId node, TokenId token, float log_p);
  void trace_path(NodeId node);
  std::span<const float> shaped(NodeId node, std::span<const float> logits);
  void touch_ancestors(NodeId node);
  void forget(NodeId node);
  void forget_draw(NodeId node);
  void drop_tree();
  bool make_room(NodeId node, bool insist);
  void abandon();
  [[nodiscard]] std::size_t held() const noexcept;
  void check_tokens(std::span<const TokenId> tokens) const;
  std::span<const float> forward(std::span<const std::uint32_t> rows, StepReport& report);
  [[nodiscard]] std::size_t visible() const;
  [[nodiscard]] std::size_t pending() const noexcept { return committed_.size() - context_slots_.size(); }

  mutable Exclusive busy_;
  std::shared_ptr<Engine> engine_;
  DrafterOptions options_;
  std::size_t limit_;           // positions that exist: the context, or the model's if shorter
  Exclusive::Scope ownership_;  // of the engine: two drafters would overwrite each other's ring
  StateCache cache_;
  TokenTree tree_;
  AttentionBias bias_;
  Sampler sampler_;
  SamplingRules rules_;
  std::optional<LogitShaper> shaper_;  // of the request
  std::vector<TokenId> stop_ids_;
  MaskSource mask_;
  bool residual_ = false;
  std::vector<QuantisedDistribution> drawn_from_;  // by expanded node: its first child is a draw from it

  std::vector<TokenId> committed_;
  std::vector<KvSlot> context_slots_;  // of the first committed tokens, in order
  std::vector<NodeId> in_flight_;

  // Scratch of one step.
  std::vector<NodeId> chosen_;
  std::vector<Row> batch_;
  std::vector<TokenId> tokens_;
  std::vector<Position> positions_;
  std::vector<KvSlot> slots_;
  std::vector<std::uint32_t> all_rows_;
  std::vector<Candidate> candidates_;
  std::vector<Candidate> likeliest_;  // residual mode
  std::vector<TokenId> path_;
};

}  // namespace acespec
