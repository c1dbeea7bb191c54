#include "acespec/policy/affine_cost.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "acespec/policy/checks.h"

namespace acespec {

namespace {

constexpr double kDeviationWindow = 16.0;
/// Of the prediction: a line that fits exactly still tolerates this much.
constexpr double kLeastDeviation = 0.01;
/// What the old level is worth, in samples, once four have shown that it is gone.
constexpr double kFaint = 0.25;

}  // namespace

AffineCost::AffineCost(double base, double per_unit, double weight, double size)
    : prior_weight_(weight),
      slope_(per_unit),
      slope_weight_(weight * size * size / 4),
      mean_seconds_(base),
      spread_(size * size),
      deviation_(base / 2) {
  require_amount("base", base);
  require_amount("per_unit", per_unit);
  require_positive("weight", weight);
  require_positive("size", size);
}

void AffineCost::observe(double n, double seconds) {
  require_amount("n", n);
  require_amount("seconds", seconds);
  if (samples_ == 0) {
    // A level that only was assumed would pass for the effect of the next sample's size.
    mean_seconds_ = seconds;
    mean_n_ = n;
    deviation_ = seconds / 2;
  }
  ++samples_;
  widen(n);
  const double predicted = (*this)(n);
  const double residual = seconds - predicted;
  const double tolerance = kTolerance * std::max(deviation_, kLeastDeviation * predicted);
  deviation_ += (std::min(std::abs(residual), tolerance) - deviation_) /
                std::min(static_cast<double>(samples_) + 1.0, kDeviationWindow);
  if (std::abs(residual) <= tolerance) {
    run_length_ = 0;
    fit({n, seconds});
    return;
  }
  if (const bool above = residual > 0.0; above != run_above_) {
    run_above_ = above;
    run_length_ = 0;
  }
  run_[run_length_++] = {n, seconds};
  if (run_length_ == run_.size()) {
    move_to_run();
  } else {
    fit({n, predicted + (run_above_ ? tolerance : -tolerance)});
  }
}

// One step of recursive least squares about the running means. A point at distance dx from the mean of W
// samples adds W / (W + 1) dx^2 to the sum of squares.
void AffineCost::fit(const Sample& sample) {
  const double gain = 1.0 / std::min(mean_weight_ + 1.0, kWindow);
  const double dx = sample.n - mean_n_;
  const double dy = sample.seconds - mean_seconds_;
  const double told = (1.0 - gain) * dx * dx;
  if (told > 0.0) {
    const double fading = std::min(slope_weight_ / kWindow, told);
    slope_weight_ += told - fading;
    slope_ += (1.0 - gain) * dx * (dy - slope_ * dx) / slope_weight_;
  }
  mean_n_ += gain * dx;
  mean_seconds_ = std::max(0.0, mean_seconds_ + gain * dy);
  mean_weight_ = std::min(mean_weight_ + 1.0, kWindow);
  slope_ = std::max(0.0, slope_);
  if (slope_ * mean_n_ > mean_seconds_) {
    slope_ = mean_seconds_ / mean_n_;
  }
}

// A prior of `weight` samples spread from 0 to the largest size has a sum of squares of weight * largest^2 /
// 4; it is entered as the largest size becomes known.
void AffineCost::widen(double n) {
  spread_ -= spread_ / kWindow;
  if (n * n > spread_) {
    slope_weight_ += prior_weight_ * (n * n - spread_) / 4;
    spread_ = n * n;
  }
}

void AffineCost::move_to_run() {
  run_length_ = 0;
  mean_weight_ = kFaint;
  slope_weight_ = std::min(slope_weight_, prior_weight_ * spread_ / 4);
  if (!run_above_) {
    // Where the whole fell, its parts did: sizes that are all alike would not show it for the slope.
    double n = 0.0;
    double seconds = 0.0;
    for (const Sample& sample : run_) {
      n += sample.n;
      seconds += sample.seconds;
    }
    slope_ = n > 0.0 ? std::min(slope_, seconds / n / 2) : slope_;
  }
  for (const Sample& sample : run_) {
    fit(sample);
  }
}

}  // namespace acespec
