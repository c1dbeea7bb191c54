#include "acespec/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "acespec/base/error.h"
#include "acespec/base/philox.h"
#include "acespec/sampling/kernels.h"

namespace acespec {
namespace {

using kernels::kTile;

std::size_t tiles_of(std::size_t count) {
  return (count + kTile - 1) / kTile;
}

/// Smallest noise word that may lift a token to `wanted` = threshold - logit / T. Two words of slack cover
/// the rounding of both logarithms, so no token that would enter is missed.
std::uint32_t least_word(double wanted) {
  if (wanted < kGumbelLowest) {
    return 0;
  }
  const double word = std::exp(-std::exp(-wanted)) * 0x1p32 - 0.5;
  return word <= 3.0 ? 0U : static_cast<std::uint32_t>(word - 2.0);
}

/// A bound of gumbel(word) from above without a logarithm: with k leading ones, 1 - U > 2^-(k+1), and -ln U
/// >= 1 - U.
double gumbel_bound(std::uint32_t word) {
  return 0.693148 * (std::countl_one(word) + 1);
}

/// log of the sum of exp((logit - top) / T) over the row.
double log_sum(const LogitRow& row, double temperature) {
  const float scale = kernels::inverse(temperature);
  double sum = 0.0;
  for (std::size_t first = 0; first < row.logits.size(); first += kTile) {
    // Rows of a grammar or of a record have most tiles ruled out as a whole.
    if (std::isinf(row.tile_max[first / kTile])) {
      continue;
    }
    const std::size_t count = std::min(kTile, row.logits.size() - first);
    sum += static_cast<double>(kernels::tile_sum_exp(&row.logits[first], count, row.top, scale));
  }
  return std::log(sum);
}

}  // namespace

Sampler::Sampler(std::size_t vocabulary)
    : vocabulary_(vocabulary), tile_max_(tiles_of(vocabulary)), best_(vocabulary) {
  if (vocabulary == 0 || vocabulary > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw UsageError("vocabulary is " + std::to_string(vocabulary) + "; it must lie between 1 and 2^31 - 1");
  }
  kept_.reserve(vocabulary);
}

void Sampler::rank_all(const LogitRow& row, const SamplingRules& rules, Position position) {
  const auto temperature = static_cast<double>(rules.temperature);
  alignas(64) std::array<std::uint32_t, kTile> words;
  const auto visit = [&](std::size_t tile) {
    const double top = static_cast<double>(row.tile_max[tile]) / temperature;
    if (!(top + kGumbelHighest >= best_.threshold()) || std::isinf(row.tile_max[tile])) {
      return;
    }
    const std::uint32_t most =
        kernels::tile_noise(rules.seed, position, static_cast<std::uint32_t>(tile), words.data());
    const std::uint32_t least = least_word(best_.threshold() - top);
    if (most < least) {
      return;
    }
    const std::size_t first = tile * kTile;
    const std::size_t count = std::min(kTile, row.logits.size() - first);
    // Few words reach it, so most groups are passed over as a whole.
    for (std::uint32_t left = kernels::tile_groups(words.data(), least); left != 0; left &= left - 1) {
      const std::size_t begin = static_cast<std::size_t>(std::countr_zero(left)) * kernels::kGroup;
      for (std::size_t i = begin; i < std::min(begin + kernels::kGroup, count); ++i) {
        if (words[i] < least) {
          continue;
        }
        const float logit = row.logits[first + i];
        const double scaled = static_cast<double>(logit) / temperature;
        if (scaled + gumbel_bound(words[i]) >= best_.threshold() && !std::isinf(logit)) {
          best_.offer({scaled + gumbel(words[i]), logit, static_cast<std::int32_t>(first + i)});
        }
      }
    }
  };
  // The likeliest tile first: the sooner the threshold is high, the fewer logarithms are taken.
  const auto start = static_cast<std::size_t>(
      std::distance(row.tile_max.begin(), std::max_element(row.tile_max.begin(), row.tile_max.end())));
  visit(start);
  for (std::size_t tile = 0; tile < row.tile_max.size(); ++tile) {
    if (tile != start) {
      visit(tile);
    }
  }
}

void Sampler::rank_kept(const SamplingRules& rules, Position position) {
  const auto temperature = static_cast<double>(rules.temperature);
  for (const Scored& s : kept_) {
    const std::uint32_t word = gumbel_word(rules.seed, position, TokenId{s.token});
    const double scaled = static_cast<double>(s.logit) / temperature;
    if (scaled + gumbel_bound(word) >= best_.threshold()) {
      best_.offer({scaled + gumbel(word), s.logit, s.token});
    }
  }
}

LogitRow Sampler::checked(std::span<const float> logits, const SamplingRules& rules) {
  rules.validate_draw();
  if (logits.size() < vocabulary_) {
    throw UsageError("logits has " + std::to_string(logits.size()) + " columns; the vocabulary needs " +
                     std::to_string(vocabulary_));
  }
  LogitRow row{logits.first(vocabulary_), tile_max_, -std::numeric_limits<float>::infinity()};
  bool bad = false;
  for (std::size_t tile = 0; tile < tile_max_.size(); ++tile) {
    const std::size_t first = tile * kTile;
    tile_max_[tile] = kernels::tile_max(&row.logits[first], std::min(kTile, vocabulary_ - first), bad);
    row.top = std::max(row.top, tile_max_[tile]);
  }
  if (bad) {
    throw EngineError("logits hold NaN or +Inf");
  }
  if (std::isinf(row.top)) {
    throw NoTokenError("no logit is finite: every token is ruled out");
  }
  return row;
}

double Sampler::keep(const LogitRow& row, const SamplingRules& rules) {
  keep_by_rules(row, rules, kept_);
  double sum = 0.0;
  for (const Scored& s : kept_) {
    sum += std::exp((static_cast<double>(s.logit) - static_cast<double>(row.top)) /
                    static_cast<double>(rules.temperature));
  }
  return std::log(sum);
}

std::size_t Sampler::rank_greedy(const LogitRow& row, std::span<Candidate> out) {
  keep_largest(row, out.size(), kept_);
  const double log_z = log_sum(row, 1.0);
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    const auto log_p =
        static_cast<float>(static_cast<double>(kept_[i].logit) - static_cast<double>(row.top) - log_z);
    out[i] = {TokenId{kept_[i].token}, log_p, log_p};
  }
  return kept_.size();
}

std::size_t Sampler::rank(std::span<const float> logits, const SamplingRules& rules, Position position,
                          std::span<Candidate> out) {
  const Exclusive::Scope scope(busy_, "this sampler");
  const LogitRow row = checked(logits, rules);
  if (position.value() < 0) {
    throw UsageError("position is " + std::to_string(position.value()) + "; it must be at least 0");
  }
  if (out.empty()) {
    return 0;
  }
  if (rules.greedy()) {
    return rank_greedy(row, out);
  }

  const auto top = static_cast<double>(row.top);
  const auto temperature = static_cast<double>(rules.temperature);
  best_.reset(std::min(out.size(), vocabulary_));
  double log_z = 0.0;
  if (rules.truncates()) {
    log_z = keep(row, rules);
    rank_kept(rules, position);
  } else {
    log_z = log_sum(row, temperature);
    rank_all(row, rules, position);
  }
  std::size_t count = 0;
  for (const BestList::Entry& entry : best_.sorted()) {
    const double scaled = static_cast<double>(entry.logit) / temperature;
    const double log_p = (static_cast<double>(entry.logit) - top) / temperature - log_z;
    out[count++] = {TokenId{entry.token}, static_cast<float>(log_p + (entry.score - scaled)),
                    static_cast<float>(log_p)};
  }
  return count;
}

std::size_t Sampler::likeliest(std::span<const float> logits, const SamplingRules& rules,
                               std::span<Candidate> out) {
  const Exclusive::Scope scope(busy_, "this sampler");
  const LogitRow row = checked(logits, rules);
  if (rules.greedy()) {
    return rank_greedy(row, out);
  }
  const auto temperature = static_cast<double>(rules.temperature);
  double log_z = 0.0;
  if (rules.truncates()) {
    log_z = keep(row, rules);
    const std::size_t count = std::min(out.size(), kept_.size());
    std::partial_sort(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(count), kept_.end(),
                      likelier);
    kept_.resize(count);
  } else {
    log_z = log_sum(row, temperature);
    keep_largest(row, out.size(), kept_);
  }
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    const auto log_p = static_cast<float>(
        (static_cast<double>(kept_[i].logit) - static_cast<double>(row.top)) / temperature - log_z);
    out[i] = {TokenId{kept_[i].token}, log_p, log_p};
  }
  return kept_.size();
}

void Sampler::probabilities(std::span<const float> logits, const SamplingRules& rules, std::span<float> out) {
  const Exclusive::Scope scope(busy_, "this sampler");
  if (out.size() != vocabulary_) {
    throw UsageError("out has " + std::to_string(out.size()) + " entries; the vocabulary has " +
                     std::to_string(vocabulary_));
  }
  const LogitRow row = checked(logits, rules);
  const auto temperature = static_cast<double>(rules.temperature);
  if (!rules.greedy() && !rules.truncates()) {
    const float scale = kernels::inverse(temperature);
    const auto share = static_cast<float>(std::exp(-log_sum(row, temperature)));
    for (std::size_t first = 0; first < vocabulary_; first += kTile) {
      const std::size_t count = std::min(kTile, vocabulary_ - first);
      kernels::tile_exp(&row.logits[first], count, row.top, scale, &out[first]);
      for (std::size_t i = first; i < first + count; ++i) {
        out[i] *= share;
      }
    }
    return;
  }
  std::fill(out.begin(), out.end(), 0.0F);
  if (rules.greedy()) {
    keep_largest(row, 1, kept_);
    out[static_cast<std::size_t>(kept_.front().token)] = 1.0F;
    return;
  }
  const double log_z = keep(row, rules);
  for (const Scored& s : kept_) {
    out[static_cast<std::size_t>(s.token)] = static_cast<float>(
        std::exp((static_cast<double>(s.logit) - static_cast<double>(row.top)) / temperature - log_z));
  }
}

}  // namespace acespec
