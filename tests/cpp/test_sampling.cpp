#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/base/philox.h"
#include "acespec/sampling/sampler.h"

using namespace acespec;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// The rules as rules.h words them, one token at a time in double precision.
std::vector<Candidate> reference(std::span<const float> logits, const SamplingRules& rules, Position position,
                                 std::size_t count) {
  struct Item {
    std::int32_t token;
    double scaled;
    double score = 0.0;
  };
  const double t = rules.greedy() ? 1.0 : static_cast<double>(rules.temperature);
  std::vector<Item> items;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isinf(logits[i])) {
      items.push_back({static_cast<std::int32_t>(i), static_cast<double>(logits[i]) / t});
    }
  }
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.scaled > b.scaled; });
  const double top = items.front().scaled;
  const auto mass = [&] {
    double sum = 0.0;
    for (const Item& item : items) {
      sum += std::exp(item.scaled - top);
    }
    return sum;
  };
  if (!rules.greedy()) {
    if (rules.min_p > 0.0F) {
      std::erase_if(
          items, [&](const Item& x) { return x.scaled < top + std::log(static_cast<double>(rules.min_p)); });
    }
    if (rules.top_k > 0 && items.size() > static_cast<std::size_t>(rules.top_k)) {
      items.resize(static_cast<std::size_t>(rules.top_k));
    }
    if (rules.top_p < 1.0F) {
      const double wanted = static_cast<double>(rules.top_p) * mass();
      double head = 0.0;
      std::size_t size = 0;
      while (size < items.size() && head < wanted) {
        head += std::exp(items[size++].scaled - top);
      }
      items.resize(size);
    }
  }
  const double log_z = std::log(mass());
  for (Item& item : items) {
    const double noise =
        rules.greedy() ? 0.0 : gumbel(gumbel_word(rules.seed, position, TokenId{item.token}));
    item.score = item.scaled - top - log_z + noise;
  }
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return a.score != b.score ? a.score > b.score : a.token < b.token;
  });
  std::vector<Candidate> out;
  for (const Item& item : std::span(items).first(std::min(count, items.size()))) {
    out.push_back(
        {TokenId{item.token}, static_cast<float>(item.score), static_cast<float>(item.scaled - top - log_z)});
  }
  return out;
}

std::vector<Candidate> rank(std::span<const float> logits, const SamplingRules& rules, std::int32_t position,
                            std::size_t count, std::size_t vocabulary = 0) {
  Sampler sampler(vocabulary == 0 ? logits.size() : vocabulary);
  std::vector<Candidate> out(count);
  out.resize(sampler.rank(logits, rules, Position{position}, out));
  return out;
}

void check_equal(const std::vector<Candidate>& got, const std::vector<Candidate>& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].token.value() == want[i].token.value());
    CHECK(got[i].score == doctest::Approx(want[i].score).epsilon(1e-5));
    CHECK(got[i].log_p == doctest::Approx(want[i].log_p).epsilon(1e-5));
  }
}

std::vector<float> random_logits(std::mt19937& random, std::size_t count, float spread) {
  std::normal_distribution<float> normal(0.0F, spread);
  std::vector<float> logits(count);
  std::generate(logits.begin(), logits.end(), [&] { return normal(random); });
  return logits;
}

}  // namespace

TEST_CASE("ranks as the plain definition does, under every combination of rules") {
  std::mt19937 random(7);
  for (const std::size_t vocabulary : {1U, 5U, 255U, 256U, 257U, 3000U, 20011U}) {
    for (const float spread : {0.1F, 2.0F, 6.0F}) {
      std::vector<float> logits = random_logits(random, vocabulary, spread);
      if (vocabulary > 100) {
        for (std::size_t i = 0; i < vocabulary / 3; ++i) {
          logits[random() % vocabulary] = -kInf;
        }
      }
      for (const float temperature : {0.0F, 0.3F, 1.0F, 1.7F}) {
        for (const std::int32_t top_k : {0, 1, 40, 2500}) {
          for (const float top_p : {1.0F, 0.9F, 0.2F, 0.99999F}) {
            for (const float min_p : {0.0F, 0.05F, 1.0F}) {
              const SamplingRules rules{temperature, top_k, top_p, min_p, random()};
              const auto position = static_cast<std::int32_t>(random() % 100000);
              CAPTURE(vocabulary);
              CAPTURE(spread);
              CAPTURE(temperature);
              CAPTURE(top_k);
              CAPTURE(top_p);
              CAPTURE(min_p);
              check_equal(rank(logits, rules, position, 8), reference(logits, rules, Position{position}, 8));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a whole ranking holds every finite token once") {
  std::mt19937 random(3);
  const std::vector<float> logits = random_logits(random, 1500, 3.0F);
  const SamplingRules rules{.temperature = 1.0F, .seed = 5};
  check_equal(rank(logits, rules, 9, 2000), reference(logits, rules, Position{9}, 2000));
  check_equal(rank(logits, {}, 9, 2000), reference(logits, {}, Position{9}, 2000));
}

TEST_CASE("one sampler serves many calls") {
  std::mt19937 random(11);
  Sampler sampler(4000);
  std::vector<Candidate> out(6);
  for (int i = 0; i < 50; ++i) {
    const std::vector<float> logits = random_logits(random, 4000, 2.5F);
    const SamplingRules rules{i % 5 == 0 ? 0.0F : 0.8F, i % 3 == 0 ? 50 : 0, i % 2 == 0 ? 0.95F : 1.0F, 0.0F,
                              3};
    const std::size_t count = sampler.rank(logits, rules, Position{i}, out);
    check_equal({out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count)},
                reference(logits, rules, Position{i}, 6));
  }
}

TEST_CASE("ties go to the lower token") {
  std::vector<float> logits(1000, 1.5F);
  const auto tokens = [](const std::vector<Candidate>& c) {
    std::vector<std::int32_t> ids;
    std::transform(c.begin(), c.end(), std::back_inserter(ids),
                   [](const Candidate& x) { return x.token.value(); });
    return ids;
  };
  CHECK(tokens(rank(logits, {}, 0, 4)) == std::vector<std::int32_t>{0, 1, 2, 3});
  logits[700] = 2.0F;
  CHECK(tokens(rank(logits, {}, 0, 3)) == std::vector<std::int32_t>{700, 0, 1});
  const SamplingRules three{.temperature = 1.0F, .top_k = 3, .seed = 1};
  std::vector<std::int32_t> kept = tokens(rank(logits, three, 0, 10));
  std::sort(kept.begin(), kept.end());
  CHECK(kept == std::vector<std::int32_t>{0, 1, 700});
  // At this temperature the noise is below the resolution of a score: still a function of the logits alone.
  CHECK(tokens(rank(logits, {.temperature = 1e-37F, .seed = 1}, 0, 2)) == std::vector<std::int32_t>{700, 0});
}

TEST_CASE("padded columns are never drawn, whatever they hold") {
  std::vector<float> logits(300, 0.0F);
  for (std::size_t i = 290; i < 300; ++i) {
    logits[i] = i % 2 == 0 ? 1e30F : std::numeric_limits<float>::quiet_NaN();
  }
  for (const SamplingRules& rules : {SamplingRules{}, SamplingRules{.temperature = 1.0F},
                                     SamplingRules{.temperature = 1.0F, .top_p = 0.5F}}) {
    for (const Candidate& c : rank(logits, rules, 4, 300, 290)) {
      CHECK(c.token.value() < 290);
      CHECK(c.log_p <= 0.0F);
    }
  }
}

TEST_CASE("numbers that no distribution can be made of are an engine's fault") {
  for (const std::size_t place : {0U, 63U, 299U}) {
    for (const float value : {kInf, std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> logits(300, 0.0F);
      logits[place] = value;
      CHECK_THROWS_AS(rank(logits, {}, 0, 1), EngineError);
      CHECK_THROWS_AS(rank(logits, {.temperature = 1.0F}, 0, 1), EngineError);
    }
  }
  const std::vector<float> nothing(300, -kInf);
  CHECK_THROWS_AS(rank(nothing, {}, 0, 1), EngineError);
  std::vector<float> one(300, -kInf);
  one[123] = -3e38F;
  for (const float temperature : {0.0F, 1e-30F, 1.0F}) {
    const auto found = rank(one, {.temperature = temperature, .top_p = 0.9F}, 0, 5);
    REQUIRE(found.size() == 1);
    CHECK(found[0].token == TokenId{123});
    CHECK(found[0].log_p == 0.0F);
  }
}

TEST_CASE("misuse is named") {
  const std::vector<float> logits(10, 0.0F);
  CHECK_THROWS_WITH_AS(rank(logits, {}, 0, 1, 11), doctest::Contains("logits has 10 columns"), UsageError);
  CHECK_THROWS_WITH_AS(rank(logits, {}, -1, 1), doctest::Contains("position"), UsageError);
  CHECK_THROWS_WITH_AS(Sampler(0), doctest::Contains("vocabulary"), UsageError);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto fails = [](const SamplingRules& rules, const char* field) {
    CHECK_THROWS_WITH_AS(rules.validate(), doctest::Contains(field), UsageError);
  };
  fails({.temperature = -0.1F}, "temperature");
  fails({.temperature = nan}, "temperature");
  fails({.temperature = kInf}, "temperature");
  fails({.top_k = -1}, "top_k");
  fails({.top_p = 0.0F}, "top_p");
  fails({.top_p = 1.1F}, "top_p");
  fails({.top_p = nan}, "top_p");
  fails({.min_p = -0.1F}, "min_p");
  fails({.min_p = nan}, "min_p");
}

TEST_CASE("coupled draws follow the exact distribution") {
  // Chi-square against the probabilities, over positions of one seed and over seeds at one position.
  const std::vector<float> logits{2.0F, 1.0F, 0.0F, -1.0F, -2.0F, 1.5F, 0.5F, -0.5F};
  Sampler sampler(logits.size());
  for (const bool truncated : {false, true}) {
    SamplingRules rules{.temperature = 0.9F, .top_p = truncated ? 0.95F : 1.0F};
    const std::vector<Candidate> all = reference(logits, rules, Position{0}, logits.size());
    for (const bool over_seeds : {false, true}) {
      constexpr int kDraws = 40000;
      std::vector<int> seen(logits.size(), 0);
      for (int i = 0; i < kDraws; ++i) {
        rules.seed = over_seeds ? static_cast<std::uint64_t>(i) : 99U;
        Candidate best;
        REQUIRE(sampler.rank(logits, rules, Position{over_seeds ? 17 : i}, {&best, 1}) == 1);
        ++seen[best.token.index()];
      }
      double statistic = 0.0;
      int total = 0;
      for (const Candidate& c : all) {
        const double expected = kDraws * std::exp(static_cast<double>(c.log_p));
        statistic += (seen[c.token.index()] - expected) * (seen[c.token.index()] - expected) / expected;
        total += seen[c.token.index()];
      }
      CHECK(total == kDraws);
      CHECK(statistic < 26.0);  // 7 degrees of freedom: 1 in 2,000
    }
  }
}

TEST_CASE("draws at neighbouring positions are independent") {
  const std::vector<float> logits{0.0F, 0.0F};
  Sampler sampler(2);
  int same = 0;
  std::int32_t last = -1;
  constexpr int kDraws = 20000;
  for (int i = 0; i <= kDraws; ++i) {
    Candidate best;
    static_cast<void>(sampler.rank(logits, {.temperature = 1.0F, .seed = 4}, Position{i}, {&best, 1}));
    same += best.token.value() == last ? 1 : 0;
    last = best.token.value();
  }
  CHECK(std::abs(same - kDraws / 2) < 4 * std::sqrt(kDraws / 4.0));
}
