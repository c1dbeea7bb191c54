#include "acespec/sampling/truncation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "acespec/sampling/kernels.h"

namespace acespec {
namespace {

/// The smallest finite logit with logit / temperature >= bound.
float lowest_at_least(double bound, double temperature) noexcept {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  const double product = bound * temperature;
  if (product <= static_cast<double>(kLowest)) {
    return kLowest;
  }
  // The product is off by a rounding or two: step to where the quotient, which the rule compares, turns.
  float logit = static_cast<float>(product);
  const auto reaches = [&](float x) { return static_cast<double>(x) / temperature >= bound; };
  while (logit > kLowest && reaches(std::nextafter(logit, kLowest))) {
    logit = std::nextafter(logit, kLowest);
  }
  while (!reaches(logit)) {
    logit = std::nextafter(logit, std::numeric_limits<float>::max());
  }
  return logit;
}

/// Tokens whose logit is at least `floor`, which is finite, by id.
void collect(const LogitRow& row, float floor, std::vector<Scored>& kept) {
  kept.clear();
  for (std::size_t tile = 0; tile < row.tile_max.size(); ++tile) {
    if (row.tile_max[tile] < floor) {
      continue;
    }
    const std::size_t end = std::min(row.logits.size(), (tile + 1) * kernels::kTile);
    for (std::size_t i = tile * kernels::kTile; i < end; ++i) {
      if (row.logits[i] >= floor) {
        kept.push_back({row.logits[i], static_cast<std::int32_t>(i)});
      }
    }
  }
}

/// A finite logit that the `count` largest reach, where so many are finite: the count-th largest tile
/// maximum.
float bound_of_largest(const LogitRow& row, std::size_t count, std::vector<Scored>& scratch) {
  if (count > row.tile_max.size()) {
    return std::numeric_limits<float>::lowest();
  }
  scratch.clear();
  for (const float top : row.tile_max) {
    scratch.push_back({top, 0});
  }
  const auto nth = scratch.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(scratch.begin(), nth, scratch.end(),
                   [](const Scored& a, const Scored& b) { return a.logit > b.logit; });
  return std::max(nth->logit, std::numeric_limits<float>::lowest());
}

constexpr std::size_t kBins = 256;  // the last takes all that lies deeper
constexpr float kBinsPerNat = 8.0F;

std::size_t bin_of(float logit, float top, float scale) noexcept {
  return static_cast<std::size_t>(
      std::min((top - logit) * scale * kBinsPerNat, static_cast<float>(kBins - 1)));
}

/// The mass exp((logit - top) / T) of the tokens at or above `floor`, by depth below the top.
std::array<double, kBins> mass_by_depth(const LogitRow& row, float scale, float floor) {
  std::array<double, kBins> mass{};
  alignas(64) std::array<float, kernels::kTile> terms;
  for (std::size_t tile = 0; tile < row.tile_max.size(); ++tile) {
    if (row.tile_max[tile] < floor) {
      continue;
    }
    const std::size_t first = tile * kernels::kTile;
    const std::size_t count = std::min(kernels::kTile, row.logits.size() - first);
    kernels::tile_exp(&row.logits[first], count, row.top, scale, terms.data());
    for (std::size_t i = 0; i < count; ++i) {
      if (row.logits[first + i] >= floor) {
        mass[bin_of(row.logits[first + i], row.top, scale)] += static_cast<double>(terms[i]);
      }
    }
  }
  return mass;
}

double weight(const Scored& s, float top, double temperature) noexcept {
  return std::exp((static_cast<double>(s.logit) - static_cast<double>(top)) / temperature);
}

/// Extends the head [kept.begin(), first), which holds `mass`, by the likeliest of the rest until it holds
/// `wanted`, and drops what is then left.
void cut_at_mass(std::vector<Scored>& kept, std::ptrdiff_t first, double mass, double wanted, float top,
                 double temperature) {
  auto end = kept.begin() + first;
  std::sort(end, kept.end(), likelier);
  while (end != kept.end() && mass < wanted) {
    mass += weight(*end, top, temperature);
    ++end;
  }
  kept.erase(end, kept.end());
}

/// top_p of the tokens at or above `floor`: only the bin in which the head ends needs an order.
void keep_head(const LogitRow& row, double temperature, float floor, double top_p,
               std::vector<Scored>& kept) {
  const float scale = kernels::inverse(temperature);
  const std::array<double, kBins> mass = mass_by_depth(row, scale, floor);
  const double wanted = top_p * std::accumulate(mass.begin(), mass.end(), 0.0);
  double before = 0.0;
  std::size_t last = 0;
  while (last + 1 < kBins && before + mass[last] < wanted) {
    before += mass[last++];
  }
  if (last + 1 < kBins) {
    // Nothing deeper is needed; a shade deeper, as the bins are computed in single precision.
    const double depth =
        static_cast<double>(last + 1) / static_cast<double>(kBinsPerNat) * temperature * (1.0 + 1e-5);
    floor = std::max(floor,
                     static_cast<float>(std::max(static_cast<double>(row.top) - depth,
                                                 static_cast<double>(std::numeric_limits<float>::lowest()))));
  }
  collect(row, floor, kept);
  std::erase_if(kept, [&](const Scored& s) { return bin_of(s.logit, row.top, scale) > last; });
  const auto tail = std::partition(kept.begin(), kept.end(),
                                   [&](const Scored& s) { return bin_of(s.logit, row.top, scale) < last; });
  cut_at_mass(kept, tail - kept.begin(), before, wanted, row.top, temperature);
}

}  // namespace

void keep_largest(const LogitRow& row, std::size_t count, std::vector<Scored>& kept) {
  if (count == 0) {
    kept.clear();
    return;
  }
  collect(row, bound_of_largest(row, count, kept), kept);
  if (count < kept.size()) {
    const auto end = kept.begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(kept.begin(), end, kept.end(), likelier);
    kept.erase(end, kept.end());
  }
  std::sort(kept.begin(), kept.end(), likelier);
}

void keep_by_rules(const LogitRow& row, const SamplingRules& rules, std::vector<Scored>& kept) {
  const auto temperature = static_cast<double>(rules.temperature);
  const auto top_p = static_cast<double>(rules.top_p);
  // p >= min_p * p_top is logit / T >= top / T + ln min_p.
  float floor = std::numeric_limits<float>::lowest();
  if (rules.min_p > 0.0F) {
    floor = lowest_at_least(
        static_cast<double>(row.top) / temperature + std::log(static_cast<double>(rules.min_p)), temperature);
  }
  // Every rule cuts a tail of one order, so the cuts commute; only top_p needs the mass the others leave.
  if (rules.top_k == 0) {
    if (rules.top_p < 1.0F) {
      keep_head(row, temperature, floor, top_p, kept);
    } else {
      collect(row, floor, kept);
    }
    return;
  }
  keep_largest(row, static_cast<std::size_t>(rules.top_k), kept);
  std::erase_if(kept, [&](const Scored& s) { return s.logit < floor; });
  if (rules.top_p < 1.0F) {
    double total = 0.0;
    for (const Scored& s : kept) {
      total += weight(s, row.top, temperature);
    }
    cut_at_mass(kept, 0, 0.0, top_p * total, row.top, temperature);
  }
}

}  // namespace acespec
