// A drafter on a fake engine, next to plain decoding by the same rules, which shares nothing with it but the
// room of sampling.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "acespec/drafter/drafter.h"
#include "acespec/engine/fake/fake_engine.h"

namespace acespec::test {

inline FakeOptions model(float disagreement = 0.0F, std::size_t slots = 256) {
  FakeOptions options;
  options.vocabulary = 32;
  options.slots = slots;
  options.max_rows = 16;
  options.seed = 5;
  options.disagreement = disagreement;
  return options;
}

inline std::vector<TokenId> tokens_of(std::initializer_list<int> ids) {
  std::vector<TokenId> tokens;
  for (const int id : ids) {
    tokens.emplace_back(id);
  }
  return tokens;
}

/// What binds a request's output. `mask`: of the token after a text, prompt included.
struct Terms {
  SamplingRules rules{};
  std::vector<TokenId> stop_ids{};
  std::function<std::vector<std::uint32_t>(std::span<const TokenId> text)> mask{};
  bool residual = false;
};

/// The model's own choice after `text`, whose first `prompt` tokens are no output.
inline TokenId choose(const FakeOptions& options, std::span<const TokenId> text, std::size_t prompt,
                      const Terms& terms) {
  LogitShaper shaper(options.vocabulary, terms.rules, text.first(prompt), terms.stop_ids);
  shaper.commit(text.subspan(prompt));
  const std::vector<float> logits = fake_logits(options, text);
  const std::vector<std::uint32_t> mask = terms.mask ? terms.mask(text) : std::vector<std::uint32_t>{};
  Sampler sampler(options.vocabulary);
  Candidate best;
  sampler.rank(shaper.shape(logits, {}, mask), terms.rules, Position{static_cast<std::int32_t>(text.size())},
               {&best, 1});
  return best.token;
}

// The engine is the mask's judge: FakeEngine throws on a wrong mask or a stale slot, and wrong visible tokens
// change the drafted chain, which is compared with the drafter's own plain decoding.
struct Bench {
  FakeOptions options;
  Terms terms;
  Drafter drafter;
  std::vector<TokenId> text;
  std::size_t prompt = 0;
  std::vector<std::uint32_t> words;

  explicit Bench(FakeOptions drafter_model, DrafterOptions drafting = {.context = 128}, Terms bound = {})
      : options(drafter_model),
        terms(std::move(bound)),
        drafter(std::make_shared<FakeEngine>(drafter_model), drafting) {}

  void begin(std::vector<TokenId> start) {
    drafter.begin(start, terms.rules, terms.stop_ids, terms.residual);
    text = std::move(start);
    prompt = text.size();
    if (terms.mask) {
      drafter.set_mask([this](std::span<const TokenId> path) -> std::span<const std::uint32_t> {
        std::vector<TokenId> whole = text;
        whole.insert(whole.end(), path.begin(), path.end());
        words = terms.mask(whole);
        return words;
      });
    }
    sound();
  }

  void sound() { REQUIRE(drafter.check() == std::vector<std::string>{}); }

  StepReport step(std::size_t width, bool extend) {
    const StepReport report = drafter.step(width, extend);
    sound();
    return report;
  }

  void draft(std::size_t length) {
    while (drafter.ready() < length && !step(1, true).exhausted) {
    }
  }

  Recovery commit(const std::vector<TokenId>& tokens) {
    const Recovery recovery = drafter.apply_verdict(tokens);
    text.insert(text.end(), tokens.begin(), tokens.end());
    sound();
    return recovery;
  }

  /// What the drafter's model would go on with by itself.
  [[nodiscard]] std::vector<TokenId> plain(std::size_t length) const {
    std::vector<TokenId> all = text;
    for (std::size_t index = 0; index < length; ++index) {
      all.push_back(choose(options, all, prompt, terms));
    }
    return {all.begin() + static_cast<std::ptrdiff_t>(text.size()), all.end()};
  }

  /// Takes up to `length` tokens of the chain, below what of it is sent, and holds them to plain decoding.
  std::vector<TokenId> send_chain(std::size_t length) {
    const std::size_t sent = drafter.ready() - drafter.unsent();
    const std::vector<TokenId> chain = drafter.take_chain(length).tokens;
    const std::vector<TokenId> all = plain(sent + chain.size());
    REQUIRE(chain == std::vector(all.begin() + static_cast<std::ptrdiff_t>(sent), all.end()));
    sound();
    return chain;
  }
};

}  // namespace acespec::test
