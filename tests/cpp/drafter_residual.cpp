// The drafter in residual mode: what it sends, what it remembers of it, and that the output is the target's.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "acespec/base/error.h"
#include "drafter_bench.h"
#include "residual_judge.h"

using namespace acespec;
using namespace acespec::test;

namespace {

/// The shaped row after a text, as the plain definition has it.
std::vector<float> row_after(const FakeOptions& options, std::span<const TokenId> text, std::size_t prompt,
                             const Terms& terms) {
  LogitShaper shaper(options.vocabulary, terms.rules, text.first(prompt), terms.stop_ids);
  shaper.commit(text.subspan(prompt));
  const std::vector<float> logits = fake_logits(options, text);
  const auto row = shaper.shape(logits, {});
  return {row.begin(), row.end()};
}

std::vector<float> target_after(const FakeOptions& options, std::span<const TokenId> text, std::size_t prompt,
                                const Terms& terms) {
  std::vector<float> p(options.vocabulary);
  Sampler(options.vocabulary).probabilities(row_after(options, text, prompt, terms), terms.rules, p);
  return p;
}

QuantisedDistribution drawn_after(const FakeOptions& options, std::span<const TokenId> text,
                                  std::size_t prompt, const Terms& terms) {
  std::vector<Candidate> likeliest(terms.rules.greedy() ? 1 : options.vocabulary);
  Sampler sampler(options.vocabulary);
  likeliest.resize(sampler.likeliest(row_after(options, text, prompt, terms), terms.rules, likeliest));
  return QuantisedDistribution(likeliest);
}

/// One round: what the target commits of the chain in flight and after it.
std::vector<TokenId> judge(Bench& bench, const FakeOptions& target, const std::vector<TokenId>& chain,
                           std::size_t head) {
  const std::vector<std::uint16_t> weights = bench.drafter.chain_weights();
  REQUIRE(weights.size() == chain.size());
  const std::uint64_t seed = bench.terms.rules.seed;
  std::vector<TokenId> text = bench.text;
  std::vector<TokenId> verdict;
  for (std::size_t depth = 0; depth < chain.size(); ++depth) {
    const std::vector<float> p = target_after(target, text, bench.prompt, bench.terms);
    const Position position{static_cast<std::int32_t>(text.size())};
    const double q = (weights[depth] + 1.0) / QuantisedDistribution::kTotal;
    if (!accepts(p[chain[depth].index()], q, seed, position)) {
      SparseRow row = sparse_row(p, head);
      std::optional<TokenId> token;
      while (!(token = bench.drafter.resample(depth, row))) {
        add_sample(row, p, seed, position);
      }
      verdict.push_back(*token);
      return verdict;
    }
    verdict.push_back(chain[depth]);
    text.push_back(chain[depth]);
  }
  verdict.push_back(choose(target, text, bench.prompt, bench.terms));  // the bonus
  return verdict;
}

}  // namespace

TEST_CASE("the chain is drawn from the quantised distributions along it, whose weights are kept") {
  std::mt19937 random(6);
  SamplingRules shaped{.temperature = 0.8F, .top_k = 9, .seed = 5, .frequency_penalty = 1.0F};
  shaped.banned = tokens_of({3});
  for (const Terms& terms :
       {Terms{.rules = {.temperature = 1.0F, .seed = 2}, .residual = true},
        Terms{.rules = shaped, .residual = true}, Terms{.rules = {}, .residual = true}}) {
    for (const std::size_t slots : {80U, 256U}) {
      Bench bench(model(0.2F, slots), {.context = 64, .candidates = 4, .max_nodes = 30}, terms);
      bench.begin(tokens_of({1, 2, 3}));
      while (bench.drafter.room() > 8) {
        bench.draft(5);
        const auto chain = bench.drafter.take_chain(5).tokens;
        for (std::size_t step = random() % 5; step > 0; --step) {
          bench.step(1 + random() % 16, false);
        }
        const auto weights = bench.drafter.chain_weights();
        REQUIRE(weights.size() == 5);
        std::vector<TokenId> text = bench.text;
        for (std::size_t depth = 0; depth < chain.size(); ++depth) {
          const QuantisedDistribution q = drawn_after(bench.options, text, bench.prompt, terms);
          const Position position{static_cast<std::int32_t>(text.size())};
          REQUIRE(chain[depth] == q.draw(stream_words(terms.rules.seed, Stream::kDraw, position, 0).w0));
          REQUIRE(weights[depth] + 1U == q.weight(chain[depth]));
          const SparseRow row = sparse_row(target_after(model(), text, bench.prompt, terms), 32);
          REQUIRE(bench.drafter.resample(depth, row) == residual_draw(row, q, terms.rules.seed, position));
          text.push_back(chain[depth]);
        }
        bench.commit(judge(bench, model(), chain, 32));
        CHECK(bench.drafter.chain_weights().empty());
      }
    }
  }
}

TEST_CASE("two tokens of output have the target's joint distribution, whatever the block") {
  FakeOptions target = model();
  target.vocabulary = 6;
  target.sharpness = 1.0F;
  FakeOptions own = target;
  own.disagreement = 0.5F;
  const std::vector<TokenId> prompt = tokens_of({1, 2});
  Terms terms{.rules = {.temperature = 1.0F, .presence_penalty = 0.5F}, .residual = true};
  std::vector<double> expected;
  const std::vector<float> first = target_after(target, prompt, 2, terms);
  for (std::size_t i = 0; i < 6; ++i) {
    std::vector<TokenId> text = prompt;
    text.emplace_back(static_cast<int>(i));
    for (const float p : target_after(target, text, 2, terms)) {
      expected.push_back(static_cast<double>(first[i]) * static_cast<double>(p));
    }
  }
#if defined(__SANITIZE_ADDRESS__)
  constexpr std::uint64_t kRuns = 3000;
#else
  constexpr std::uint64_t kRuns = 20000;
#endif
  for (const std::size_t length : {1U, 3U}) {
    std::vector<int> seen(36, 0);
    std::size_t rejected = 0;
    Bench bench(own, {.context = 32, .candidates = 3, .max_nodes = 12}, terms);
    for (std::uint64_t run = 0; run < kRuns; ++run) {
      bench.terms.rules.seed = run;
      bench.begin(prompt);
      while (bench.text.size() < 4) {
        bench.draft(length);
        const auto chain = bench.drafter.take_chain(length).tokens;
        REQUIRE(chain.size() == length);
        if (run % 3 == 0) {
          bench.drafter.step(4, false);
        }
        const auto verdict = judge(bench, target, chain, 2);
        rejected += verdict.size() <= length ? 1 : 0;
        bench.commit(verdict);
      }
      ++seen[bench.text[2].index() * 6 + bench.text[3].index()];
    }
    CHECK(rejected > kRuns / 10);
    CHECK(chi_square(seen, expected) < 105.0);  // 35 degrees of freedom: once in 10^8
  }
}

TEST_CASE("greedy in residual mode is the target's greedy text") {
  Bench bench(model(0.2F), {.context = 128}, {.rules = {.repetition_penalty = 1.2F}, .residual = true});
  bench.begin(tokens_of({4, 4}));
  std::vector<TokenId> plain = bench.text;
  while (plain.size() < 60) {
    plain.push_back(choose(model(), plain, 2, bench.terms));
  }
  std::size_t hits = 0;
  while (bench.text.size() < 60) {
    bench.draft(4);
    for (int step = 0; step < 4; ++step) {
      bench.step(8, false);
    }
    hits += bench.commit(judge(bench, model(), bench.drafter.take_chain(4).tokens, 4)).hit ? 1 : 0;
  }
  bench.text.resize(60);
  CHECK(bench.text == plain);
  CHECK(hits > 3);
}

TEST_CASE("a request in coupled mode after one in residual mode keeps nothing of it") {
  Bench bench(model(), {.context = 128}, {.rules = {.temperature = 1.0F, .seed = 3}, .residual = true});
  bench.begin(tokens_of({1, 2, 3}));
  bench.draft(4);
  bench.terms.residual = false;
  bench.begin(tokens_of({1, 2, 3}));
  bench.draft(4);
  CHECK(bench.drafter.take_chain(4).tokens == bench.plain(4));
  CHECK(bench.drafter.chain_weights().empty());
}

TEST_CASE("misuse of residual mode is named") {
  const SparseRow row{{{TokenId{1}, 1.0F}}, 0.0F, {}};
  Bench bench(model());
  bench.begin(tokens_of({1}));
  bench.draft(2);
  static_cast<void>(bench.drafter.take_chain(2));
  CHECK_THROWS_WITH_AS(static_cast<void>(bench.drafter.resample(0, row)),
                       doctest::Contains("not in residual"), UsageError);
  bench.terms = {.rules = {.temperature = 1.0F}, .residual = true};
  bench.begin(tokens_of({1}));
  bench.draft(2);
  CHECK_THROWS_AS(static_cast<void>(bench.drafter.resample(0, row)), UsageError);
  static_cast<void>(bench.drafter.take_chain(2));
  CHECK_THROWS_WITH_AS(static_cast<void>(bench.drafter.resample(2, row)),
                       doctest::Contains("2 are in flight"), UsageError);
  CHECK_THROWS_AS(static_cast<void>(bench.drafter.resample(0, {})), UsageError);
  const SparseRow beyond{{{TokenId{32}, 1.0F}}, 0.0F, {}};
  CHECK_THROWS_WITH_AS(static_cast<void>(bench.drafter.resample(0, beyond)), doctest::Contains("token 32"),
                       PeerError);
}
