// The rules that change logits: what may be drawn at all, biases and penalties.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "acespec/base/ids.h"
#include "acespec/sampling/rules.h"

namespace acespec {

/// Rules 1 to 3 of sampling/rules.h for one request, whose prompt and output it counts. Tokens of a path that
/// is only drafted count for the row that they lead to, and leave no trace.
///
/// Every operation is one of IEEE single precision, rounded by itself and in the order of the rules, so that
/// rows are equal bit for bit wherever they are shaped. Memory for one vocabulary is taken at construction
/// when the rules shape, otherwise by the first row that has a mask. Not thread-safe.
class LogitShaper {
 public:
  /// Throws UsageError for bad rules, a token of them or of the prompt outside the vocabulary, more carried
  /// tokens than the prompt has. A stop id outside the vocabulary cannot be drawn and is passed over.
  LogitShaper(std::size_t vocabulary, const SamplingRules& rules, std::span<const TokenId> prompt,
              std::span<const TokenId> stop_ids);

  /// Appends `tokens` to the output. Throws UsageError when one lies outside the vocabulary.
  void commit(std::span<const TokenId> tokens);

  /// False when every row without a mask is left as it is, now and later.
  [[nodiscard]] bool shapes() const noexcept;

  /// The row after the committed tokens and `path`. `mask`: bit t % 32 of word t / 32 allows token t; none at
  /// all, or one for each token of the vocabulary. Returns `vocabulary` columns, valid until the next call,
  /// or `logits` itself when nothing is to be done. O(V + distinct tokens counted).
  /// Throws UsageError when `logits` or a mask is shorter than the vocabulary, or a token lies outside it.
  [[nodiscard]] std::span<const float> shape(std::span<const float> logits, std::span<const TokenId> path,
                                             std::span<const std::uint32_t> mask = {});

 private:
  [[nodiscard]] bool penalizes() const noexcept;
  [[nodiscard]] bool withholds_stops(std::size_t drafted) const noexcept;
  void check(const char* what, std::span<const TokenId> tokens) const;
  void count(TokenId token);
  void discount(TokenId token);
  void rule_out(std::span<const float> logits, std::span<const std::uint32_t> mask, bool stops_withheld);
  void penalize();

  std::size_t vocabulary_;
  SamplingRules rules_;
  std::vector<TokenId> stop_ids_;
  std::size_t output_ = 0;             // tokens of it
  std::vector<std::uint32_t> counts_;  // of each token in the output
  std::vector<bool> prompted_;         // tokens the prompt holds
  std::vector<TokenId> seen_;          // tokens that prompt or output hold, each once
  std::vector<float> row_;
};

}  // namespace acespec
