#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/policy/affine_cost.h"
#include "acespec/policy/width_curve.h"

using namespace acespec;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// `count` samples of base + per_unit * n with n from 0 to `most` and uniform noise.
void feed(AffineCost& cost, std::mt19937& random, std::size_t count, double base, double per_unit,
          double most, double noise) {
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (std::size_t i = 0; i < count; ++i) {
    const double n = std::floor(uniform(random) * most);
    cost.observe(n, base + per_unit * n + noise * (2 * uniform(random) - 1));
  }
}

}  // namespace

TEST_CASE("an affine cost begins as its prior, and samples take over") {
  AffineCost cost(0.1, 0.002, 4, 32);
  CHECK(cost(10) == doctest::Approx(0.12));
  CHECK(cost.samples() == 0);
  std::mt19937 random(1);
  feed(cost, random, 200, 0.05, 0.001, 32, 0.005);
  CHECK(cost.base() == doctest::Approx(0.05).epsilon(0.06));
  CHECK(cost.per_unit() == doctest::Approx(0.001).epsilon(0.15));
  CHECK(cost.deviation() == doctest::Approx(0.0025).epsilon(0.5));
  CHECK(cost.samples() == 200);
}

TEST_CASE("the first sample is the base of an affine cost, whatever was assumed") {
  AffineCost cost(0.1, 0.002, 4, 32);
  cost.observe(0, 0.5);
  CHECK(cost.base() == doctest::Approx(0.5));
  CHECK(cost.per_unit() == doctest::Approx(0.002));
  cost.observe(1, 0.502);
  CHECK(cost.per_unit() == doctest::Approx(0.002).epsilon(0.01));
}

TEST_CASE("the prior slope of an affine cost is worth its weight") {
  AffineCost faint(0.1, 0, 1, 16);
  AffineCost firm(0.1, 0, 9, 16);
  for (AffineCost* cost : {&faint, &firm}) {
    cost->observe(0, 0.1);
    cost->observe(16, 0.18);
  }
  // Two samples 16 apart have a sum of squares of 128; the prior has 64 for each sample that it counts for.
  CHECK(faint.per_unit() == doctest::Approx(0.005 * 128 / (128 + 64)).epsilon(0.02));
  CHECK(firm.per_unit() == doctest::Approx(0.005 * 128 / (128 + 9 * 64)).epsilon(0.02));
}

TEST_CASE("equal sizes move the base of an affine cost alone") {
  AffineCost cost(0.1, 0.002, 4, 32);
  std::mt19937 random(2);
  feed(cost, random, 100, 0.1, 0.001, 32, 0.002);
  const double slope = cost.per_unit();
  for (int i = 0; i < 500; ++i) {
    cost.observe(8, 0.13 + 0.001 * (i % 3 - 1));
  }
  CHECK(cost.per_unit() == doctest::Approx(slope).epsilon(0.05));
  CHECK(cost(8) == doctest::Approx(0.13).epsilon(0.02));
  // Nor does time spent on one size make the slope forget what it rests on.
  cost.observe(9, 0.135);
  CHECK(cost.per_unit() == doctest::Approx(slope).epsilon(0.05));
}

TEST_CASE("one outlier moves an affine cost little, a lasting change is followed") {
  for (const double factor : {0.3, 4.0}) {
    CAPTURE(factor);
    AffineCost cost(0.1, 0.002, 4, 32);
    std::mt19937 random(3);
    feed(cost, random, 100, 0.1, 0.001, 32, 0.002);
    const double before = cost(10);
    cost.observe(10, 0.11 * 100);
    CHECK(cost(10) == doctest::Approx(before).epsilon(0.01));
    for (int i = 0; i < 8; ++i) {
      feed(cost, random, 1, 0.1 * factor, 0.001 * factor, 32, 0.002);
    }
    CHECK(cost(16) == doctest::Approx(0.116 * factor).epsilon(0.1));
    feed(cost, random, 200, 0.1 * factor, 0.001 * factor, 32, 0.002);
    CHECK(cost.per_unit() == doctest::Approx(0.001 * factor).epsilon(0.3));
  }
}

TEST_CASE("an affine cost never falls below nothing") {
  AffineCost cost(0.1, 0.01, 2, 32);
  std::mt19937 random(4);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (int i = 0; i < 5000; ++i) {
    const double scale = std::pow(10.0, 6 * uniform(random) - 5);
    cost.observe(uniform(random) < 0.3 ? 0.0 : std::floor(scale * 1000 * uniform(random)),
                 scale * uniform(random));
    REQUIRE(cost.base() >= -1e-12);
    REQUIRE(cost.per_unit() >= 0.0);
    REQUIRE(std::isfinite(cost(100)));
    REQUIRE(cost.deviation() >= 0.0);
  }
}

TEST_CASE("an affine cost of nothing learns too") {
  AffineCost cost(0, 0, 1, 8);
  for (int i = 0; i < 64; ++i) {
    cost.observe(i % 8, 0.02 + 0.001 * (i % 8));
  }
  CHECK(cost(4) == doctest::Approx(0.024).epsilon(0.05));
}

TEST_CASE("an affine cost refuses what is no amount") {
  CHECK_THROWS_WITH_AS(AffineCost(-1, 0, 1, 1), doctest::Contains("base is -1"), UsageError);
  CHECK_THROWS_AS(AffineCost(0, kNan, 1, 1), UsageError);
  CHECK_THROWS_AS(AffineCost(0, 0, 0, 1), UsageError);
  CHECK_THROWS_AS(AffineCost(0, 0, 1, 0), UsageError);
  AffineCost cost(0.1, 0.01, 1, 1);
  for (const double bad : {-1.0, kNan, kInfinity}) {
    CHECK_THROWS_AS(cost.observe(bad, 0.1), UsageError);
    CHECK_THROWS_AS(cost.observe(1, bad), UsageError);
  }
  CHECK(cost.samples() == 0);
  CHECK(cost(1) == doctest::Approx(0.11));
}

/// What a sample leaves of the weight of those of other widths.
constexpr double kFade = 23.0 / 24;

TEST_CASE("a width curve begins at the guess, and goes through what is measured") {
  WidthCurve curve(16, 0.02, 1.0 / 8);
  CHECK(curve.seconds(1) == doctest::Approx(0.02));
  CHECK(curve.seconds(9) == doctest::Approx(0.04));
  CHECK(WidthCurve(16, 0.02, 0.5).seconds(3) == doctest::Approx(0.04));
  curve.observe(4, 0.055);
  CHECK(curve.seconds(4) == doctest::Approx(0.055));
  CHECK(curve.seconds(1) == doctest::Approx(0.04));
  CHECK(curve.seconds(12) == doctest::Approx(0.055 / 1.375 * 2.375));
  curve.observe(8, 0.075);
  CHECK(curve.seconds(6) == doctest::Approx(0.065));
  CHECK(curve.seconds(16) == doctest::Approx(0.115));
  CHECK(curve.table().size() == 16);
  CHECK(curve.table()[5] == curve.seconds(6));
}

TEST_CASE("a width curve never falls, and a flat end is not free") {
  WidthCurve curve(16, 0.02, 1.0 / 8);
  curve.observe(1, 0.02);
  curve.observe(4, 0.05);
  curve.observe(8, 0.04);
  const double pooled = (0.05 * kFade + 0.04) / (kFade + 1);
  CHECK(curve.seconds(4) == doctest::Approx(pooled));
  CHECK(curve.seconds(8) == doctest::Approx(pooled));
  CHECK(curve.seconds(16) == doctest::Approx(pooled + 8 * (pooled - 0.02) / 7));

  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (int i = 0; i < 2000; ++i) {
    const auto width = 1 + static_cast<std::size_t>(uniform(random) * 16);
    curve.observe(width, std::pow(10.0, 4 * uniform(random) - 3));
    for (std::size_t w = 2; w <= 16; ++w) {
      REQUIRE(curve.seconds(w) >= curve.seconds(w - 1));
    }
    REQUIRE(curve.seconds(1) > 0.0);
  }
}

TEST_CASE("below the narrowest measured width a curve goes on as it rises, to its part of it at least") {
  WidthCurve verify(64, 0.05, 0.02);
  verify.observe(8, 0.9);
  verify.observe(16, 1.3);
  CHECK(verify.seconds(1) == doctest::Approx(0.55));
  CHECK(verify.seconds(4) == doctest::Approx(0.7));
  WidthCurve steep(64, 0.05, 0.02);
  steep.observe(8, 0.2);
  steep.observe(16, 1.0);
  CHECK(steep.seconds(4) == doctest::Approx(0.1));
  CHECK(steep.seconds(1) == doctest::Approx(0.025));
}

TEST_CASE("one dear sample keeps a width from being tried for a while only") {
  WidthCurve curve(64, 0.05, 0.02);
  for (int i = 0; i < 20; ++i) {
    for (const std::size_t w : {1U, 2U, 4U, 6U}) {
      curve.observe(w, 0.3 + 0.01 * static_cast<double>(w));
    }
  }
  curve.observe(16, 1.6);
  CHECK(curve.seconds(16) == doctest::Approx(0.92));  // twice what the others foretold
  for (int i = 0; i < 7; ++i) {
    for (const std::size_t w : {1U, 2U, 4U, 6U}) {
      curve.observe(w, 0.3 + 0.01 * static_cast<double>(w));
    }
  }
  CHECK(curve.seconds(16) == doctest::Approx(0.46).epsilon(0.02));
}

TEST_CASE("beyond the widest measured width a node costs what it did from half of it on") {
  WidthCurve curve(64, 0.05, 0.02);
  curve.observe(1, 0.3);
  curve.observe(8, 0.3);
  curve.observe(15, 0.39);
  curve.observe(16, 0.46);  // 15 was a little quick
  CHECK(curve.seconds(24) == doctest::Approx(0.46 + 8 * 0.02));
}

TEST_CASE("isotonic regression is the closest monotone curve") {
  // Against every split of the widths into blocks of equal value, the means in rising order. Older samples
  // weigh less.
  constexpr std::size_t kWidths = 6;
  const auto weight = [](std::size_t w) { return std::pow(kFade, kWidths - w); };
  std::mt19937 random(6);
  std::uniform_real_distribution<double> uniform(0.03, 0.05);
  for (int round = 0; round < 200; ++round) {
    WidthCurve curve(kWidths, 0.03, 1.0 / 8);
    std::vector<double> samples;
    double found = 0.0;
    for (std::size_t w = 1; w <= kWidths; ++w) {
      samples.push_back(uniform(random));
      curve.observe(w, samples.back());
    }
    for (std::size_t w = 1; w <= kWidths; ++w) {
      found += weight(w) * std::pow(curve.seconds(w) - samples[w - 1], 2);
    }
    double best = kInfinity;
    for (unsigned cuts = 0; cuts < 1U << (kWidths - 1); ++cuts) {
      double error = 0.0;
      double before = 0.0;
      bool rising = true;
      for (std::size_t from = 0; from < kWidths;) {
        std::size_t to = from + 1;
        double sum = weight(from + 1) * samples[from];
        double weights = weight(from + 1);
        for (; to < kWidths && (cuts >> (to - 1) & 1U) == 0; ++to) {
          sum += weight(to + 1) * samples[to];
          weights += weight(to + 1);
        }
        const double mean = sum / weights;
        rising = rising && mean >= before;
        before = mean;
        for (; from < to; ++from) {
          error += weight(from + 1) * std::pow(samples[from] - mean, 2);
        }
      }
      best = rising ? std::min(best, error) : best;
    }
    REQUIRE(found == doctest::Approx(best));
  }
}

TEST_CASE("a width curve shrugs off an outlier and follows a hot device at every width") {
  for (const double pace : {0.5, 1.6, 3.0}) {
    CAPTURE(pace);
    WidthCurve curve(16, 0.02, 1.0 / 8);
    std::mt19937 random(7);
    std::uniform_real_distribution<double> noise(0.97, 1.03);
    const auto truth = [](std::size_t w) { return 0.02 + 0.002 * static_cast<double>(w); };
    for (int i = 0; i < 60; ++i) {
      for (const std::size_t w : {1U, 4U, 8U, 16U}) {
        curve.observe(w, truth(w) * noise(random));
      }
    }
    CHECK(curve.seconds(8) == doctest::Approx(truth(8)).epsilon(0.03));
    curve.observe(8, 1.0);
    CHECK(curve.seconds(8) == doctest::Approx(truth(8)).epsilon(0.06));
    for (int i = 0; i < 8; ++i) {
      curve.observe(i % 2 == 0 ? 4 : 8, truth(i % 2 == 0 ? 4 : 8) * pace * noise(random));
    }
    for (const std::size_t w : {1U, 4U, 8U, 16U}) {
      CHECK(curve.seconds(w) == doctest::Approx(truth(w) * pace).epsilon(0.1));
    }
  }
}

TEST_CASE("the nodes that fit a time") {
  WidthCurve curve(8, 0.01, 1.0 / 8);
  for (std::size_t w = 1; w <= 8; ++w) {
    curve.observe(w, 0.01 + 0.005 * static_cast<double>(w));
  }
  CHECK(curve.nodes_within(0.0149, 4) == 0);
  CHECK(curve.nodes_within(0.0301, 4) == 4);
  CHECK(curve.nodes_within(0.0601, 4) == 8);
  CHECK(curve.nodes_within(0.0801, 4) == 10);  // two of width 4, one of width 2
  CHECK(curve.nodes_within(0.0149 + 0.03, 4) == 4);
  CHECK(curve.nodes_within(0.0201, 4) == 2);  // a narrower one alone
  CHECK(curve.nodes_within(-1, 4) == 0);
  CHECK(curve.nodes_within(kInfinity, 4) == WidthCurve::kMostNodes);
  for (double budget = 0.0; budget < 0.5; budget += 0.0037) {
    REQUIRE(curve.nodes_within(budget + 0.0037, 3) >= curve.nodes_within(budget, 3));
  }
}

TEST_CASE("a width curve refuses what is no width and no time") {
  CHECK_THROWS_AS(WidthCurve(0, 0.01, 0.1), UsageError);
  CHECK_THROWS_AS(WidthCurve(WidthCurve::kMostWidth + 1, 0.01, 0.1), UsageError);
  CHECK_THROWS_AS(WidthCurve(8, 0, 0.1), UsageError);
  CHECK_THROWS_WITH_AS(WidthCurve(8, 0.01, -1), doctest::Contains("node_share is -1"), UsageError);
  WidthCurve curve(8, 0.01, 1.0 / 8);
  CHECK_THROWS_WITH_AS(curve.observe(9, 0.01), doctest::Contains("width is 9"), UsageError);
  CHECK_THROWS_AS(curve.observe(0, 0.01), UsageError);
  for (const double bad : {0.0, -1.0, kNan, kInfinity}) {
    CHECK_THROWS_AS(curve.observe(1, bad), UsageError);
  }
  CHECK_THROWS_AS(static_cast<void>(curve.seconds(0)), UsageError);
  CHECK_THROWS_AS(static_cast<void>(curve.nodes_within(kNan, 1)), UsageError);
}
