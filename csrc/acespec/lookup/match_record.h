// How often a text goes on as it did before.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "acespec/lookup/ngram_index.h"

namespace acespec {

/// Probability that the target takes a looked-up token, by how many tokens before it agree. With n samples of
/// a length, t of them taken, it is (t + 16 q) / (n + 16), q being what is assumed beforehand (Beta prior).
/// Counts are halved at kMost, so old verdicts fade. O(1), no allocation. Not thread-safe.
class MatchRecord {
 public:
  static constexpr double kPriorSamples = 16.0;
  static constexpr double kMost = 512.0;

  /// `length`: tokens that agree; longer than NgramIndex::kLongest counts as that.
  [[nodiscard]] float probability(std::size_t length) const {
    const std::size_t cell = cell_of(length);
    const auto& [samples, taken] = cells_[cell];
    return static_cast<float>((taken + kPriorSamples * kAssumed[cell]) / (samples + kPriorSamples));
  }
  /// The target decided where a token was looked up: on that one, or on another.
  void observe(std::size_t length, bool taken) {
    Counts& counts = cells_[cell_of(length)];
    counts.samples += 1.0;
    counts.taken += taken ? 1.0 : 0.0;
    if (counts.samples >= kMost) {
      counts.samples /= 2;
      counts.taken /= 2;
    }
  }

 private:
  struct Counts {
    double samples = 0.0;
    double taken = 0.0;
  };
  static constexpr std::array<double, NgramIndex::kLongest - NgramIndex::kShortest + 1> kAssumed{
      0.30, 0.45, 0.55, 0.65, 0.70, 0.75, 0.80};

  static std::size_t cell_of(std::size_t length) {
    return std::clamp(length, NgramIndex::kShortest, NgramIndex::kLongest) - NgramIndex::kShortest;
  }

  std::array<Counts, kAssumed.size()> cells_{};
};

}  // namespace acespec
