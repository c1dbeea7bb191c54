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
      CHECK(best_length(std::vector<double>{row.acceptance}, rounds[i], 0.010, 64) == row.lengths[i]);
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
    const double round = std::pow(10.0, 3 * uniform(random) - 3);
    const double per_token = 0.03 * uniform(random);
    double best = -1;
    std::size_t length = 0;
    double tokens = 1;
    for (std::size_t k = 1; k <= 40; ++k) {
      tokens += whole[k - 1];
      const double rate = tokens / (round + per_token * static_cast<double>(k));
      if (rate > best * (1 + 1e-12)) {
        best = rate;
        length = k;
      }
    }
    REQUIRE(best_length(prefix, round, per_token, 40) == length);
  }
}

TEST_CASE("a length has its bounds") {
  const std::vector<double> sure{1.0};
  CHECK(best_length(sure, 0.1, 0.01, 0) == 0);
  CHECK(best_length(sure, 0.1, 0.01, 17) == 17);
  CHECK(best_length(std::vector<double>{0.0}, 0.1, 0.01, 17) == 1);
  CHECK(best_length(std::vector<double>{0.5, 0.0}, 1.0, 0.0, 17) == 1);
  CHECK_THROWS_AS(static_cast<void>(best_length({}, 0.1, 0.01, 4)), UsageError);
  CHECK_THROWS_AS(static_cast<void>(best_length(std::vector<double>{0.5, 0.6}, 0.1, 0.01, 4)), UsageError);
  CHECK_THROWS_AS(static_cast<void>(best_length(std::vector<double>{kNan}, 0.1, 0.01, 4)), UsageError);
  CHECK_THROWS_AS(static_cast<void>(best_length(sure, 0.0, 0.01, 4)), UsageError);
  CHECK_THROWS_WITH_AS(static_cast<void>(best_length(sure, 0.1, -1, 4)), doctest::Contains("per_token is -1"),
                       UsageError);
}

TEST_CASE("a node is sent while it is worth its price") {
  const std::vector<float> weights{0.9F, 0.5F, 0.25F, 0.1F};
  const Prices prices{0.2, 0.01};
  CHECK(best_count(weights, prices, 1) == 4);
  CHECK(best_count(weights, prices, 25) == 3);
  CHECK(best_count(weights, prices, 26) == 2);
  CHECK(best_count(weights, prices, 91) == 0);
  CHECK(best_count(weights, {0.2, 0.0}, 1e6) == 4);
  CHECK(best_count({}, prices, 5) == 0);
}

TEST_CASE("a selection refuses what makes no sense") {
  const std::vector<float> weights{0.5F, 0.25F};
  const Prices prices{0.1, 0.01};
  CHECK_THROWS_AS(static_cast<void>(best_count(weights, prices, 0)), UsageError);
  CHECK_THROWS_AS(static_cast<void>(best_count(weights, {0.1, -1}, 5)), UsageError);
  CHECK_THROWS_AS(static_cast<void>(best_count(weights, {0.1, kNan}, 5)), UsageError);
  for (const std::vector<float>& bad : {std::vector<float>{0.5F, 0.6F}, std::vector<float>{1.1F},
                                        std::vector<float>{-0.1F}, std::vector<float>{std::nanf("")}}) {
    CHECK_THROWS_AS(static_cast<void>(best_count(bad, prices, 5)), UsageError);
  }
}
