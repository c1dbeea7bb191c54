#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/policy/calibration.h"

using namespace acespec;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void observe(Calibration& calibration, std::size_t rank, float confidence, float prior, int taken,
             int refused) {
  for (int i = 0; i < taken + refused; ++i) {
    calibration.observe(rank, confidence, prior, i < taken);
  }
}

}  // namespace

TEST_CASE("without verdicts a probability is the prior") {
  const Calibration calibration(0.7F);
  for (const float prior : {0.0F, 0.25F, 1.0F}) {
    CHECK(calibration.probability(0, 0.5F, prior) == prior);
  }
}

TEST_CASE("the prior of a candidate is worth 16 samples") {
  Calibration calibration(0.7F);
  observe(calibration, 0, 0.7F, 0.8F, 4, 12);
  CHECK(calibration.probability(0, 0.7F, 0.8F) == doctest::Approx((4 + 16 * 0.8) / 32));
  observe(calibration, 0, 0.7F, 0.8F, 16, 48);
  CHECK(calibration.probability(0, 0.7F, 0.8F) == doctest::Approx((20 + 16 * 0.8) / 96));
}

TEST_CASE("ranks and ranges of confidence are counted apart") {
  Calibration calibration(0.7F);
  observe(calibration, 1, 0.2F, 0.2F, 0, 100);
  CHECK(calibration.probability(1, 0.25F, 0.2F) < 0.05F);
  CHECK(calibration.probability(1, 0.5F, 0.2F) == 0.2F);
  CHECK(calibration.probability(0, 0.2F, 0.2F) == 0.2F);
  CHECK(calibration.probability(2, 0.2F, 0.2F) == 0.2F);
  // Ranks from the fourth on are one.
  observe(calibration, 3, 0.1F, 0.1F, 30, 0);
  CHECK(calibration.probability(3, 0.1F, 0.1F) > 0.5F);
  CHECK(calibration.probability(9, 0.1F, 0.1F) == calibration.probability(3, 0.1F, 0.1F));
}

TEST_CASE("within a range of confidence the order of priors stays") {
  Calibration calibration(0.7F);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(0.0F, 1.0F);
  for (int i = 0; i < 3000; ++i) {
    const float confidence = uniform(random);
    calibration.observe(static_cast<std::size_t>(4 * uniform(random)), confidence, uniform(random),
                        uniform(random) < confidence * confidence);
  }
  for (int i = 0; i < 3000; ++i) {
    const auto rank = static_cast<std::size_t>(4 * uniform(random));
    const float confidence = uniform(random);
    float before = 0.0F;
    for (const float prior : {0.0F, 1e-9F, 1e-3F, 0.2F, 0.5F, 0.9F, 0.9999F, 1.0F}) {
      const float p = calibration.probability(rank, confidence, prior);
      REQUIRE(p >= before);
      REQUIRE(p <= 1.0F);
      before = p;
    }
  }
}

TEST_CASE("a drafter that is too sure is corrected at every confidence") {
  // The target takes a candidate of prior q with probability q^2.
  Calibration calibration(0.7F);
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform(0.0F, 1.0F);
  for (int i = 0; i < 20000; ++i) {
    const float q = uniform(random);
    calibration.observe(0, q, q, uniform(random) < q * q);
  }
  double raw = 0;
  double calibrated = 0;
  for (float q = 0.01F; q < 1.0F; q += 0.01F) {
    raw += std::abs(q - q * q);
    calibrated += std::abs(calibration.probability(0, q, q) - q * q);
  }
  CHECK(calibrated < raw / 4);
}

TEST_CASE("old verdicts fade") {
  Calibration calibration(0.7F);
  observe(calibration, 0, 0.9F, 0.5F, 5000, 0);
  CHECK(calibration.probability(0, 0.9F, 0.5F) > 0.95F);
  observe(calibration, 0, 0.9F, 0.5F, 0, 512);
  CHECK(calibration.probability(0, 0.9F, 0.5F) < 0.45F);
  observe(calibration, 0, 0.9F, 0.5F, 0, 1024);
  CHECK(calibration.probability(0, 0.9F, 0.5F) < 0.1F);
}

TEST_CASE("confidences and priors are softmaxes of the scores") {
  const Calibration calibration(0.5F);
  const std::vector<float> scores{1000.0F, 999.0F, 990.0F};
  std::vector<float> confidences(3);
  std::vector<float> priors(3);
  calibration.assess(scores, confidences, priors);
  CHECK(std::accumulate(confidences.begin(), confidences.end(), 0.0F) == doctest::Approx(1));
  CHECK(std::accumulate(priors.begin(), priors.end(), 0.0F) == doctest::Approx(1));
  CHECK(confidences[0] / confidences[1] == doctest::Approx(std::exp(1.0)));
  CHECK(priors[0] / priors[1] == doctest::Approx(std::exp(2.0)));
  CHECK_NOTHROW(calibration.assess({}, {}, {}));
}

TEST_CASE("a calibration refuses what is no probability") {
  CHECK_THROWS_WITH_AS(Calibration(0.0F), doctest::Contains("sharpness is 0"), UsageError);
  CHECK_THROWS_AS(Calibration{kNan}, UsageError);
  Calibration calibration(0.7F);
  for (const float bad : {-0.1F, 1.1F, kNan}) {
    CHECK_THROWS_AS(static_cast<void>(calibration.probability(0, bad, 0.5F)), UsageError);
    CHECK_THROWS_AS(static_cast<void>(calibration.probability(0, 0.5F, bad)), UsageError);
    CHECK_THROWS_AS(calibration.observe(0, bad, 0.5F, true), UsageError);
    CHECK_THROWS_AS(calibration.observe(0, 0.5F, bad, true), UsageError);
  }
  CHECK_NOTHROW(calibration.observe(0, 1.000001F, 1.000001F, true));
  std::vector<float> two(2);
  std::vector<float> three(3);
  CHECK_THROWS_AS(calibration.assess(two, three, two), UsageError);
  CHECK_THROWS_AS(calibration.assess(std::vector<float>{kNan, 0.0F}, two, two), UsageError);
}
