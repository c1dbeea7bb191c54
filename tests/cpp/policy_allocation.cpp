#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/policy/allocation.h"

using namespace acespec;

namespace {

using Counts = std::vector<std::size_t>;
using Curve = std::vector<double>;

std::vector<double> chain(std::size_t length, double acceptance) {
  return stop_probabilities(std::vector<double>(length, acceptance));
}

/// C(1), C(2), ... of C(b) = 1 - (1 + b)^-exponent.
Curve power_law(std::size_t most, double exponent) {
  Curve curve;
  for (std::size_t b = 1; b <= most; ++b) {
    curve.push_back(1 - std::pow(1.0 + static_cast<double>(b), -exponent));
  }
  return curve;
}

double hit(const Counts& given, const std::vector<double>& stops, const Curve& coverage) {
  double sum = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    sum += given[i] == 0 ? 0.0 : stops[i] * coverage[given[i] - 1];
  }
  return sum;
}

double price(const Counts& given, const std::vector<double>& costs) {
  double sum = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    sum += static_cast<double>(given[i]) * costs[i];
  }
  return sum;
}

/// The largest hit of any counts that the budget and the curve allow.
double best_hit(const std::vector<double>& stops, const Curve& coverage, const std::vector<double>& costs,
                double budget) {
  Counts given(stops.size(), 0);
  double best = 0;
  const std::function<void(std::size_t, double)> visit = [&](std::size_t i, double left) {
    if (i == stops.size()) {
      best = std::max(best, hit(given, stops, coverage));
      return;
    }
    for (std::size_t b = 0; b <= coverage.size() && costs[i] * static_cast<double>(b) <= left + 1e-9; ++b) {
      given[i] = b;
      visit(i + 1, left - costs[i] * static_cast<double>(b));
    }
    given[i] = 0;
  };
  visit(0, budget);
  return best;
}

std::vector<double> random_stops(std::mt19937& random, std::size_t length) {
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  std::vector<double> acceptances(length);
  for (double& a : acceptances) {
    a = uniform(random);
  }
  return stop_probabilities(acceptances);
}

}  // namespace

TEST_CASE("a chain is left once: stop probabilities sum to 1") {
  const std::vector<double> stops = stop_probabilities(std::vector<double>{0.9, 0.5, 0.8});
  CHECK(stops.size() == 4);
  CHECK(stops[0] == doctest::Approx(0.1));
  CHECK(stops[1] == doctest::Approx(0.45));
  CHECK(stops[2] == doctest::Approx(0.09));
  CHECK(stops[3] == doctest::Approx(0.36));
  CHECK(stop_probabilities({}) == std::vector<double>{1.0});
  CHECK_THROWS_WITH_AS(static_cast<void>(stop_probabilities(std::vector<double>{1.1})),
                       doctest::Contains("an acceptance is 1.1"), UsageError);
}

TEST_CASE("as many at each depth") {
  CHECK(allocate_uniform(3, 10) == Counts{3, 3, 2, 2});
  CHECK(allocate_uniform(0, 5) == Counts{5});
  CHECK_THROWS_AS(static_cast<void>(allocate_uniform(3, std::size_t{4} * kMostAlternatives)), UsageError);
}

TEST_CASE("the closed form gives the optimum of a chain of 7 with 24 alternatives") {
  const std::vector<double> costs(8, 1.0);
  const Curve coverage = power_law(24, 0.7);
  struct Case {
    double acceptance;
    Counts given;
    double hit;
  };
  for (const Case& c :
       {Case{0.6, {8, 5, 4, 3, 2, 1, 0, 1}, 0.687}, Case{0.9, {3, 3, 2, 2, 2, 2, 2, 8}, 0.672}}) {
    const std::vector<double> stops = chain(7, c.acceptance);
    CHECK(allocate_nonuniform(stops, costs, 24, 0.7) == c.given);
    CHECK(hit(c.given, stops, coverage) == doctest::Approx(c.hit).epsilon(0.001));
    CHECK(hit(allocate_uniform(7, 24), stops, coverage) == doctest::Approx(0.621).epsilon(0.001));
  }
}

TEST_CASE("the closed form is the optimum over whole alternatives of one cost") {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (int round = 0; round < 300; ++round) {
    const auto length = static_cast<std::size_t>(uniform(random) * 4);
    const auto budget = static_cast<std::size_t>(uniform(random) * 13);
    const double exponent = 0.2 + 2 * uniform(random);
    const std::vector<double> stops = random_stops(random, length);
    const std::vector<double> costs(length + 1, 0.25);
    const Curve coverage = power_law(budget, exponent);
    const Counts given = allocate_nonuniform(stops, costs, 0.25 * static_cast<double>(budget), exponent);
    REQUIRE(std::accumulate(given.begin(), given.end(), std::size_t{0}) <= budget);
    REQUIRE(hit(given, stops, coverage) ==
            doctest::Approx(best_hit(stops, coverage, costs, 0.25 * static_cast<double>(budget))));
  }
}

TEST_CASE("with unequal costs the closed form keeps the budget and comes close to the optimum") {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  double worst = 1;
  for (int round = 0; round < 200; ++round) {
    constexpr std::size_t kLength = 3;
    const std::vector<double> stops = random_stops(random, kLength);
    std::vector<double> costs;
    for (std::size_t i = 0; i <= kLength; ++i) {
      costs.push_back(0.5 + uniform(random));
    }
    const Curve coverage = power_law(20, 0.7);
    const double budget = 10 * uniform(random);
    const double best = best_hit(stops, coverage, costs, budget);
    const Counts given = allocate_nonuniform(stops, costs, budget, 0.7);
    REQUIRE(price(given, costs) <= budget + 1e-9);
    if (budget > 3) {
      worst = std::min(worst, hit(given, stops, coverage) / best);
    }
  }
  CHECK(worst > 0.9);
}

TEST_CASE("where nothing can be gained nothing is given") {
  const std::vector<double> costs(3, 1.0);
  CHECK(allocate_nonuniform(std::vector<double>(3, 0.0), costs, 9, 0.7) == Counts{0, 0, 0});
  CHECK(allocate_nonuniform(std::vector<double>{0, 1, 0}, costs, 9, 0.7) == Counts{0, 9, 0});
  CHECK(allocate_nonuniform(std::vector<double>{0, 1, 0}, costs, 0, 0.7) == Counts{0, 0, 0});
  CHECK(allocate_nonuniform(std::vector<double>{0.5, 0.5, 0}, costs, 0.9, 0.7) == Counts{0, 0, 0});
}

TEST_CASE("a tenth of a unit ten times over is a whole budget") {
  const std::vector<double> costs(2, 0.1);
  const Counts given = allocate_nonuniform(std::vector<double>{0.5, 0.5}, costs, 0.3 + 0.3, 0.7);
  CHECK(given == Counts{3, 3});
}

TEST_CASE("allocations refuse what makes no sense") {
  const std::vector<double> stops{0.5, 0.5};
  const std::vector<double> costs{1, 1};
  CHECK_THROWS_WITH_AS(static_cast<void>(allocate_nonuniform(stops, std::vector<double>{1}, 4, 1)),
                       doctest::Contains("costs has 1 entries; stops has 2"), UsageError);
  CHECK_THROWS_AS(static_cast<void>(allocate_nonuniform(stops, std::vector<double>{1, 0}, 4, 1)), UsageError);
  CHECK_THROWS_AS(static_cast<void>(allocate_nonuniform(stops, costs, -1, 1)), UsageError);
  CHECK_THROWS_AS(static_cast<void>(allocate_nonuniform(stops, costs, 4, 0)), UsageError);
  CHECK_THROWS_AS(static_cast<void>(allocate_nonuniform(stops, costs, 1e9, 1)), UsageError);
  CHECK_THROWS_AS(static_cast<void>(allocate_nonuniform(std::vector<double>{2, 0}, costs, 4, 1)), UsageError);
}
