// The edge's speculation: one object that joins tree, cache, engine and sampling.
#pragma once

#include <array>
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
#include "acespec/drafter/track_record.h"
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

/// Life of a request: begin(), then step() while waiting, take() or take_chain() to send, apply_verdict() for
/// what came back. Several drafts may be in flight.
///
/// Nodes given away are numbered from 1 on in each request, in the order given; 0 is the root, the last
/// committed token. A sent node stays sent, with its number, while it lives: through verdicts that it
/// descends from, and as the target's mirror of the tree keeps it. The tree can lose it otherwise only by a
/// fault.
///
/// Invariants: the parent of a sent node is the root or sent before it; a sent node that is expanded is
/// pinned; every committed token but the pending tail has one pinned slot; every expanded node below the
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
  /// nodes: the tip of the main chain first when `extend` (exhausted when it cannot be), then what the arm in
  /// force says. Throws EngineError (NoTokenError is one, for rules that leave nothing after the
  /// committed tokens); the drafter then holds no keys and values, and the next step feeds the committed
  /// tokens anew.
  StepReport step(std::size_t width, bool extend);

  /// Which nodes step() expands from now on, in this request and later ones; kMeasured at first.
  void set_arm(Arm arm);
  /// For Arm::kAllotted: at depth i of the main chain (0: the children of the root) the first
  /// `alternatives[i]` siblings of the chain's child may be expanded, and what follows them by first
  /// children; those with the shortest continuation first. Depths count from the root of the moment, verdict
  /// or none. Throws UsageError when there are more depths than positions in the context.
  void allot(std::span<const std::size_t> alternatives);

  /// Drafted tokens on the main chain from the root, sent or not.
  [[nodiscard]] std::size_t ready() const;
  /// Those of them below the last sent one, which take_chain() gives next.
  [[nodiscard]] std::size_t unsent() const;

  /// Weights of the nodes that step(most, false) would expand, greatest first; none while tokens are
  /// pending. O(tree).
  [[nodiscard]] std::vector<float> frontier(std::size_t most);
  /// Weights (probability that the target's text runs through a node, from the root) of the nodes that
  /// take(most) would give, greatest first. O(tree + most log(tree)).
  [[nodiscard]] std::vector<float> survey(std::size_t most);
  /// The `count` unsent nodes of greatest weight (fewer if fewer there are), expanded or not, whose parents
  /// are the root, sent, or among them. Left out is what a verdict would leave no position behind, and what
  /// would be numbered more than 255 above its parent. Residual mode sends chains: UsageError, and survey()
  /// finds nothing.
  Taken take(std::size_t count);
  /// What take(count) would give a target that has just verified all that was sent before.
  [[nodiscard]] Prospect prospect(std::size_t count);
  /// The next `length` tokens of the main chain below those sent; fewer if fewer are ready, none when the
  /// first would be numbered more than 255 above its parent. Residual mode has one chain in flight:
  /// UsageError when its verdict has not come.
  Taken take_chain(std::size_t length);

  /// Leaves the next `count` numbers to nodes that the caller sends on its own, from elsewhere than this
  /// tree.
  void skip_numbers(std::uint32_t count);

  /// Probability that the target takes each of the first `most` nodes of the main chain, given that it took
  /// the one above.
  [[nodiscard]] std::vector<float> chain_acceptances(std::size_t most) const;
  /// Share of first candidates that the target took, recent ones counting more, over requests of this one's
  /// kind: greedy, sampled, in residual mode; 0.8 before anything is known.
  [[nodiscard]] float acceptance() const;

  /// Residual mode: the weight less 1 of each token of the chain in flight, in the distribution that it was
  /// drawn from.
  [[nodiscard]] std::vector<std::uint16_t> chain_weights() const;

  /// Residual mode: the token in place of number `depth` (from 0) of the chain in flight, which the target
  /// rejected under `row`; the verdict is still to be applied. nullopt: more tail samples are needed, to be
  /// put behind those of `row` for another call. Throws UsageError when no such token is in flight, PeerError
  /// when the row leads to a token outside the vocabulary.
  [[nodiscard]] std::optional<TokenId> resample(std::size_t depth, const SparseRow& row) const;

  /// Commits `tokens`: the accepted ones and the correction or bonus, in order; learns from them how well the
  /// drafter foretells the target. Whatever descends from them stays, sent or not.
  /// Throws UsageError when they are none, do not fit the context, or lie outside the vocabulary.
  Recovery apply_verdict(std::span<const TokenId> tokens);

  [[nodiscard]] std::size_t committed() const noexcept { return committed_.size(); }
  /// Committed tokens without keys and values; 0 once the root is expanded.
  [[nodiscard]] std::size_t pending() const noexcept { return committed_.size() - context_slots_.size(); }
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
  struct Opening {
    NodeId node;
    std::size_t continuation;
  };
  struct Pick {
    NodeId node;
    std::uint32_t parent;  // its number
  };
  enum Kind : std::size_t { kGreedy, kSampled, kResidual, kKinds };

  StepReport feed();
  StepReport expand(std::size_t width, bool extend);
  [[nodiscard]] bool expandable(NodeId node) const;
  void choose(std::size_t width, bool extend);
  void choose_likeliest(std::size_t width);
  void choose_opened(std::size_t width);
  void open_line(NodeId node, std::size_t continuation);
  void reserve(bool extend);
  void grow_candidates(NodeId node, std::span<const float> logits);
  void grow_likeliest(NodeId node, std::span<const float> row);
  void grow_drawn(NodeId node, std::span<const float> row);
  bool grow_child(NodeId node, TokenId token, float log_p, const Guess& guess = {});
  void pick(std::size_t most);
  void give(NodeId node, Taken& taken);
  [[nodiscard]] NodeId last_sent() const;
  void learn(NodeId parent, TokenId committed);
  void recall_chain();
  [[nodiscard]] Kind kind() const noexcept {
    return residual_ ? kResidual : rules_.greedy() ? kGreedy : kSampled;
  }
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
  std::vector<NodeId> in_flight_;      // residual mode: the chain whose verdict is to come
  std::uint32_t next_number_ = 1;
  std::array<TrackRecord, kKinds> records_;
  Arm arm_ = Arm::kMeasured;
  std::vector<std::size_t> alternatives_;

  // Scratch of one step.
  std::vector<NodeId> chosen_;
  std::vector<Opening> openings_;
  std::vector<Row> batch_;
  std::vector<TokenId> tokens_;
  std::vector<Position> positions_;
  std::vector<KvSlot> slots_;
  std::vector<std::uint32_t> all_rows_;
  std::vector<Candidate> candidates_;
  std::vector<float> scores_;  // of the candidates, as are the next two
  std::vector<float> confidences_;
  std::vector<float> priors_;
  std::vector<Candidate> likeliest_;  // residual mode
  std::vector<TokenId> path_;

  // Scratch of one survey.
  std::vector<Pick> sendable_;
  std::vector<Pick> picked_;
};

}  // namespace acespec
