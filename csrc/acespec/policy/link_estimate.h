// What an exchange of messages over the network costs, by the bytes it carries.
#pragma once

#include "acespec/policy/affine_cost.h"
#include "acespec/policy/round_trip.h"

namespace acespec {

/// Seconds of an exchange = those of an empty one + price of a byte up * bytes up + the same down.
///
/// Learned from the traffic alone. Until something is measured: 150 ms and 50 kbit/s each way, the AceSpec
/// paper's network (arXiv:2609.02514). A rough exchange, one that holds more than the network's time, stands
/// in for the round trip until there is another kind, and bounds the price of a byte from above. Headers of
/// packets are part of the empty exchange.
///
/// Not thread-safe. O(1), no allocation.
class LinkEstimate {
 public:
  LinkEstimate();

  /// `seconds` from sending `bytes_up` to having `bytes_down`, the peer's own work taken off. `at`: the time
  /// on a clock that never goes back. Throws UsageError when a number is negative or not finite, or `at` lies
  /// before the last one.
  void observe(double bytes_up, double bytes_down, double seconds, double at, bool rough = false);

  /// False until the first exchange.
  [[nodiscard]] bool known() const noexcept { return empty_.known(); }
  /// Expected seconds of an exchange. Throws UsageError for sizes that are negative or not finite.
  [[nodiscard]] double round_trip(double bytes_up, double bytes_down) const;
  [[nodiscard]] double seconds_per_byte_up() const noexcept { return up_.per_unit(); }
  [[nodiscard]] double seconds_per_byte_down() const noexcept { return down_.per_unit(); }
  /// Bits per second; 1e12 at most, when a byte's price is too small to be told.
  [[nodiscard]] double up_bps() const noexcept;
  [[nodiscard]] double down_bps() const noexcept;
  /// Smoothed seconds of an empty exchange, and its mean deviation.
  [[nodiscard]] double rtt() const noexcept { return empty_.seconds(); }
  [[nodiscard]] double deviation() const noexcept { return empty_.deviation(); }

 private:
  RoundTrip empty_;
  AffineCost up_;      // of the exchange without its bytes down
  AffineCost down_;    // of the exchange without its bytes up; only the price of a byte is of use
  bool rough_ = true;  // no exchange but rough ones yet
};

}  // namespace acespec
