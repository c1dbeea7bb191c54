// The request's sampling rules. Edge and cloud apply the same rules, through this one definition.
#pragma once

#include <cstdint>
#include <vector>

#include "acespec/base/ids.h"

namespace acespec {

/// What is added to the logit of one token.
struct LogitBias {
  TokenId token;
  float bias = 0.0F;  ///< finite
  bool operator==(const LogitBias&) const = default;
};

/// Plain value. The rules shape a row of logits first (LogitShaper, sampling/shaper.h), in this order:
///   1. tokens that must not be drawn get -inf: all but `allowed` when it is not empty, `banned`, what a
///      grammar forbids, and the stop ids before `min_tokens` tokens of output;
///   2. logit_bias is added;
///   3. repetition_penalty r: logits above 0 of tokens that prompt or output hold are divided by r, others
///      multiplied; then frequency_penalty times the token's count in the output is subtracted, then
///      presence_penalty if that count is not 0.
/// Then a token is drawn from the shaped row (Sampler, sampling/sampler.h). `temperature == 0` is greedy: the
/// largest shaped logit, the fields below `temperature` up to `seed` being ignored. Otherwise, each rule
/// applying to what the one before left:
///   4. temperature: logits are divided by it;
///   5. min_p: tokens under min_p times the likeliest one go;
///   6. top_k: the k likeliest stay;
///   7. top_p: the smallest head, likeliest first, stays whose share of the mass left reaches top_p (one
///      token at least);
/// and the rest is renormalised. Equal logits count as ordered by token id, the lower one likelier.
struct SamplingRules {
  float temperature = 0.0F;  ///< finite, >= 0
  std::int32_t top_k = 0;    ///< >= 0; 0 keeps all
  float top_p = 1.0F;        ///< in (0, 1]; 1 keeps all
  float min_p = 0.0F;        ///< in [0, 1]; 0 keeps all
  std::uint64_t seed = 0;    ///< key of the request's random numbers

  float repetition_penalty = 1.0F;  ///< finite, > 0; 1 changes nothing
  float presence_penalty = 0.0F;    ///< in [-2, 2]
  float frequency_penalty = 0.0F;   ///< in [-2, 2]
  std::vector<LogitBias> logit_bias{};
  std::vector<TokenId> banned{};
  std::vector<TokenId> allowed{};  ///< empty: every token
  std::uint32_t min_tokens = 0;
  /// How many of the prompt's last tokens count as output: those of a request that goes on.
  std::uint32_t carried = 0;

  [[nodiscard]] bool greedy() const noexcept { return temperature == 0.0F; }
  /// True when some token may be dropped by rules 5 to 7.
  [[nodiscard]] bool truncates() const noexcept { return top_k > 0 || top_p < 1.0F || min_p > 0.0F; }
  /// Throws UsageError naming the first field that is out of range, a negative token or one given two biases
  /// included.
  void validate() const;
  /// The same for the fields of the draw alone, up to `seed`. O(1).
  void validate_draw() const;

  bool operator==(const SamplingRules&) const = default;
};

}  // namespace acespec
