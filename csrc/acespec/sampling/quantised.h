// The distribution that the edge drafts from in residual mode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "acespec/base/ids.h"
#include "acespec/sampling/sampler.h"

namespace acespec {

/// Integer weights that sum to kTotal, so that a weight on the wire is the very probability that the token
/// was drawn with. Immutable; holds the tokens of weight 1 or more, sorted, and takes memory at construction
/// alone.
class QuantisedDistribution {
 public:
  static constexpr std::uint32_t kTotal = 65536;
  /// Candidates taken at most: what lies deeper goes to the likeliest.
  static constexpr std::size_t kMostTokens = 4096;

  /// No distribution: nothing has a weight, and nothing can be drawn.
  QuantisedDistribution() = default;
  /// From distinct candidates, likeliest first: floor(p * kTotal) each, and what is left of kTotal to the
  /// first. Throws UsageError when there are none, or more than kMostTokens.
  explicit QuantisedDistribution(std::span<const Candidate> likeliest);

  /// The token that a uniform word picks: by its upper half, in the order of token ids. Must not be empty.
  [[nodiscard]] TokenId draw(std::uint32_t word) const;
  /// 0 for a token that cannot be drawn. O(log size).
  [[nodiscard]] std::uint32_t weight(TokenId token) const noexcept;
  [[nodiscard]] double probability(TokenId token) const noexcept {
    return static_cast<double>(weight(token)) / static_cast<double>(kTotal);
  }

  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  /// The tokens that can be drawn, by id.
  [[nodiscard]] std::vector<TokenId> tokens() const;

 private:
  struct Entry {
    TokenId token;
    std::uint32_t end;  // of the token's share of [0, kTotal)
  };

  std::vector<Entry> entries_;
};

}  // namespace acespec
