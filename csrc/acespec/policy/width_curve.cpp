#include "acespec/policy/width_curve.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "acespec/policy/checks.h"

namespace acespec {

namespace {

constexpr double kWindow = 8.0;
constexpr double kTolerance = 4.0;       // deviations
constexpr double kLeastTolerance = 0.2;  // of the mean
/// How far the first sample of a width may be below and above what the others foretell: whatever else a
/// machine does makes it slower.
constexpr double kFirstBelow = 4.0;
constexpr double kFirstAbove = 2.0;
/// What a sample leaves of the weight of those of other widths, and the weight under which these are
/// forgotten.
constexpr double kFade = 1.0 - 1.0 / 24;
constexpr double kForgotten = 0.4;
constexpr std::size_t kRun = 4;

}  // namespace

WidthCurve::WidthCurve(std::size_t max_width, double first_guess_seconds, double node_share)
    : node_share_(node_share) {
  if (max_width == 0 || max_width > kMostWidth) {
    throw UsageError("max_width is " + std::to_string(max_width) + "; it must be from 1 to " +
                     std::to_string(kMostWidth));
  }
  require_positive("first_guess_seconds", first_guess_seconds);
  require_amount("node_share", node_share);
  measured_.resize(max_width);
  curve_.reserve(max_width);
  blocks_.reserve(max_width);
  for (std::size_t width = 1; width <= max_width; ++width) {
    curve_.push_back(first_guess_seconds * prior_shape(width));
  }
}

double WidthCurve::prior_shape(std::size_t width) const {
  return 1.0 + node_share_ * static_cast<double>(width - 1);
}

void WidthCurve::require_width(std::size_t width) const {
  if (width == 0 || width > max_width()) {
    throw UsageError("width is " + std::to_string(width) + "; it must be from 1 to max_width, " +
                     std::to_string(max_width()));
  }
}

void WidthCurve::observe(std::size_t width, double seconds) {
  require_width(width);
  require_positive("seconds", seconds);
  Measured& at = measured_[width - 1];
  if (!known_) {
    known_ = true;
    take(at, seconds);
  } else if (at.weight == 0.0) {
    const double foretold = curve_[width - 1];
    take(at, std::clamp(seconds, foretold / kFirstBelow, foretold * kFirstAbove));
  } else {
    const double ratio = seconds / at.mean;
    const double tolerance = std::max(kTolerance * deviation_, kLeastTolerance);
    const double clamped = std::clamp(ratio, 1.0 / (1.0 + tolerance), 1.0 + tolerance);
    deviation_ += (std::abs(clamped - 1.0) - deviation_) / (2 * kWindow);
    if (clamped == ratio) {
      run_length_ = 0;
    } else if (run_length_ == 0 || run_above_ != (ratio > 1.0)) {
      run_above_ = ratio > 1.0;
      run_length_ = 1;
      run_ratio_ = ratio;
    } else {
      ++run_length_;
      run_ratio_ *= ratio;
    }
    if (run_length_ == kRun) {
      follow(std::pow(run_ratio_, 1.0 / static_cast<double>(kRun)));
    } else {
      take(at, at.mean * clamped);
    }
  }
  fit();
}

void WidthCurve::take(Measured& at, double seconds) {
  for (Measured& other : measured_) {
    other.weight *= &other == &at ? 1.0 : kFade;
    other.weight = other.weight < kForgotten ? 0.0 : other.weight;
  }
  const double before = std::min(at.weight, kWindow - 1.0);
  at.weight = before + 1.0;
  at.mean = (before * at.mean + seconds) / at.weight;
}

void WidthCurve::follow(double ratio) {
  run_length_ = 0;
  for (Measured& at : measured_) {
    at.mean *= ratio;
  }
}

// Isotonic regression by pooling adjacent violators, over the measured widths.
void WidthCurve::fit() {
  blocks_.clear();
  for (std::size_t width = 1; width <= max_width(); ++width) {
    const Measured& at = measured_[width - 1];
    if (at.weight == 0.0) {
      continue;
    }
    blocks_.push_back({at.mean, at.weight, width});
    while (blocks_.size() > 1 && blocks_[blocks_.size() - 2].mean >= blocks_.back().mean) {
      const Block last = blocks_.back();
      blocks_.pop_back();
      Block& pooled = blocks_.back();
      pooled.mean = (pooled.mean * pooled.weight + last.mean * last.weight) / (pooled.weight + last.weight);
      pooled.weight += last.weight;
      pooled.last = last.last;
    }
  }
  draw();
}

// The curve through the blocks: straight lines in between, and on beyond the widest, as it rises from half of
// that width, and below the narrowest.
void WidthCurve::draw() {
  std::size_t first = 0;   // narrowest measured width
  std::size_t before = 0;  // the measured width before this one
  std::size_t block = 0;
  for (std::size_t width = 1; width <= max_width(); ++width) {
    if (measured_[width - 1].weight == 0.0) {
      continue;
    }
    block += static_cast<std::size_t>(blocks_[block].last < width);
    const double seconds = blocks_[block].mean;
    curve_[width - 1] = seconds;
    if (first == 0) {
      first = width;
    } else {
      const double slope = (seconds - curve_[before - 1]) / static_cast<double>(width - before);
      for (std::size_t between = before + 1; between < width; ++between) {
        curve_[between - 1] = curve_[before - 1] + slope * static_cast<double>(between - before);
      }
    }
    before = width;
  }
  const double narrowest = curve_[first - 1];
  const double widest = curve_[before - 1];
  double below = narrowest * node_share_ / prior_shape(first);
  double slope = below;
  if (first < before) {
    below = (widest - narrowest) / static_cast<double>(before - first);
    const std::size_t half = std::max(first, before / 2);
    slope = std::max(below, (widest - curve_[half - 1]) / static_cast<double>(before - half));
  }
  for (std::size_t wider = before + 1; wider <= max_width(); ++wider) {
    curve_[wider - 1] = widest + slope * static_cast<double>(wider - before);
  }
  // A forward takes no less than its part of a wider one, which could else be divided.
  for (std::size_t narrower = 1; narrower < first; ++narrower) {
    const double part = static_cast<double>(narrower) / static_cast<double>(first);
    curve_[narrower - 1] =
        std::max(narrowest * part, narrowest - below * static_cast<double>(first - narrower));
  }
}

double WidthCurve::seconds(std::size_t width) const {
  require_width(width);
  return curve_[width - 1];
}

std::size_t WidthCurve::widest_within(double seconds) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(curve_, seconds) - curve_.begin());
}

std::size_t WidthCurve::nodes_within(double seconds, std::size_t width) const {
  require_width(width);
  require(!std::isnan(seconds), "seconds", seconds, "a number");
  const std::size_t last = widest_within(seconds);
  const double forwards = std::max(0.0, std::floor(seconds / curve_[width - 1]));
  if (forwards * static_cast<double>(width) >= static_cast<double>(kMostNodes)) {
    return kMostNodes;
  }
  const std::size_t whole = static_cast<std::size_t>(forwards) * width;
  const double left = seconds - forwards * curve_[width - 1];
  return whole + std::min({widest_within(left), width, last});
}

}  // namespace acespec
