// How long a forward takes by its nodes: the drafter's by those it expands, the target's by those it
// verifies.
#pragma once

#include <cstddef>
#include <vector>

namespace acespec {

/// Forward time as a function of width, 1 to max_width: a mean per measured width (gain 1/8), made monotone
/// by isotonic regression, linear between measured widths. Beyond the widest one a node costs what it did
/// from half of that width on, and no less than the average over all measured; below the narrowest that
/// average, so that narrow forwards seem cheap, which is right or will be tried. Before the second width is
/// measured, a node costs `node_share` of a forward of width 1. A width that has not been seen for a while is
/// forgotten: one dear sample must not keep it from being tried again.
///
/// A sample far off its width's mean is clamped; the fourth in a row on the same side, at whatever widths,
/// shows that the device has changed its pace (heat, a power mode): all widths follow by their common factor.
///
/// Not thread-safe. observe() O(max_width), nodes_within() O(log max_width), seconds() O(1); memory at
/// construction alone.
class WidthCurve {
 public:
  static constexpr std::size_t kMostWidth = 4096;

  /// Throws UsageError when max_width is 0 or above kMostWidth, the guess (of width 1) not positive, or the
  /// share negative.
  WidthCurve(std::size_t max_width, double first_guess_seconds, double node_share);

  /// Throws UsageError when `width` is not in 1..max_width or `seconds` not positive and finite.
  void observe(std::size_t width, double seconds);

  [[nodiscard]] std::size_t max_width() const noexcept { return curve_.size(); }
  /// Expected seconds of a forward of `width` nodes. Throws UsageError when that is not in 1..max_width.
  [[nodiscard]] double seconds(std::size_t width) const;
  /// Expected seconds of all widths from 1 on.
  [[nodiscard]] const std::vector<double>& table() const noexcept { return curve_; }
  /// T_tree^-1: nodes that forwards of `width`, and a narrower one at the end, expand in `seconds`. At most
  /// kMostNodes. Throws UsageError for a width not in 1..max_width, or NaN.
  [[nodiscard]] std::size_t nodes_within(double seconds, std::size_t width) const;
  static constexpr std::size_t kMostNodes = 1U << 20U;

 private:
  struct Measured {
    double mean = 0.0;
    double weight = 0.0;  // samples behind the mean, kWindow at most; 0: not measured
  };
  struct Block {
    double mean;
    double weight;
    std::size_t last;  // width of the block's last measured one
  };

  void require_width(std::size_t width) const;
  [[nodiscard]] double prior_shape(std::size_t width) const;
  /// The widest forward that takes at most `seconds`; 0 when none does.
  [[nodiscard]] std::size_t widest_within(double seconds) const;
  void take(Measured& at, double seconds);
  void follow(double ratio);
  void fit();
  void draw();

  double node_share_;
  std::vector<Measured> measured_;  // by width - 1
  std::vector<double> curve_;       // by width - 1, never falls
  std::vector<Block> blocks_;       // scratch of fit()
  double deviation_ = 0.0;          // mean |sample / mean - 1|
  bool known_ = false;
  std::size_t run_length_ = 0;  // samples too far off in a row, all on one side
  double run_ratio_ = 1.0;      // product of their ratios to the means
  bool run_above_ = false;
};

}  // namespace acespec
