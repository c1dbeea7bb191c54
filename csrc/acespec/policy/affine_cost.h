// What something costs by its size, learned while it is paid.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace acespec {

/// Online estimate of `seconds = base + per_unit * n`, both at least 0.
///
/// Weighted least squares in which a sample fades over kWindow later ones. The slope fades only as fast as
/// new samples tell about it: while all n are equal, it stays and the base alone moves. A sample further from
/// the line than kTolerance mean deviations counts as one at that distance; the fourth in a row on the same
/// side shows that the line has moved: what was known becomes a faint prior, and the four are fitted whole.
///
/// Not thread-safe. O(1), no allocation.
class AffineCost {
 public:
  static constexpr double kWindow = 64.0;
  static constexpr double kTolerance = 5.0;

  /// A slope worth `weight` samples of sizes from 0 to `size`, or to the largest seen if that is more, and a
  /// base that holds until the first sample. Throws UsageError when `base` or `per_unit` is negative,
  /// `weight` or `size` not positive, or one of them not finite.
  AffineCost(double base, double per_unit, double weight, double size);

  /// Throws UsageError when a number is negative or not finite.
  void observe(double n, double seconds);

  /// Expected seconds of size `n`.
  [[nodiscard]] double operator()(double n) const { return base() + slope_ * n; }
  [[nodiscard]] double base() const { return std::max(0.0, mean_seconds_ - slope_ * mean_n_); }
  [[nodiscard]] double per_unit() const noexcept { return slope_; }
  /// Mean distance of a sample from the line, seconds; half of it before there is any.
  [[nodiscard]] double deviation() const noexcept { return deviation_; }
  [[nodiscard]] std::size_t samples() const noexcept { return samples_; }

 private:
  struct Sample {
    double n = 0.0;
    double seconds = 0.0;
  };

  void fit(const Sample& sample);
  void widen(double n);
  void move_to_run();

  double prior_weight_;
  double slope_;
  double slope_weight_;  // sum of squared distances from the mean size that the slope rests on
  double mean_n_ = 0.0;
  double mean_seconds_;
  double mean_weight_ = 0.0;  // samples that the means rest on
  double spread_;             // square of the largest size, fading like a sample
  double deviation_;
  std::size_t samples_ = 0;
  std::array<Sample, 4> run_{};  // the last samples too far off, all on one side
  std::size_t run_length_ = 0;
  bool run_above_ = false;
};

}  // namespace acespec
