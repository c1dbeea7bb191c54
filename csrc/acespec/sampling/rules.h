// The request's sampling rules. Edge and cloud apply the same rules, through this one definition.
#pragma once

#include <cstdint>

namespace acespec {

/// Plain value. `temperature == 0` is greedy: the other fields but `seed` are then ignored.
struct SamplingRules {
  float temperature = 0.0F;  ///< >= 0; logits are divided by it
  std::int32_t top_k = 0;    ///< keep the k likeliest tokens; 0 keeps all
  float top_p = 1.0F;        ///< keep the smallest head whose mass reaches top_p; in (0, 1]
  float min_p = 0.0F;        ///< drop tokens under min_p times the likeliest; in [0, 1]
  std::uint64_t seed = 0;    ///< key of the coupled noise

  [[nodiscard]] bool greedy() const noexcept { return temperature == 0.0F; }
  /// Throws UsageError naming the first field that is out of range.
  void validate() const;

  bool operator==(const SamplingRules&) const = default;
};

}  // namespace acespec
