// Ranks the next token's candidates under the request's rules, with the shared noise.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "acespec/base/exclusive.h"
#include "acespec/base/ids.h"
#include "acespec/sampling/best_list.h"
#include "acespec/sampling/rules.h"
#include "acespec/sampling/truncation.h"

namespace acespec {

/// One candidate for the next token.
struct Candidate {
  TokenId token;
  /// What candidates are ranked by: `log p + G(seed, position, token)`; greedy: `log p`.
  float score = 0.0F;
  /// Log-probability under the rules (greedy: of the plain softmax).
  float log_p = 0.0F;
};

/// Draws and ranks by the Gumbel-max rule: the best candidate *is* the coupled sample
/// `argmax_x log p(x) + G(seed, position, x)`, and the rest follow in the order in which they are likely to
/// be the peer's choice. Ties go to the lower token id, so that greedy is a function of the logits alone.
///
/// Owns scratch memory for one vocabulary, taken at construction. One thread at a time (another gets a
/// UsageError); rank() allocates nothing.
class Sampler {
 public:
  /// `vocabulary`: number of drawable ids. Logit rows may be longer (padded vocabularies); the rest is never
  /// drawn.
  explicit Sampler(std::size_t vocabulary);

  /// Writes up to `out.size()` candidates, best first, and returns how many (fewer when the rules leave
  /// fewer). `position`: absolute position of the token being chosen. O(V).
  /// Throws UsageError when `logits` is shorter than the vocabulary or the rules are invalid, EngineError on
  /// NaN and +Inf, NoTokenError when no logit is finite.
  std::size_t rank(std::span<const float> logits, const SamplingRules& rules, Position position,
                   std::span<Candidate> out);

  /// The likeliest candidates under the rules, likeliest first, without noise: their score is `log_p`. Sizes
  /// and errors as of rank(); greedy ranks alike.
  std::size_t likeliest(std::span<const float> logits, const SamplingRules& rules, std::span<Candidate> out);

  /// The whole distribution under the rules: out[token] is its probability, 0 where it is ruled out; greedy
  /// has all of it on one token. `out` has one entry for each token of the vocabulary. Relative error 1e-6,
  /// errors as of rank(). O(V).
  void probabilities(std::span<const float> logits, const SamplingRules& rules, std::span<float> out);

  [[nodiscard]] std::size_t vocabulary() const noexcept { return vocabulary_; }

 private:
  [[nodiscard]] LogitRow checked(std::span<const float> logits, const SamplingRules& rules);
  /// Fills kept_ by rules that truncate; returns the logarithm of the mass, relative to the top, that it
  /// holds.
  double keep(const LogitRow& row, const SamplingRules& rules);
  std::size_t rank_greedy(const LogitRow& row, std::span<Candidate> out);
  void rank_all(const LogitRow& row, const SamplingRules& rules, Position position);
  void rank_kept(const SamplingRules& rules, Position position);

  Exclusive busy_;
  std::size_t vocabulary_;
  std::vector<float> tile_max_;
  std::vector<Scored> kept_;
  BestList best_;
};

}  // namespace acespec
