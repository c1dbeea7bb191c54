// Residual mode: what is drafted, taken or rejected, and drawn instead has the target's distribution.
#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <numeric>
#include <random>

#include "acespec/base/error.h"
#include "residual_judge.h"

using namespace acespec;
using namespace acespec::test;

namespace {

constexpr std::size_t kVocabulary = 16;
constexpr int kDraws = 20000;
/// A chi-square of 15 degrees of freedom passes it once in 10^8.
constexpr double kAlarm = 68.0;

using Row = std::vector<float>;

Row random_row(unsigned seed, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, spread);
  Row row(kVocabulary);
  std::ranges::generate(row, [&] { return normal(random); });
  return row;
}

Row probabilities(const Row& logits, const SamplingRules& rules) {
  Row p(logits.size());
  Sampler(logits.size()).probabilities(logits, rules, p);
  return p;
}

QuantisedDistribution quantised(const Row& logits, const SamplingRules& rules) {
  std::vector<Candidate> likeliest(rules.greedy() ? 1 : logits.size());
  const std::size_t count = Sampler(logits.size()).likeliest(logits, rules, likeliest);
  return QuantisedDistribution(std::span(likeliest).first(count));
}

QuantisedDistribution weighted(std::initializer_list<float> p) {
  std::vector<Candidate> candidates;
  for (const float share : p) {
    candidates.push_back({TokenId{static_cast<std::int32_t>(candidates.size())}, 0.0F, std::log(share)});
  }
  return QuantisedDistribution(candidates);
}

/// What is drawn in place of a rejected token.
using Instead = std::function<TokenId(const QuantisedDistribution& q, std::uint64_t seed, Position position)>;

/// The chi-square of kDraws outcomes against p, over positions of one seed or over seeds at one position.
double outcome(const Row& p, const QuantisedDistribution& q, bool over_seeds, const Instead& instead,
               const QuantisedDistribution* told = nullptr) {
  std::vector<int> seen(p.size(), 0);
  for (int i = 0; i < kDraws; ++i) {
    const std::uint64_t seed = over_seeds ? static_cast<std::uint64_t>(i) : 11U;
    const Position position{over_seeds ? 5 : i};
    const TokenId drafted = q.draw(stream_words(seed, Stream::kDraw, position, 0).w0);
    const double weight = (told == nullptr ? q : *told).probability(drafted);
    const bool taken = accepts(p[drafted.index()], weight, seed, position);
    ++seen[(taken ? drafted : instead(q, seed, position)).index()];
  }
  const std::vector<double> expected(p.begin(), p.end());
  return chi_square(seen, expected);
}

/// The protocol: a head, and `samples` of the tail at a time for as long as they run out.
Instead protocol(const Row& p, std::size_t head, std::size_t samples, std::size_t* asked = nullptr) {
  return [&p, unsampled = sparse_row(p, head), samples, asked](const QuantisedDistribution& q,
                                                               std::uint64_t seed, Position position) {
    SparseRow row = unsampled;
    while (true) {
      for (std::size_t i = 0; i < samples; ++i) {
        add_sample(row, p, seed, position);
      }
      if (const auto token = residual_draw(row, q, seed, position)) {
        return *token;
      }
      if (asked != nullptr) {
        ++*asked;
      }
    }
  };
}

}  // namespace

TEST_CASE("a quantised distribution draws each token by its weight, exactly") {
  for (const float spread : {0.3F, 1.5F, 5.0F}) {
    const Row logits = random_row(3, spread);
    const SamplingRules rules{.temperature = 0.9F};
    const QuantisedDistribution q = quantised(logits, rules);
    const Row p = probabilities(logits, rules);
    std::array<std::uint32_t, kVocabulary> drawn{};
    for (std::uint32_t word = 0; word < QuantisedDistribution::kTotal; ++word) {
      ++drawn[q.draw(word << 16U | (word * 40503U & 0xFFFFU)).index()];
    }
    std::uint32_t total = 0;
    for (std::size_t i = 0; i < kVocabulary; ++i) {
      const std::uint32_t weight = q.weight(TokenId{static_cast<std::int32_t>(i)});
      CHECK(weight == drawn[i]);
      if (p[i] < *std::ranges::max_element(p)) {
        CHECK(std::abs(static_cast<double>(weight) - std::floor(static_cast<double>(p[i]) * 65536)) <= 1.0);
      }
      total += weight;
    }
    CHECK(total == QuantisedDistribution::kTotal);
  }
}

TEST_CASE("quantised distributions at their ends") {
  CHECK(weighted({1.0F}).weight(TokenId{0}) == 65536);
  CHECK(weighted({1.0F}).draw(UINT32_MAX) == TokenId{0});
  // Too flat for any token but the first: nobody has a share of 1 / 65,536.
  const std::vector<Candidate> flat(QuantisedDistribution::kMostTokens, {TokenId{9}, 0.0F, std::log(1e-6F)});
  std::vector<Candidate> distinct = flat;
  for (std::size_t i = 0; i < distinct.size(); ++i) {
    distinct[i].token = TokenId{static_cast<std::int32_t>(i)};
  }
  CHECK(QuantisedDistribution(distinct).tokens() == std::vector<TokenId>{TokenId{0}});
  CHECK(QuantisedDistribution().weight(TokenId{0}) == 0);
  CHECK_THROWS_AS(QuantisedDistribution(std::span<const Candidate>{}), UsageError);
  distinct.push_back({});
  CHECK_THROWS_AS(QuantisedDistribution{distinct}, UsageError);
  // Greedy drafting is a draw from one token.
  CHECK(quantised(random_row(1, 2.0F), {}).tokens().size() == 1);
}

TEST_CASE("probabilities are those that candidates report") {
  for (const SamplingRules& rules :
       {SamplingRules{}, SamplingRules{.temperature = 0.7F}, SamplingRules{.temperature = 1.0F, .top_k = 5},
        SamplingRules{.temperature = 1.3F, .top_p = 0.8F, .min_p = 0.02F}}) {
    std::mt19937 random(8);
    std::normal_distribution<float> normal(0.0F, 3.0F);
    Row logits(900);
    std::ranges::generate(logits, [&] { return normal(random); });
    logits[4] = -std::numeric_limits<float>::infinity();
    Sampler sampler(890);
    std::vector<Candidate> all(890);
    all.resize(sampler.likeliest(logits, rules, all));
    Row p(890);
    sampler.probabilities(logits, rules, p);
    CHECK(std::accumulate(p.begin(), p.end(), 0.0) == doctest::Approx(1.0).epsilon(1e-5));
    CHECK(std::ranges::is_sorted(all, std::ranges::greater{}, &Candidate::log_p));
    std::vector<Candidate> ranked(890);
    ranked.resize(sampler.rank(logits, rules, Position{3}, ranked));
    CHECK(ranked.size() == all.size());
    if (rules.greedy()) {
      CHECK(p[all[0].token.index()] == 1.0F);
      continue;
    }
    CHECK(static_cast<std::size_t>(std::ranges::count_if(p, [](float x) { return x > 0.0F; })) <= all.size());
    for (const auto& list : {all, ranked}) {
      for (const Candidate& c : list) {
        CHECK(p[c.token.index()] == doctest::Approx(std::exp(c.log_p)).epsilon(1e-5));
      }
    }
  }
  Row short_row(3);
  CHECK_THROWS_AS(Sampler(4).probabilities(Row(4), {}, short_row), UsageError);
}

TEST_CASE("accepted or resampled, the outcome has the target's distribution") {
  const SamplingRules plain{.temperature = 1.0F};
  const Row p = probabilities(random_row(21, 1.0F), plain);
  for (const bool over_seeds : {false, true}) {
    for (const unsigned drafter : {21U, 22U}) {
      for (const float spread : {0.4F, 2.0F}) {
        const QuantisedDistribution q = quantised(random_row(drafter, spread), plain);
        for (const std::size_t head : {1U, 4U, 15U, 16U}) {
          CAPTURE(drafter);
          CAPTURE(spread);
          CAPTURE(head);
          CHECK(outcome(p, q, over_seeds, protocol(p, head, head < 16 ? 1 : 0)) < kAlarm);
        }
      }
    }
  }
}

TEST_CASE("tail samples that run out are asked for again, and change nothing") {
  const SamplingRules plain{.temperature = 1.0F};
  const Row p = probabilities(random_row(31, 0.6F), plain);
  const QuantisedDistribution q = quantised(random_row(32, 1.5F), plain);
  std::size_t asked = 0;
  for (const std::size_t samples : {1U, 3U, 40U}) {
    for (int i = 0; i < 3000; ++i) {
      std::size_t again = 0;
      CHECK(protocol(p, 3, samples, &again)(q, 8, Position{i}) == protocol(p, 3, 1)(q, 8, Position{i}));
      asked += samples == 1 ? again : 0;
    }
  }
  CHECK(asked > 1000);
}

TEST_CASE("target (0.6, 0.4), drafter (0.8, 0.2): 0.6 and 0.4 come out (S1)") {
  const Row p{0.6F, 0.4F};
  const QuantisedDistribution q = weighted({0.8F, 0.2F});
  for (const bool over_seeds : {false, true}) {
    CHECK(outcome(p, q, over_seeds, protocol(p, 1, 1)) < 33.0);
    // The q used to accept must be the q used to draw.
    const QuantisedDistribution other = weighted({0.6F, 0.4F});
    CHECK(outcome(p, q, over_seeds, protocol(p, 1, 1), &other) > 300.0);
  }
}

TEST_CASE("a token drafted greedily is one of weight 1 (S2)") {
  const SamplingRules plain{.temperature = 1.0F};
  const Row p = probabilities(random_row(41, 1.0F), plain);
  const Row drafter = random_row(42, 1.0F);
  const QuantisedDistribution q = quantised(drafter, {});
  CHECK(outcome(p, q, false, protocol(p, 4, 2)) < kAlarm);
  // Accepted by the probability that sampling would have had, the favourite comes out too often.
  const QuantisedDistribution sampled = quantised(drafter, plain);
  CHECK(outcome(p, q, false, protocol(p, 4, 2), &sampled) > 300.0);
}

TEST_CASE("truncated and greedy targets") {
  for (const SamplingRules& rules : {SamplingRules{}, SamplingRules{.temperature = 0.8F, .top_k = 6},
                                     SamplingRules{.temperature = 1.0F, .top_p = 0.7F, .min_p = 0.05F}}) {
    const Row p = probabilities(random_row(51, 1.0F), rules);
    const QuantisedDistribution q = quantised(random_row(52, 1.0F), rules);
    for (const std::size_t head : {1U, 3U, 16U}) {
      CHECK(outcome(p, q, false, protocol(p, head, head < 16 ? 1 : 0)) < kAlarm);
    }
  }
}

TEST_CASE("negative controls: what looks alike and is biased is caught") {
  const SamplingRules plain{.temperature = 1.0F};
  const Row p = probabilities(random_row(21, 1.0F), plain);
  const QuantisedDistribution q = quantised(random_row(22, 1.0F), plain);
  REQUIRE(outcome(p, q, false, protocol(p, 4, 1)) < kAlarm);

  // A head that is renormalised, without a tail.
  const Instead headless = [&p](const QuantisedDistribution& from, std::uint64_t seed, Position position) {
    SparseRow row = sparse_row(p, 4);
    for (TokenProbability& entry : row.head) {
      entry.p /= 1.0F - row.tail_mass;
    }
    row.tail_mass = 0.0F;
    return *residual_draw(row, from, seed, position);
  };
  CHECK(outcome(p, q, false, headless) > 1000.0);

  // A new start when the samples have run out, instead of going on.
  const Instead restarting = [&p](const QuantisedDistribution& from, std::uint64_t seed, Position position) {
    for (std::uint64_t turn = 0;; ++turn) {
      SparseRow row = sparse_row(p, 4);
      if (turn > 0) {
        add_sample(row, p, seed + (turn << 32U), position);
      }
      if (const auto token = residual_draw(row, from, seed + (turn << 32U), position)) {
        return *token;
      }
    }
  };
  CHECK(outcome(p, q, false, restarting) > 300.0);

  // The target's own distribution instead of the residual.
  const Instead plainly = [&p](const QuantisedDistribution&, std::uint64_t seed, Position position) {
    return *residual_draw(sparse_row(p, kVocabulary), weighted({1e-9F}), seed, position);
  };
  CHECK(outcome(p, q, false, plainly) > 300.0);
}

TEST_CASE("residuals at their ends") {
  const QuantisedDistribution q = weighted({0.5F, 0.5F});
  // No weight is left but by rounding.
  const SparseRow equal{{{TokenId{1}, 0.5F}, {TokenId{0}, 0.5F}}, 0.0F, {}};
  CHECK(residual_draw(equal, q, 1, Position{0}) == TokenId{1});
  // No tail, and a head that does not sum to 1: never a request for samples.
  const SparseRow loose{{{TokenId{2}, 0.1F}, {TokenId{3}, 0.7F}, {TokenId{0}, 0.1F}}, 0.0F, {}};
  for (int i = 0; i < 2000; ++i) {
    const auto token = residual_draw(loose, q, 1, Position{i});
    REQUIRE(token);
    CHECK((*token == TokenId{2} || *token == TokenId{3}));
  }
  // Samples that the drafter is likelier to draw than the target are never taken.
  const SparseRow drained{{{TokenId{2}, 0.0F}}, 1.0F, std::vector<TokenProbability>(50, {TokenId{0}, 0.4F})};
  CHECK_FALSE(residual_draw(drained, q, 1, Position{0}));
  CHECK_THROWS_AS(static_cast<void>(residual_draw({}, q, 1, Position{0})), UsageError);
  CHECK_THROWS_AS(static_cast<void>(residual_draw(equal, {}, 1, Position{0})), UsageError);
}
