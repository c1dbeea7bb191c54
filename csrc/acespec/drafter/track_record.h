// How well the drafter has foretold the target.
#pragma once

#include <algorithm>

#include "acespec/lookup/match_record.h"
#include "acespec/policy/calibration.h"

namespace acespec {

/// What verdicts have taught about one kind of request. O(1), allocates only at construction. Not
/// thread-safe.
class TrackRecord {
 public:
  explicit TrackRecord(float sharpness) : calibration(sharpness) {}

  /// Whether the target took the first candidate at a place that its text ran through.
  void observe_first(bool taken) {
    samples_ = std::min(samples_ + 1.0F, kWindow);
    acceptance_ += ((taken ? 1.0F : 0.0F) - acceptance_) / samples_;
  }

  /// Share of first candidates that the target took, the later ones counting more; 0.8 before anything is
  /// known, always inside (0, 1).
  [[nodiscard]] float acceptance() const { return std::clamp(acceptance_, 0.01F, 0.99F); }

  Calibration calibration;  ///< of what the model proposes
  MatchRecord matches;      ///< of what is looked up

 private:
  static constexpr float kWindow = 128.0F;

  float acceptance_ = 0.8F;
  float samples_ = 16.0F;  // what the prior counts for
};

}  // namespace acespec
