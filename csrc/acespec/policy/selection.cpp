#include "acespec/policy/selection.h"

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

}  // namespace acespec
