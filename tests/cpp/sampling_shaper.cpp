// The rules that change logits, against their definition written out one token at a time.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/sampling/sampler.h"
#include "acespec/sampling/shaper.h"

using namespace acespec;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

using Tokens = std::vector<TokenId>;

struct Case {
  SamplingRules rules;
  Tokens prompt;
  Tokens output;
  Tokens path;
  Tokens stop_ids;
  std::vector<std::uint32_t> mask;
};

std::vector<float> reference(const std::vector<float>& logits, std::size_t vocabulary, const Case& c) {
  Tokens prompt = c.prompt;
  Tokens output(prompt.end() - static_cast<std::ptrdiff_t>(c.rules.carried), prompt.end());
  prompt.resize(prompt.size() - c.rules.carried);
  output.insert(output.end(), c.output.begin(), c.output.end());
  output.insert(output.end(), c.path.begin(), c.path.end());
  const auto holds = [](const Tokens& tokens, TokenId token) {
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
  };
  std::vector<float> row;
  for (std::size_t i = 0; i < vocabulary; ++i) {
    const TokenId token{static_cast<std::int32_t>(i)};
    const bool out = (!c.rules.allowed.empty() && !holds(c.rules.allowed, token)) ||
                     holds(c.rules.banned, token) ||
                     (output.size() < c.rules.min_tokens && holds(c.stop_ids, token)) ||
                     (!c.mask.empty() && (c.mask[i / 32] >> (i % 32) & 1U) == 0U);
    volatile float logit = out ? -kInf : logits[i];  // rounded after each operation
    for (const LogitBias& entry : c.rules.logit_bias) {
      logit = entry.token == token ? logit + entry.bias : logit;
    }
    const auto times = std::count(output.begin(), output.end(), token);
    if (times > 0 || holds(prompt, token)) {
      logit = logit > 0.0F ? logit / c.rules.repetition_penalty : logit * c.rules.repetition_penalty;
    }
    if (times > 0) {
      const volatile float frequency = c.rules.frequency_penalty * static_cast<float>(times);
      logit = logit - frequency;
      logit = logit - c.rules.presence_penalty;
    }
    row.push_back(static_cast<float>(logit));
  }
  return row;
}

Tokens some(std::mt19937& random, std::size_t vocabulary, std::size_t most) {
  Tokens tokens(random() % (most + 1));
  std::ranges::generate(tokens, [&] { return TokenId{static_cast<std::int32_t>(random() % vocabulary)}; });
  return tokens;
}

std::vector<float> random_logits(std::mt19937& random, std::size_t count) {
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> logits(count);
  std::ranges::generate(logits, [&] { return normal(random); });
  return logits;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(a, b, [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

Case random_case(std::mt19937& random, std::size_t vocabulary) {
  Case c;
  const auto chance = [&] { return random() % 2 == 0; };
  c.prompt = some(random, vocabulary, 20);
  c.output = some(random, vocabulary, 20);
  c.path = some(random, vocabulary, 6);
  c.rules.repetition_penalty = chance() ? 0.5F + static_cast<float>(random() % 16) / 8.0F : 1.0F;
  c.rules.presence_penalty = chance() ? static_cast<float>(random() % 33) / 8.0F - 2.0F : 0.0F;
  c.rules.frequency_penalty = chance() ? static_cast<float>(random() % 33) / 8.1F - 2.0F : 0.0F;
  if (chance()) {
    for (const TokenId token : some(random, vocabulary, 5)) {
      if (std::ranges::none_of(c.rules.logit_bias, [&](const LogitBias& b) { return b.token == token; })) {
        c.rules.logit_bias.push_back({token, static_cast<float>(random() % 1000) / 7.0F - 100.0F});
      }
    }
  }
  c.rules.banned = chance() ? some(random, vocabulary, 5) : Tokens{};
  c.rules.allowed = chance() ? some(random, vocabulary, 30) : Tokens{};
  c.rules.min_tokens = static_cast<std::uint32_t>(random() % 40);
  c.rules.carried = static_cast<std::uint32_t>(random() % (c.prompt.size() + 1));
  c.stop_ids = chance() ? some(random, vocabulary + 10, 3) : Tokens{};
  if (chance()) {
    c.mask.resize((vocabulary + 31) / 32);
    std::ranges::generate(
        c.mask, [&] { return random() % 3 == 0 ? UINT32_MAX : static_cast<std::uint32_t>(random()); });
  }
  return c;
}

}  // namespace

TEST_CASE("shapes as the plain definition does, bit for bit") {
  std::mt19937 random(5);
  for (const std::size_t vocabulary : {1U, 31U, 32U, 33U, 500U}) {
    for (int turn = 0; turn < 300; ++turn) {
      const Case c = random_case(random, vocabulary);
      const std::vector<float> logits = random_logits(random, vocabulary + random() % 9);
      LogitShaper shaper(vocabulary, c.rules, c.prompt, c.stop_ids);
      const auto half = static_cast<std::ptrdiff_t>(c.output.size() / 2);
      shaper.commit(std::span(c.output).first(static_cast<std::size_t>(half)));
      shaper.commit(std::span(c.output).subspan(static_cast<std::size_t>(half)));
      const auto row = shaper.shape(logits, c.path, c.mask).first(vocabulary);
      REQUIRE(same_bits(row, reference(logits, vocabulary, c)));
      // A drafted path leaves no trace (S4).
      Case rejected = c;
      rejected.path.clear();
      REQUIRE(same_bits(shaper.shape(logits, {}, c.mask).first(vocabulary),
                        reference(logits, vocabulary, rejected)));
    }
  }
}

TEST_CASE("a row that no rule touches is not copied") {
  const std::vector<float> logits(8, 0.5F);
  const Tokens prompt(3, TokenId{1});
  LogitShaper plain(8, {.temperature = 0.7F, .top_k = 3, .seed = 4}, prompt, {});
  CHECK_FALSE(plain.shapes());
  CHECK(plain.shape(logits, prompt).data() == logits.data());
  const std::vector<std::uint32_t> mask{0x7U};
  CHECK(std::isinf(plain.shape(logits, {}, mask)[3]));
  CHECK(plain.shape(logits, {}).data() == logits.data());

  const TokenId stop{2};
  LogitShaper waits(8, {.min_tokens = 2}, prompt, {&stop, 1});
  CHECK(waits.shapes());
  CHECK(std::isinf(waits.shape(logits, {})[2]));
  CHECK(std::isinf(waits.shape(logits, Tokens(1, TokenId{5}))[2]));
  CHECK(waits.shape(logits, Tokens(2, TokenId{5}))[2] == 0.5F);
  waits.commit(Tokens(2, TokenId{5}));
  CHECK_FALSE(waits.shapes());
  LogitShaper goes_on(8, {.min_tokens = 2, .carried = 2}, prompt, {&stop, 1});
  CHECK_FALSE(goes_on.shapes());
}

TEST_CASE("rules bind greedy decoding too (S3)") {
  const std::vector<float> logits{4.0F, 3.0F, 2.0F, 1.0F};
  const auto choice = [&](const SamplingRules& rules) {
    LogitShaper shaper(4, rules, {}, {});
    Sampler sampler(4);
    Candidate best;
    sampler.rank(shaper.shape(logits, {}), rules, Position{0}, {&best, 1});
    return best.token.value();
  };
  CHECK(choice({}) == 0);
  CHECK(choice({.logit_bias = {{TokenId{0}, -100.0F}}}) == 1);
  CHECK(choice({.min_p = 0.5F, .logit_bias = {{TokenId{0}, -100.0F}, {TokenId{3}, 2.5F}}}) == 3);
  CHECK(choice({.banned = {TokenId{0}, TokenId{1}}}) == 2);
  CHECK(choice({.allowed = {TokenId{3}, TokenId{2}}}) == 2);
  CHECK(choice({.temperature = 1.0F, .top_k = 1, .banned = {TokenId{0}}}) == 1);
}

TEST_CASE("nothing left to draw is an engine's fault that says so") {
  const std::vector<float> logits(4, 1.0F);
  Sampler sampler(4);
  Candidate best;
  for (const float temperature : {0.0F, 1.0F}) {
    SamplingRules rules{.temperature = temperature};
    rules.allowed = {TokenId{1}};
    rules.banned = {TokenId{1}};
    LogitShaper shaper(4, rules, {}, {});
    CHECK_THROWS_WITH_AS(sampler.rank(shaper.shape(logits, {}), rules, Position{0}, {&best, 1}),
                         doctest::Contains("every token is ruled out"), NoTokenError);
  }
}

TEST_CASE("misuse of the shaping rules is named") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto fails = [](const SamplingRules& rules, const char* field) {
    CHECK_THROWS_WITH_AS(LogitShaper(8, rules, {}, {}), doctest::Contains(field), UsageError);
  };
  fails({.repetition_penalty = 0.0F}, "repetition_penalty");
  fails({.repetition_penalty = nan}, "repetition_penalty");
  fails({.repetition_penalty = kInf}, "repetition_penalty");
  fails({.presence_penalty = 2.1F}, "presence_penalty");
  fails({.presence_penalty = nan}, "presence_penalty");
  fails({.frequency_penalty = -2.1F}, "frequency_penalty");
  fails({.logit_bias = {{TokenId{1}, kInf}}}, "logit_bias of token 1");
  fails({.logit_bias = {{TokenId{-1}, 0.0F}}}, "logit_bias[0]");
  fails({.logit_bias = {{TokenId{1}, 0.0F}, {TokenId{2}, 1.0F}, {TokenId{1}, 2.0F}}}, "token 1 twice");
  fails({.logit_bias = {{TokenId{8}, 0.0F}}}, "logit_bias names token 8");
  fails({.banned = {TokenId{8}}}, "banned names token 8");
  fails({.banned = {TokenId{-2}}}, "banned[0]");
  fails({.allowed = {TokenId{0}, TokenId{9}}}, "allowed names token 9");
  fails({.carried = 1}, "carried is 1");
  fails({.temperature = -1.0F}, "temperature");
  CHECK_THROWS_WITH_AS(LogitShaper(8, {}, Tokens{TokenId{8}}, {}), doctest::Contains("prompt"), UsageError);

  LogitShaper shaper(40, {.repetition_penalty = 2.0F}, {}, {});
  const std::vector<float> logits(40, 0.0F);
  CHECK_THROWS_WITH_AS(shaper.commit(Tokens{TokenId{40}}), doctest::Contains("output"), UsageError);
  CHECK_THROWS_WITH_AS(static_cast<void>(shaper.shape(std::span(logits).first(39), {})),
                       doctest::Contains("39 columns"), UsageError);
  CHECK_THROWS_WITH_AS(static_cast<void>(shaper.shape(logits, Tokens{TokenId{-1}})),
                       doctest::Contains("path"), UsageError);
  const std::vector<std::uint32_t> mask{1U};
  CHECK_THROWS_WITH_AS(static_cast<void>(shaper.shape(logits, {}, mask)),
                       doctest::Contains("mask has 1 words"), UsageError);
}
