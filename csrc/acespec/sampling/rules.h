// The request's sampling rules. Edge and cloud apply the same rules, through this one definition.
#pragma once

#include <cstdint>

namespace acespec {

/// Plain value. `temperature == 0` is greedy: the other fields but `seed` are then ignored.
///
/// Otherwise the rules apply in this order, each to what the one before left:
///   1. temperature: logits are divided by it;
///   2. min_p: tokens under min_p times the likeliest one go;
///   3. top_k: the k likeliest stay;
///   4. top_p: the smallest head, likeliest first, stays whose share of the mass left reaches top_p (one
///   token
///      at least);
/// and the rest is renormalised. Equal logits count as ordered by token id, the lower one likelier.
struct SamplingRules {
  float temperature = 0.0F;  ///< finite, >= 0
  std::int32_t top_k = 0;    ///< >= 0; 0 keeps all
  float top_p = 1.0F;        ///< in (0, 1]; 1 keeps all
  float min_p = 0.0F;        ///< in [0, 1]; 0 keeps all
  std::uint64_t seed = 0;    ///< key of the coupled noise

  [[nodiscard]] bool greedy() const noexcept { return temperature == 0.0F; }
  /// True when some token may be dropped before the draw.
  [[nodiscard]] bool truncates() const noexcept { return top_k > 0 || top_p < 1.0F || min_p > 0.0F; }
  /// Throws UsageError naming the first field that is out of range.
  void validate() const;

  bool operator==(const SamplingRules&) const = default;
};

}  // namespace acespec
