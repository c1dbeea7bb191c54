// What every estimator demands of its numbers.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
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

/// For values of which each is at least the one before it.
inline void require_rising(const char* field, std::span<const double> values, std::size_t least) {
  if (values.size() < least) {
    throw UsageError(std::string(field) + " holds " + std::to_string(values.size()) +
                     " values; it must hold at least " + std::to_string(least));
  }
  double before = 0.0;
  for (const double value : values) {
    require(std::isfinite(value) && value >= before, field, value, "finite and at least the one before it");
    before = value;
  }
}

}  // namespace acespec
