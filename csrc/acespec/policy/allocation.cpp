#include "acespec/policy/allocation.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "acespec/policy/checks.h"

namespace acespec {

namespace {

/// A budget is this much larger, so that rounding does not make it lose a whole alternative.
constexpr double kRounding = 1.0 + 1e-12;

void require_size(const char* field, std::size_t size, std::size_t stops) {
  if (size != stops) {
    throw UsageError(std::string(field) + " has " + std::to_string(size) + " entries; stops has " +
                     std::to_string(stops));
  }
}

void require_terms(std::span<const double> stops, std::span<const double> costs, double budget) {
  require_size("costs", costs.size(), stops.size());
  require_amount("budget", budget);
  for (const double p : stops) {
    require_probability("a stop probability", p);
  }
  for (const double cost : costs) {
    require_positive("a cost", cost);
    require(budget / cost <= static_cast<double>(kMostAlternatives), "budget", budget,
            "at most 65536 times each cost");
  }
}

/// Gives single alternatives to the depth of the largest gain(i, b) / cost that still fits, until nothing
/// gains.
template <class Gain>
void spend(std::vector<std::size_t>& given, std::span<const double> costs, double left, const Gain& gain) {
  while (true) {
    std::size_t best = given.size();
    double best_gain = 0.0;
    for (std::size_t i = 0; i < given.size(); ++i) {
      const double per_cost = costs[i] <= left ? gain(i, given[i]) / costs[i] : 0.0;
      if (per_cost > best_gain) {
        best = i;
        best_gain = per_cost;
      }
    }
    if (best == given.size()) {
      return;
    }
    ++given[best];
    left -= costs[best];
  }
}

}  // namespace

std::vector<double> stop_probabilities(std::span<const double> acceptances) {
  std::vector<double> stops;
  stops.reserve(acceptances.size() + 1);
  double reached = 1.0;
  for (const double a : acceptances) {
    require_probability("an acceptance", a);
    stops.push_back(reached * (1.0 - a));
    reached *= a;
  }
  stops.push_back(reached);
  return stops;
}

std::vector<std::size_t> allocate_uniform(std::size_t length, std::size_t budget) {
  const std::size_t depths = length + 1;
  if (budget / depths >= kMostAlternatives) {
    throw UsageError("budget is " + std::to_string(budget) + "; it must be under 65536 for each of the " +
                     std::to_string(depths) + " depths");
  }
  std::vector<std::size_t> given(depths, budget / depths);
  for (std::size_t i = 0; i < budget % depths; ++i) {
    ++given[i];
  }
  return given;
}

std::vector<std::size_t> allocate_nonuniform(std::span<const double> stops, std::span<const double> costs,
                                             double budget, double exponent) {
  require_terms(stops, costs, budget);
  require_positive("exponent", exponent);
  const auto wanted = [&](std::size_t i, double lambda) {
    return std::max(0.0, std::pow(exponent * stops[i] / (lambda * costs[i]), 1.0 / (1.0 + exponent)) - 1.0);
  };
  const auto spent = [&](double lambda) {
    double sum = 0.0;
    for (std::size_t i = 0; i < stops.size(); ++i) {
      sum += costs[i] * wanted(i, lambda);
    }
    return sum;
  };
  std::vector<std::size_t> given(stops.size(), 0);
  // At the steepest first gain nothing is bought; the optimum costs less than that for a while.
  double high = 0.0;
  for (std::size_t i = 0; i < stops.size(); ++i) {
    high = std::max(high, exponent * stops[i] / costs[i]);
  }
  if (high == 0.0) {
    return given;
  }
  double low = high;
  while (spent(low) < budget) {
    low /= 16.0;
  }
  for (int halving = 0; halving < 100; ++halving) {
    const double middle = std::sqrt(low * high);
    (spent(middle) > budget ? low : high) = middle;
  }
  double left = budget * kRounding;
  for (std::size_t i = 0; i < stops.size(); ++i) {
    given[i] = static_cast<std::size_t>(wanted(i, high));
    left -= static_cast<double>(given[i]) * costs[i];
  }
  spend(given, costs, left, [&](std::size_t i, std::size_t b) {
    const auto had = static_cast<double>(b);
    return stops[i] * (std::pow(1.0 + had, -exponent) - std::pow(2.0 + had, -exponent));
  });
  return given;
}

}  // namespace acespec
