#include "acespec/policy/calibration.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "acespec/policy/checks.h"

namespace acespec {

namespace {

/// Keeps odds finite: a prior is never quite sure.
constexpr double kSurest = 1e-6;
/// What the sum of a softmax may exceed 1 by.
constexpr float kRounding = 1e-3F;

double odds(double p) {
  const double inside = std::clamp(p, kSurest, 1.0 - kSurest);
  return inside / (1.0 - inside);
}

void require_share(const char* field, float value) {
  require(value >= 0.0F && value <= 1.0F + kRounding, field, static_cast<double>(value), "from 0 to 1");
}

}  // namespace

Calibration::Calibration(float sharpness) : sharpness_(sharpness) {
  require_positive("sharpness", static_cast<double>(sharpness));
}

void Calibration::assess(std::span<const float> scores, std::span<float> confidences,
                         std::span<float> priors) const {
  if (confidences.size() != scores.size() || priors.size() != scores.size()) {
    throw UsageError("confidences and priors have " + std::to_string(confidences.size()) + " and " +
                     std::to_string(priors.size()) + " entries; they must have one for each of the " +
                     std::to_string(scores.size()) + " scores");
  }
  if (scores.empty()) {
    return;
  }
  const float best = std::ranges::max(scores);
  float confidence_sum = 0.0F;
  float prior_sum = 0.0F;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    require(std::isfinite(scores[i]), "a score", static_cast<double>(scores[i]), "finite");
    confidences[i] = std::exp(scores[i] - best);
    priors[i] = std::exp((scores[i] - best) / sharpness_);
    confidence_sum += confidences[i];
    prior_sum += priors[i];
  }
  for (std::size_t i = 0; i < scores.size(); ++i) {
    confidences[i] /= confidence_sum;
    priors[i] /= prior_sum;
  }
}

std::size_t Calibration::cell_of(std::size_t rank, float confidence) {
  const auto bin = std::ranges::upper_bound(kFrom, confidence) - kFrom.begin() - 1;
  return std::min(rank, kRanks - 1) * kFrom.size() + static_cast<std::size_t>(bin);
}

float Calibration::probability(std::size_t rank, float confidence, float prior) const {
  require_share("confidence", confidence);
  require_share("prior", prior);
  const Counts& counts = cells_[cell_of(rank, confidence)];
  if (counts.samples == 0.0) {
    return std::min(prior, 1.0F);
  }
  const double there = odds(static_cast<double>(prior)) * counts.odds_ratio;
  return static_cast<float>(there / (1.0 + there));
}

void Calibration::observe(std::size_t rank, float confidence, float prior, bool taken) {
  require_share("confidence", confidence);
  require_share("prior", prior);
  Counts& counts = cells_[cell_of(rank, confidence)];
  counts.samples += 1.0;
  counts.taken += taken ? 1.0 : 0.0;
  counts.priors += std::clamp(static_cast<double>(prior), kSurest, 1.0 - kSurest);
  if (counts.samples >= kMost) {
    counts.samples /= 2;
    counts.taken /= 2;
    counts.priors /= 2;
  }
  const double prior_mean = counts.priors / counts.samples;
  const double mean = (counts.taken + kPriorSamples * prior_mean) / (counts.samples + kPriorSamples);
  counts.odds_ratio = odds(mean) / odds(prior_mean);
}

}  // namespace acespec
