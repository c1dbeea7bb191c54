#include "acespec/sampling/rules.h"

#include <cmath>
#include <string>

#include "acespec/base/error.h"

namespace acespec {

void SamplingRules::validate() const {
  // Written so that NaN fails.
  if (!(temperature >= 0.0F) || std::isinf(temperature)) {
    throw UsageError("temperature is " + std::to_string(temperature) + "; it must be finite and at least 0");
  }
  if (top_k < 0) {
    throw UsageError("top_k is " + std::to_string(top_k) + "; it must be at least 0 (0 keeps all)");
  }
  if (!(top_p > 0.0F && top_p <= 1.0F)) {
    throw UsageError("top_p is " + std::to_string(top_p) + "; it must be above 0 and at most 1");
  }
  if (!(min_p >= 0.0F && min_p <= 1.0F)) {
    throw UsageError("min_p is " + std::to_string(min_p) + "; it must lie between 0 and 1");
  }
}

}  // namespace acespec
