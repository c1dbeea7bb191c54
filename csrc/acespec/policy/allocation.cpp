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

/// One edge of a curve's concave hull.
struct Step {
  double per_cost;
  std::size_t depth;
  std::size_t from;
  std::size_t to;
};

/// Appends the rising edges of the upper hull of (0, 0), (1, curve[0]), ...
void append_hull(std::span<const double> curve, double stop, double cost, std::size_t depth,
                 std::vector<Step>& steps) {
  const auto height = [curve](std::size_t b) { return b == 0 ? 0.0 : curve[b - 1]; };
  std::vector<std::size_t> corners{0};
  for (std::size_t b = 1; b <= curve.size(); ++b) {
    while (corners.size() > 1) {
      const std::size_t last = corners.back();
      const std::size_t before = corners[corners.size() - 2];
      // The last corner lies under the line from the one before it to this point.
      if ((height(last) - height(before)) * static_cast<double>(b - before) >
          (height(b) - height(before)) * static_cast<double>(last - before)) {
        break;
      }
      corners.pop_back();
    }
    corners.push_back(b);
  }
  for (std::size_t i = 1; i < corners.size(); ++i) {
    const double gain = stop * (height(corners[i]) - height(corners[i - 1]));
    const double price = cost * static_cast<double>(corners[i] - corners[i - 1]);
    if (gain > 0.0) {
      steps.push_back({gain / price, depth, corners[i - 1], corners[i]});
    }
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

std::vector<std::size_t> allocate_single(std::size_t length) {
  return std::vector<std::size_t>(length + 1, 0);
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

std::vector<std::size_t> allocate_measured(std::span<const double> stops,
                                           std::span<const std::vector<double>> coverage,
                                           std::span<const double> costs, double budget) {
  require_terms(stops, costs, budget);
  require_size("coverage", coverage.size(), stops.size());
  std::vector<Step> steps;
  for (std::size_t i = 0; i < stops.size(); ++i) {
    double before = 0.0;
    for (const double c : coverage[i]) {
      require(c >= before && c <= 1.0, "a coverage", c, "from the one before it to 1");
      before = c;
    }
    append_hull(std::span(coverage[i]).first(std::min(coverage[i].size(), kMostAlternatives)), stops[i],
                costs[i], i, steps);
  }
  // Within a depth gains fall, so its steps stay in order; equal ones too, the sort being stable.
  std::ranges::stable_sort(steps, std::ranges::greater{}, &Step::per_cost);
  std::vector<std::size_t> given(stops.size(), 0);
  double left = budget * kRounding;
  for (const Step& step : steps) {
    const double price = costs[step.depth] * static_cast<double>(step.to - step.from);
    if (given[step.depth] == step.from && price <= left) {
      given[step.depth] = step.to;
      left -= price;
    }
  }
  spend(given, costs, left, [&](std::size_t i, std::size_t b) {
    const std::vector<double>& curve = coverage[i];
    return b < curve.size() ? stops[i] * (curve[b] - (b == 0 ? 0.0 : curve[b - 1])) : 0.0;
  });
  return given;
}

}  // namespace acespec
