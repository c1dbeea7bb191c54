#include "acespec/policy/round_trip.h"

#include <algorithm>
#include <cmath>

#include "acespec/policy/checks.h"

namespace acespec {

namespace {

constexpr double kGain = 1.0 / 8;
constexpr double kDeviationGain = 1.0 / 4;
constexpr double kOutlier = 8.0;
/// Of the smoothed value: the least deviation that an outlier is measured by.
constexpr double kLeastDeviation = 1.0 / 64;
/// A clock of seconds beyond this has lost the milliseconds.
constexpr double kLatest = 1e12;

std::int64_t second_of(double at) {
  return static_cast<std::int64_t>(at);
}

}  // namespace

void RoundTrip::observe(double seconds, double at, bool rough) {
  require_amount("seconds", seconds);
  require(at >= 0.0 && at <= kLatest, "at", at, "a time from 0 to 1e12 seconds");
  require(at >= last_at_, "at", at, "no earlier than the last sample's");
  const bool idle = known_ && at - last_at_ > kIdle;
  if (known_ && !idle && rough && !rough_) {
    return;
  }
  last_at_ = at;
  if (!known_ || idle || (rough_ && !rough)) {
    begin(seconds);
  } else {
    smooth(seconds);
  }
  known_ = true;
  rough_ = rough;
  record(seconds);
}

void RoundTrip::begin(double seconds) {
  smoothed_ = seconds;
  deviation_ = seconds / 2;
  outlier_before_ = false;
  window_.fill({});
}

void RoundTrip::smooth(double seconds) {
  const double bound = smoothed_ + kOutlier * std::max(deviation_, kLeastDeviation * smoothed_);
  const bool outlier = seconds > bound;
  const double counted = outlier && !outlier_before_ ? bound : seconds;
  outlier_before_ = outlier;
  deviation_ += kDeviationGain * (std::abs(counted - smoothed_) - deviation_);
  smoothed_ += kGain * (counted - smoothed_);
}

void RoundTrip::record(double seconds) {
  const std::int64_t second = second_of(last_at_);
  Largest& kept = window_[static_cast<std::size_t>(second) % window_.size()];
  if (kept.second != second) {
    kept = {second, seconds};
  }
  kept.seconds = std::max(kept.seconds, seconds);
}

double RoundTrip::quantile99() const {
  const std::int64_t after = second_of(last_at_) - static_cast<std::int64_t>(window_.size());
  double most = -1.0;
  for (const Largest& kept : window_) {
    if (kept.second >= 0 && kept.second > after) {
      most = std::max(most, kept.seconds);
    }
  }
  const double high = smoothed_ + 4 * deviation_;
  return most < 0.0 ? high : std::clamp(most, smoothed_, std::max(smoothed_, high));
}

}  // namespace acespec
