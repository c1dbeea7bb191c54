#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/policy/link_estimate.h"
#include "acespec/policy/round_trip.h"

using namespace acespec;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// A link of constant price with jitter, and exchanges of the sizes that drafts and verdicts have.
struct Link {
  double rtt;
  double up_bps;
  double down_bps;
  double jitter;  // mean of an exponential delay, seconds

  double seconds(double up, double down, std::mt19937& random) const {
    std::exponential_distribution<double> delay(1.0);
    return rtt + 8 * up / up_bps + 8 * down / down_bps + jitter * delay(random);
  }

  void feed(LinkEstimate& estimate, double& at, int count, std::mt19937& random) const {
    std::uniform_real_distribution<double> uniform(0.0, 1.0);
    for (int i = 0; i < count; ++i) {
      const double up = std::floor(60 + 120 * uniform(random));
      const double down = std::floor(60 + 40 * uniform(random));
      at += 0.3;
      estimate.observe(up, down, seconds(up, down, random), at, false);
    }
  }
};

}  // namespace

TEST_CASE("a round trip is smoothed with the gains of RFC 6298") {
  RoundTrip trip;
  CHECK_FALSE(trip.known());
  CHECK(trip.seconds() == 0.150);
  trip.observe(0.08, 1);
  CHECK(trip.known());
  CHECK(trip.seconds() == doctest::Approx(0.08));
  CHECK(trip.deviation() == doctest::Approx(0.04));
  trip.observe(0.16, 2);
  CHECK(trip.seconds() == doctest::Approx(0.08 * 7 / 8 + 0.16 / 8));
  CHECK(trip.deviation() == doctest::Approx(0.04 * 3 / 4 + 0.08 / 4));
}

TEST_CASE("a rough round trip stands in until there is another") {
  RoundTrip trip;
  trip.observe(0.8, 1, true);
  CHECK(trip.seconds() == doctest::Approx(0.8));
  trip.observe(0.4, 2, true);
  CHECK(trip.seconds() == doctest::Approx(0.75));
  trip.observe(0.1, 3);
  CHECK(trip.seconds() == doctest::Approx(0.1));
  trip.observe(0.9, 4, true);
  CHECK(trip.seconds() == doctest::Approx(0.1));
  CHECK(trip.quantile99() == doctest::Approx(0.1));
}

TEST_CASE("one slow exchange is damped, a second is believed") {
  RoundTrip trip;
  for (int i = 0; i < 50; ++i) {
    trip.observe(0.1 + 0.001 * (i % 2), i);
  }
  const double before = trip.seconds();
  trip.observe(5, 50);
  CHECK(trip.seconds() < 1.15 * before);
  trip.observe(0.1, 51);
  trip.observe(5, 52);
  CHECK(trip.seconds() < 1.5 * before);
  trip.observe(5, 53);
  CHECK(trip.seconds() > 0.6);
  // Faster is always believed: nothing makes a packet early.
  RoundTrip slow;
  slow.observe(2, 0);
  slow.observe(0.02, 1);
  CHECK(slow.seconds() == doctest::Approx(2 - 1.98 / 8));
}

TEST_CASE("after an idle spell a round trip begins anew") {
  RoundTrip trip;
  trip.observe(0.1, 0);
  trip.observe(0.1, 30);
  trip.observe(0.3, 60.1);
  CHECK(trip.seconds() == doctest::Approx(0.3));
  CHECK(trip.quantile99() == doctest::Approx(0.3));
  trip.observe(0.9, 100, true);
  CHECK(trip.seconds() == doctest::Approx(0.9));
  trip.observe(0.2, 101);
  CHECK(trip.seconds() == doctest::Approx(0.2));
}

TEST_CASE("the 99th of 100 round trips is no more than the largest of half a minute") {
  RoundTrip trip;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  std::vector<std::pair<double, double>> all;
  double at = 1000;
  for (int i = 0; i < 3000; ++i) {
    at += uniform(random) * (i % 100 == 0 ? 25 : 0.4);
    const double seconds = 0.05 + 0.1 * uniform(random);
    trip.observe(seconds, at);
    all.emplace_back(at, seconds);
    // To the second: what lies between 29 and 30 seconds back may count or not.
    double sure = 0;
    double perhaps = 0;
    for (const auto& [when, value] : all) {
      sure = when > at - 29 ? std::max(sure, value) : sure;
      perhaps = when > at - 30 ? std::max(perhaps, value) : perhaps;
    }
    const double high = trip.seconds() + 4 * trip.deviation();
    REQUIRE(trip.quantile99() >= std::max(trip.seconds(), std::min(high, sure)));
    REQUIRE(trip.quantile99() <= std::max(trip.seconds(), std::min(high, perhaps)));
  }
}

TEST_CASE("a round trip refuses what is no time") {
  RoundTrip trip;
  CHECK_THROWS_AS(trip.observe(-0.1, 1), UsageError);
  CHECK_THROWS_AS(trip.observe(kNan, 1), UsageError);
  CHECK_THROWS_AS(trip.observe(0.1, kNan), UsageError);
  CHECK_FALSE(trip.known());
  trip.observe(0.1, 5);
  CHECK_THROWS_WITH_AS(trip.observe(0.1, 4), doctest::Contains("at is 4"), UsageError);
}

TEST_CASE("a link that nothing is known about is the paper's") {
  const LinkEstimate link;
  CHECK_FALSE(link.known());
  CHECK(link.rtt() == doctest::Approx(0.150));
  CHECK(link.up_bps() == doctest::Approx(50e3));
  CHECK(link.down_bps() == doctest::Approx(50e3));
  CHECK(link.round_trip(100, 50) == doctest::Approx(0.150 + 150 * 8 / 50e3));
}

TEST_CASE("a link is learned from drafts and verdicts") {
  for (const Link& truth : {Link{0.1, 50e3, 50e3, 0.002}, Link{0.02, 200e3, 1e6, 0.002},
                            Link{0.25, 100e3, 100e3, 0.01}, Link{0.004, 1e8, 1e8, 0.0005}}) {
    CAPTURE(truth.rtt);
    LinkEstimate link;
    std::mt19937 random(2);
    double at = 0;
    truth.feed(link, at, 8, random);
    CHECK(
        link.round_trip(120, 80) ==
        doctest::Approx(truth.rtt + truth.jitter + 960 / truth.up_bps + 640 / truth.down_bps).epsilon(0.15));
    truth.feed(link, at, 300, random);
    const double expected = truth.rtt + truth.jitter + 960 / truth.up_bps + 640 / truth.down_bps;
    CHECK(link.round_trip(120, 80) == doctest::Approx(expected).epsilon(0.1));
    // A byte is told to within the jitter over the spread of sizes.
    CHECK(std::abs(link.seconds_per_byte_up() - 8 / truth.up_bps) <
          2 * truth.jitter / 120 + 4 / truth.up_bps);
  }
}

TEST_CASE("equal sizes leave the prices of bytes, within what the exchange allows") {
  LinkEstimate slow;
  LinkEstimate fast;
  for (int i = 0; i < 100; ++i) {
    slow.observe(100, 50, 0.2 + 0.001 * (i % 2), i);
    fast.observe(100, 50, 0.004, i);
  }
  CHECK(slow.up_bps() == doctest::Approx(50e3));
  CHECK(slow.round_trip(100, 50) == doctest::Approx(0.2).epsilon(0.01));
  CHECK(fast.round_trip(100, 50) == doctest::Approx(0.004).epsilon(0.01));
  CHECK(fast.rtt() == doctest::Approx(0.002).epsilon(0.01));
}

TEST_CASE("a prompt bounds the price of a byte") {
  LinkEstimate link;
  link.observe(6000, 60, 0.06, 1, true);
  CHECK(link.known());
  CHECK(link.up_bps() > 800e3);
  CHECK(link.rtt() == doctest::Approx(0.006));
  link.observe(100, 60, 0.05, 2);
  CHECK(link.rtt() == doctest::Approx(0.05).epsilon(0.05));
  CHECK(link.up_bps() > 800e3);
  // A slow prompt bounds nothing: the link may be as slow as assumed, or the cloud.
  LinkEstimate other;
  other.observe(600, 60, 2, 1, true);
  CHECK(other.up_bps() == doctest::Approx(50e3));
}

TEST_CASE("a link that changes is followed") {
  std::mt19937 random(3);
  const Link bad{0.3, 50e3, 50e3, 0.005};
  const Link good{0.01, 20e6, 20e6, 0.001};
  LinkEstimate link;
  double at = 0;
  bad.feed(link, at, 100, random);
  good.feed(link, at, 40, random);
  CHECK(link.rtt() < 0.03);
  CHECK(link.up_bps() > 450e3);
  bad.feed(link, at, 40, random);
  CHECK(link.round_trip(120, 80) == doctest::Approx(0.337).epsilon(0.15));
  bad.feed(link, at, 100, random);
  CHECK(link.seconds_per_byte_up() == doctest::Approx(160e-6).epsilon(0.4));
}

TEST_CASE("a link takes any traffic and refuses what is none") {
  LinkEstimate link;
  std::mt19937 random(4);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  double at = 0;
  for (int i = 0; i < 3000; ++i) {
    at += uniform(random) < 0.01 ? 100 : 1;
    link.observe(std::floor(uniform(random) * 500), std::floor(uniform(random) * 500),
                 uniform(random) < 0.1 ? 0.0 : std::pow(10.0, 4 * uniform(random) - 3), at,
                 uniform(random) < 0.05);
    REQUIRE(link.rtt() >= 0.0);
    REQUIRE(link.seconds_per_byte_up() >= 0.0);
    REQUIRE(link.seconds_per_byte_down() >= 0.0);
    REQUIRE(std::isfinite(link.round_trip(100, 100)));
    REQUIRE(link.up_bps() > 0.0);
    REQUIRE(link.up_bps() <= 1e12);
  }
  CHECK_THROWS_AS(link.observe(-1, 0, 0.1, at), UsageError);
  CHECK_THROWS_AS(link.observe(1, kNan, 0.1, at), UsageError);
  CHECK_THROWS_AS(link.observe(1, 1, -0.1, at), UsageError);
  CHECK_THROWS_AS(link.observe(1, 1, 0.1, at - 1), UsageError);
  CHECK_THROWS_AS(static_cast<void>(link.round_trip(-1, 0)), UsageError);
}
