// How long a message takes there and back.
#pragma once

#include <array>
#include <cstdint>

namespace acespec {

/// Smoothed round trip and its mean deviation, in seconds, with the gains of RFC 6298 (1/8 and 1/4).
///
/// Until the first sample it is that of the AceSpec paper's emulated network, 150 ms. `at` is the time of a
/// sample on any one clock that never goes back. A *rough* sample, one that holds more than a round trip,
/// stands in until there is another kind and is ignored from then on. After more than kIdle seconds without a
/// sample the next one begins anew. One sample far above the rest counts as smoothed + 8 deviations, a second
/// in a row in full.
///
/// Not thread-safe. O(1), no allocation; quantile99() O(kIdle).
class RoundTrip {
 public:
  static constexpr double kUnmeasured = 0.150;
  static constexpr double kIdle = 30.0;

  /// Throws UsageError when a number is negative or not finite, or `at` lies before the last sample's.
  void observe(double seconds, double at, bool rough = false);

  [[nodiscard]] bool known() const noexcept { return known_; }
  [[nodiscard]] double seconds() const noexcept { return smoothed_; }
  [[nodiscard]] double deviation() const noexcept { return deviation_; }
  /// What 99 of 100 exchanges stay under: smoothed + 4 deviations, but no more than the largest sample of the
  /// kIdle seconds up to the last one.
  [[nodiscard]] double quantile99() const;

 private:
  struct Largest {
    std::int64_t second = -1;  // that its sample is of
    double seconds = 0.0;
  };

  void begin(double seconds);
  void smooth(double seconds);
  void record(double seconds);

  bool known_ = false;
  bool rough_ = false;
  bool outlier_before_ = false;
  double smoothed_ = kUnmeasured;
  double deviation_ = kUnmeasured / 2;
  double last_at_ = 0.0;
  std::array<Largest, static_cast<std::size_t>(kIdle)> window_{};
};

}  // namespace acespec
