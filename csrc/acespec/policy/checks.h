// What every estimator demands of its numbers.
#pragma once

#include <cmath>
#include <string>

#include "acespec/base/error.h"

namespace acespec {

/// Throws UsageError naming the field and its value unless `holds`; `right` says what would be right.
inline void require(bool holds, const char* field, double value, const char* right) {
  if (!holds) {
    throw UsageError(std::string(field) + " is " + std::to_string(value) + "; it must be " + right);
  }
}

inline void require_amount(const char* field, double value) {
  require(std::isfinite(value) && value >= 0.0, field, value, "finite and at least 0");
}

inline void require_positive(const char* field, double value) {
  require(std::isfinite(value) && value > 0.0, field, value, "finite and above 0");
}

inline void require_probability(const char* field, double value) {
  require(value >= 0.0 && value <= 1.0, field, value, "from 0 to 1");
}

}  // namespace acespec
