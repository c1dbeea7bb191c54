#include "acespec/policy/selection.h"

#include <string>

#include "acespec/policy/checks.h"

namespace acespec {

namespace {

void require_weights(std::span<const float> weights) {
  float before = 1.0F;
  for (const float w : weights) {
    require(w >= 0.0F && w <= before, "a weight", static_cast<double>(w),
            "from 0 to the one before it, or 1");
    before = w;
  }
}

}  // namespace

std::size_t best_count(std::span<const float> weights, std::span<const double> seconds, double rate) {
  require_weights(weights);
  require_rising("seconds", seconds, weights.size() + 1);
  require_positive("rate", rate);
  std::size_t count = 0;
  double tokens = 0.0;
  double best = 0.0;
  for (std::size_t n = 1; n <= weights.size(); ++n) {
    tokens += static_cast<double>(weights[n - 1]);
    const double gain = tokens - rate * (seconds[n] - seconds[0]);
    if (gain > best) {
      best = gain;
      count = n;
    }
  }
  return count;
}

}  // namespace acespec
