// Which tokens the rules leave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "acespec/sampling/rules.h"

namespace acespec {

/// A token and its logit.
struct Scored {
  float logit;
  std::int32_t token;
};

[[nodiscard]] inline bool likelier(const Scored& a, const Scored& b) noexcept {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

/// A row of logits, none of them NaN or +Inf, and what is known about it.
struct LogitRow {
  std::span<const float> logits;
  std::span<const float> tile_max;  ///< largest logit of each kernels::kTile tokens
  float top = 0.0F;                 ///< largest logit, finite
};

/// Fills `kept` with the `count` largest finite logits (fewer when there are not so many), likeliest first.
/// Uses no memory beyond what `kept` has reserved for a whole vocabulary. O(V + kept log kept).
void keep_largest(const LogitRow& row, std::size_t count, std::vector<Scored>& kept);

/// Fills `kept` with the tokens that min_p, top_k and top_p leave (sampling/rules.h says how), in any order.
/// Memory as above, O(V + k log k) with k the tokens that need an order; `rules` is valid, truncates, and is
/// not greedy.
void keep_by_rules(const LogitRow& row, const SamplingRules& rules, std::vector<Scored>& kept);

}  // namespace acespec
