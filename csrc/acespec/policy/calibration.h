// How often the target takes what the drafter proposes, against what the drafter thinks.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace acespec {

/// Probability that the target takes a candidate, by its rank among its siblings (0 is the drafter's first
/// choice; kRanks - 1 and beyond are one) and its confidence, the drafter's own probability of it among the
/// candidates. Until verdicts tell, it is the prior.
///
/// A cell of the table, one rank and one range of confidences, counts what verdicts told; the prior is worth
/// kPriorSamples. With n samples of mean prior q' in a cell, t of them taken, the cell's posterior mean is
/// p' = (t + 16 q') / (n + 16) (Beta prior), and a candidate of prior q has the odds of q times
/// odds(p') / odds(q'): q' gives p', and within a cell the order of priors stays. Counts are halved at kMost,
/// so old verdicts fade.
///
/// Not thread-safe. O(1), no allocation.
class Calibration {
 public:
  static constexpr std::size_t kRanks = 4;
  static constexpr double kPriorSamples = 16.0;
  static constexpr double kMost = 512.0;

  /// `sharpness`: temperature that turns scores into priors; below 1 because drafter and target agree more
  /// often than the drafter's own probabilities say. Throws UsageError when it is not positive.
  explicit Calibration(float sharpness);

  /// Confidences (softmax) and priors (softmax of score / sharpness) of the candidates with these scores. All
  /// three have one size. Throws UsageError when they do not, or a score is not finite.
  void assess(std::span<const float> scores, std::span<float> confidences, std::span<float> priors) const;

  /// Throws UsageError when `confidence` or `prior` is not from 0 to 1.
  [[nodiscard]] float probability(std::size_t rank, float confidence, float prior) const;
  /// The target decided at a candidate's parent: on the candidate, or on another token.
  void observe(std::size_t rank, float confidence, float prior, bool taken);

 private:
  /// Lower ends of the ranges of confidence: finer towards both ends, where odds change fastest.
  static constexpr std::array<float, 8> kFrom{0.0F, 0.03F, 0.15F, 0.35F, 0.6F, 0.8F, 0.93F, 0.985F};

  struct Counts {
    double samples = 0.0;
    double taken = 0.0;
    double priors = 0.0;      // sum
    double odds_ratio = 1.0;  // odds(p') / odds(q')
  };

  static std::size_t cell_of(std::size_t rank, float confidence);

  float sharpness_;
  std::array<Counts, kRanks * kFrom.size()> cells_{};
};

}  // namespace acespec
