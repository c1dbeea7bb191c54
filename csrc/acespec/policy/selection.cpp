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

double tokens_of(std::span<const float> weights) {
  double tokens = 1.0;
  for (const float w : weights) {
    tokens += static_cast<double>(w);
  }
  return tokens;
}

}  // namespace

std::size_t best_count(std::span<const float> weights, const Prices& prices, double rate) {
  require_weights(weights);
  require_amount("node", prices.node);
  require_positive("rate", rate);
  std::size_t count = 0;
  while (count < weights.size() && static_cast<double>(weights[count]) >= rate * prices.node) {
    ++count;
  }
  return count;
}

double expected_rate(std::span<const float> weights, std::size_t count, const Prices& prices) {
  require_weights(weights);
  require_positive("round", prices.round);
  require_amount("node", prices.node);
  if (count > weights.size()) {
    throw UsageError("count is " + std::to_string(count) + "; there are " + std::to_string(weights.size()) +
                     " weights");
  }
  return tokens_of(weights.first(count)) / (prices.round + prices.node * static_cast<double>(count));
}

Selection best_ratio(std::span<const float> weights, const Prices& prices) {
  require_weights(weights);
  require_positive("round", prices.round);
  require_amount("node", prices.node);
  // Weights fall, so the first node that does not raise the rate ends the search.
  Selection best{0, 1.0 / prices.round};
  double tokens = 1.0;
  for (const float w : weights) {
    tokens += static_cast<double>(w);
    const double rate = tokens / (prices.round + prices.node * static_cast<double>(best.count + 1));
    if (rate <= best.rate) {
      break;
    }
    best = {best.count + 1, rate};
  }
  return best;
}

}  // namespace acespec
