#include "acespec/policy/draft_length.h"

#include <string>

#include "acespec/policy/checks.h"

namespace acespec {

std::size_t best_length(std::span<const double> prefix, std::span<const double> seconds, std::size_t most) {
  require_rising("seconds", seconds, most + 1);
  require_positive("seconds", seconds[0]);
  if (prefix.empty()) {
    throw UsageError("prefix is empty; it must hold the probability that the first token is accepted");
  }
  double before = 1.0;
  double ratio = 1.0;
  for (const double p : prefix) {
    require(p >= 0.0 && p <= before, "a prefix probability", p, "from 0 to the one before it");
    ratio = before > 0.0 ? p / before : 0.0;
    before = p;
  }
  constexpr double kRounding = 1.0 + 1e-12;
  std::size_t best = 0;
  double best_rate = 0.0;
  double next = 1.0;
  double tokens = 1.0;
  for (std::size_t length = 1; length <= most; ++length) {
    next = length <= prefix.size() ? prefix[length - 1] : next * ratio;
    tokens += next;
    const double rate = tokens / seconds[length];
    if (rate > best_rate * kRounding) {
      best_rate = rate;
      best = length;
    }
  }
  return best;
}

}  // namespace acespec
