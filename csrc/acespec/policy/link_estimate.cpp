#include "acespec/policy/link_estimate.h"

#include <algorithm>

#include "acespec/policy/checks.h"

namespace acespec {

namespace {

/// Seconds a byte takes at 50 kbit/s.
constexpr double kUnmeasuredPrice = 8.0 / 50e3;
constexpr double kPriorWeight = 0.5;
/// Bytes of a message that differs from the next one by as much as drafts do.
constexpr double kPriorSize = 100.0;
/// What bytes may be of any exchange, and of the first one, when sizes have told nothing yet.
constexpr double kMostShare = 0.9;
constexpr double kFirstShare = 0.5;
constexpr double kMostBps = 1e12;

double bits_per_second(double seconds_per_byte) {
  return seconds_per_byte > 8.0 / kMostBps ? 8.0 / seconds_per_byte : kMostBps;
}

/// What is left of an exchange once one direction's bytes are paid. While the prices are still far too high,
/// neither direction takes the other's half.
double without(double seconds, double bytes) {
  return seconds - std::min(bytes, seconds / 2);
}

}  // namespace

LinkEstimate::LinkEstimate()
    : up_(RoundTrip::kUnmeasured, kUnmeasuredPrice, kPriorWeight, kPriorSize),
      down_(RoundTrip::kUnmeasured, kUnmeasuredPrice, kPriorWeight, kPriorSize) {}

void LinkEstimate::observe(double bytes_up, double bytes_down, double seconds, double at, bool rough) {
  require_amount("bytes_up", bytes_up);
  require_amount("bytes_down", bytes_down);
  require_amount("seconds", seconds);
  const bool first = rough_ && !rough;
  double up_price = seconds_per_byte_up();
  double down_price = seconds_per_byte_down();
  double paid = up_price * bytes_up + down_price * bytes_down;
  const double most = seconds * (first ? kFirstShare : kMostShare);
  const bool too_dear = (rough || first) && paid > most;
  if (too_dear) {
    up_price *= most / paid;
    down_price *= most / paid;
  }
  const double empty = seconds - std::min(paid, most);
  empty_.observe(empty, at, rough);
  if (first || too_dear) {
    up_ = AffineCost(empty, up_price, kPriorWeight, kPriorSize);
    down_ = AffineCost(empty, down_price, kPriorWeight, kPriorSize);
  } else if (!rough) {
    up_.observe(bytes_up, without(seconds, down_price * bytes_down));
    down_.observe(bytes_down, without(seconds, up_price * bytes_up));
  }
  rough_ = rough_ && rough;
}

double LinkEstimate::round_trip(double bytes_up, double bytes_down) const {
  require_amount("bytes_up", bytes_up);
  require_amount("bytes_down", bytes_down);
  return rtt() + seconds_per_byte_up() * bytes_up + seconds_per_byte_down() * bytes_down;
}

double LinkEstimate::up_bps() const noexcept {
  return bits_per_second(seconds_per_byte_up());
}

double LinkEstimate::down_bps() const noexcept {
  return bits_per_second(seconds_per_byte_down());
}

}  // namespace acespec
