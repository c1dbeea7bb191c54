#include <doctest/doctest.h>

#include "acespec/base/error.h"
#include "acespec/policy/calibration.h"

using namespace acespec;

TEST_CASE("without verdicts a probability is the prior") {
  const Calibration calibration(0.7F);
  CHECK(calibration.probability(0, 0.5F, 0.25F) == 0.25F);
}
