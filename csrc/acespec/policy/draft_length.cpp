#include "acespec/policy/draft_length.h"

#include <string>

#include "acespec/policy/checks.h"

namespace acespec {

std::size_t best_length(std::span<const double> prefix, double round, double per_token, std::size_t most) {
  require_positive("round", round);
  require_amount("per_token", per_token);
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
  if (most == 0) {
    return 0;
  }
  // Each further token adds at most what the one before did, so the first that does not pay ends the search:
  // one pays iff its probability times the time so far exceeds its own time times the tokens so far, by more
  // than rounding.
  constexpr double kRounding = 1.0 + 1e-12;
  std::size_t length = 1;
  double next = prefix[0];
  double tokens = 1.0 + next;
  while (length < most) {
    next = length < prefix.size() ? prefix[length] : next * ratio;
    if (next * (round + per_token * static_cast<double>(length)) <= per_token * tokens * kRounding) {
      break;
    }
    tokens += next;
    ++length;
  }
  return length;
}

}  // namespace acespec
