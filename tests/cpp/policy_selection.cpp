#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/policy/draft_length.h"
#include "acespec/policy/selection.h"

using namespace acespec;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Seconds by count, from 0 to `most`, each node as dear as the others.
std::vector<double> line(double base, double node, std::size_t most) {
  std::vector<double> seconds;
  for (std::size_t n = 0; n <= most; ++n) {
    seconds.push_back(base + node * static_cast<double>(n));
  }
  return seconds;
}

/// Seconds by count with jumps, like those of a product that comes in tiles.
std::vector<double> stairs(std::mt19937& random, std::size_t most) {
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  std::vector<double> seconds{0.01 + uniform(random)};
  for (std::size_t n = 1; n <= most; ++n) {
    seconds.push_back(seconds.back() + (uniform(random) < 0.6 ? 0.0 : 0.2 * uniform(random)));
  }
  return seconds;
}

}  // namespace

TEST_CASE("the best length grows with the logarithm of the round") {
  struct Row {
    double acceptance;
    std::vector<std::size_t> lengths;
  };
  const std::vector<double> rounds{0.020, 0.050, 0.100, 0.200, 0.400};
  for (const Row& row : {Row{0.5, {1, 1, 2, 3, 4}}, Row{0.7, {1, 3, 4, 6, 7}}, Row{0.8, {2, 4, 6, 8, 10}},
                         Row{0.9, {3, 7, 10, 13, 18}}}) {
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      CAPTURE(row.acceptance);
      CAPTURE(rounds[i]);
      CHECK(best_length(std::vector<double>{row.acceptance}, line(rounds[i], 0.010, 64), 64) ==
            row.lengths[i]);
    }
  }
}

TEST_CASE("the best length is that of exhaustive search, past the end of the curve too") {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (int turn = 0; turn < 2000; ++turn) {
    std::vector<double> prefix;
    double p = 1;
    const auto known = 1 + static_cast<std::size_t>(uniform(random) * 6);
    double ratio = 0;
    for (std::size_t i = 0; i < known; ++i) {
      ratio = std::sqrt(uniform(random));
      prefix.push_back(p *= ratio);
    }
    std::vector<double> whole = prefix;
    while (whole.size() < 40) {
      whole.push_back(whole.back() * ratio);
    }
    const std::vector<double> seconds =
        turn % 2 == 0 ? stairs(random, 40)
                      : line(std::pow(10.0, 3 * uniform(random) - 3), 0.03 * uniform(random), 40);
    double best = -1;
    std::size_t length = 0;
    double tokens = 1;
    for (std::size_t k = 1; k <= 40; ++k) {
      tokens += whole[k - 1];
      const double rate = tokens / seconds[k];
      if (rate > best * (1 + 1e-12)) {
        best = rate;
        length = k;
      }
    }
    REQUIRE(best_length(prefix, seconds, 40) == length);
  }
}

TEST_CASE("a length has its bounds") {
  const std::vector<double> sure{1.0};
  const std::vector<double> rounds = line(0.1, 0.01, 17);
  CHECK(best_length(sure, rounds, 0) == 0);
  CHECK(best_length(sure, rounds, 17) == 17);
  CHECK(best_length(std::vector<double>{0.0}, rounds, 17) == 1);
  CHECK(best_length(std::vector<double>{0.5, 0.0}, line(1.0, 0.0, 17), 17) == 1);
  CHECK_THROWS_AS(static_cast<void>(best_length({}, rounds, 4)), UsageError);
  CHECK_THROWS_AS(static_cast<void>(best_length(std::vector<double>{0.5, 0.6}, rounds, 4)), UsageError);
  CHECK_THROWS_AS(static_cast<void>(best_length(std::vector<double>{kNan}, rounds, 4)), UsageError);
  CHECK_THROWS_AS(static_cast<void>(best_length(sure, line(0.0, 0.01, 4), 4)), UsageError);
  CHECK_THROWS_WITH_AS(static_cast<void>(best_length(sure, rounds, 18)),
                       doctest::Contains("seconds holds 18 values; it must hold at least 19"), UsageError);
  CHECK_THROWS_WITH_AS(static_cast<void>(best_length(sure, line(0.1, -0.01, 4), 4)),
                       doctest::Contains("seconds is 0.09"), UsageError);
}

TEST_CASE("a node is sent while it is worth its price") {
  const std::vector<float> weights{0.9F, 0.5F, 0.25F, 0.1F};
  const std::vector<double> seconds = line(0.2, 0.01, 4);
  CHECK(best_count(weights, seconds, 1) == 4);
  CHECK(best_count(weights, seconds, 24) == 3);
  CHECK(best_count(weights, seconds, 26) == 2);
  CHECK(best_count(weights, seconds, 91) == 0);
  CHECK(best_count(weights, line(0.2, 0.0, 4), 1e6) == 4);
  CHECK(best_count({}, line(0.2, 0.01, 0), 5) == 0);
}

TEST_CASE("no count of nodes beats the best, wherever the price jumps") {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform(0.0F, 1.0F);
  for (int turn = 0; turn < 2000; ++turn) {
    std::vector<float> weights;
    float w = 1.0F;
    for (int i = 0; i < 30; ++i) {
      weights.push_back(w *= 1.0F - uniform(random) * uniform(random));
    }
    const std::vector<double> seconds = stairs(random, 30);
    const double rate = 20.0 * static_cast<double>(uniform(random)) + 0.01;
    const auto gain = [&](std::size_t count) {
      double tokens = 0.0;
      for (std::size_t n = 0; n < count; ++n) {
        tokens += static_cast<double>(weights[n]);
      }
      return tokens - rate * (seconds[count] - seconds[0]);
    };
    const std::size_t found = best_count(weights, seconds, rate);
    for (std::size_t n = 0; n <= 30; ++n) {
      REQUIRE(gain(found) >= gain(n));
    }
  }
}

TEST_CASE("a selection refuses what makes no sense") {
  const std::vector<float> weights{0.5F, 0.25F};
  const std::vector<double> seconds = line(0.1, 0.01, 2);
  CHECK_THROWS_AS(static_cast<void>(best_count(weights, seconds, 0)), UsageError);
  CHECK_THROWS_AS(static_cast<void>(best_count(weights, line(0.1, -0.01, 2), 5)), UsageError);
  CHECK_THROWS_AS(static_cast<void>(best_count(weights, std::vector<double>{0.1, kNan, 0.2}, 5)), UsageError);
  CHECK_THROWS_WITH_AS(static_cast<void>(best_count(weights, line(0.1, 0.01, 1), 5)),
                       doctest::Contains("seconds holds 2 values; it must hold at least 3"), UsageError);
  for (const std::vector<float>& bad :
       {std::vector<float>{0.5F, 0.6F}, std::vector<float>{1.1F, 0.1F}, std::vector<float>{-0.1F, 0.0F},
        std::vector<float>{std::nanf(""), 0.0F}}) {
    CHECK_THROWS_AS(static_cast<void>(best_count(bad, seconds, 5)), UsageError);
  }
}
