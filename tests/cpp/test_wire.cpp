#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/wire/codec.h"

using namespace acespec;
using namespace acespec::wire;

namespace {

using Bytes = std::vector<std::uint8_t>;

std::vector<TokenId> ids(std::initializer_list<std::int32_t> values) {
  std::vector<TokenId> tokens;
  for (const std::int32_t value : values) {
    tokens.push_back(TokenId{value});
  }
  return tokens;
}

Bytes bytes_of(const std::string& hex) {
  Bytes bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

Bytes golden(const std::string& name) {
  std::ifstream file(std::string(ACESPEC_VECTORS) + "/wire/" + name + ".hex");
  REQUIRE_MESSAGE(file.good(), name);
  Bytes bytes;
  std::string line;
  while (std::getline(file, line)) {
    const Bytes of_line = bytes_of(line);
    bytes.insert(bytes.end(), of_line.begin(), of_line.end());
  }
  return bytes;
}

Open open_ruled() {
  Open open{7, ids({1, 2, 3}), {.temperature = 1.0F, .seed = 5}, ids({2}), 64};
  open.rules.repetition_penalty = 1.25F;
  open.rules.presence_penalty = 0.5F;
  open.rules.frequency_penalty = -0.25F;
  open.rules.logit_bias = {{TokenId{17}, -100.0F}, {TokenId{70000}, 2.5F}};
  open.rules.banned = ids({4, 5});
  open.rules.allowed = ids({17, 18, 70000});
  open.rules.min_tokens = 9;
  open.rules.carried = 2;
  open.logprobs = 5;
  open.mode = Mode::kResidual;
  return open;
}

Verdict verdict_logprobs() {
  Verdict verdict{1, 3, 1042, 17, ids({600})};
  verdict.logprobs = {{-0.25F, {{TokenId{9}, -0.25F}, {TokenId{70000}, -1.5F}}},
                      {-3.0F, {{TokenId{8}, -0.125F}, {TokenId{9}, -2.5F}}}};
  return verdict;
}

Verdict verdict_sparse() {
  Verdict verdict{1, 5, 1042, 18, {}};
  verdict.logprobs = {{-0.5F, {}}};
  verdict.sparse = SparseRow{{{TokenId{3}, 0.5F}, {TokenId{65536}, 0.25F}},
                             0.25F,
                             {{TokenId{7}, 0.125F}, {TokenId{7}, 0.125F}, {TokenId{1}, 0.0625F}}};
  return verdict;
}

Open open_held() {
  Open open{9, ids({5, 6}), {}, {}, 32};
  open.held = 3;
  open.held_digest = bytes_of("17ab3cb590e849d1bd70a73f9acb72e3");
  return open;
}

Open open_zstd() {
  Open open{10, {}, {}, {}, 32};
  open.prompt_zstd = bytes_of(
      "28b52ffd60b003ed02005206141d906fff3fe181071e78e081071e78e08196929292922275777777779414d34fcc48c5"
      "416e1534537291b06b0dd59c642cf45e4537291b0dbfd851ce4ac743c02c69a7e52362a0b6d4f3123251704b0502008c"
      "b82a64aeb30a66");
  return open;
}

Draft draft_hinting() {
  Draft draft{1, 7, 1042, 20, {}, ids({5})};
  draft.wants_hint = true;
  return draft;
}

Verdict verdict_hint() {
  Verdict verdict{1, 7, 1042, 20, ids({6})};
  verdict.hint = ids({7, 150000, 8});
  return verdict;
}

/// The messages of tests/vectors/wire/messages.json.
std::vector<std::pair<std::string, Message>> described() {
  Hello hello;
  for (std::size_t i = 0; i < hello.tokenizer.size(); ++i) {
    hello.tokenizer[i] = static_cast<std::uint8_t>(i);
  }
  hello.vocabulary = 2500;
  hello.drafter = "tiny-0.1b";
  hello.chunks = {1, 4022250974U, 305419896U};
  Welcome welcome;
  welcome.vocabulary = 151665;
  welcome.max_context = 32768;
  welcome.max_nodes = 64;
  for (std::size_t i = 0; i < welcome.session.size(); ++i) {
    welcome.session[i] = static_cast<std::uint8_t>(0xF0 + i);
  }
  welcome.target =
      "gr\xC3\xB6\xC3\x9F"
      "er-70b";
  Hello hello_resume = hello;
  hello_resume.drafter.clear();
  hello_resume.chunks.clear();
  hello_resume.resume.assign(welcome.session.begin(), welcome.session.end());
  Welcome welcome_keeps = welcome;
  welcome_keeps.target.clear();
  welcome_keeps.keep_s = 300;
  Verdict verdict_reused{9, 0, 5, 0, ids({7}), Finish::kNone, 0, 78000};
  verdict_reused.reused = 3;
  return {
      {"hello_resume", hello_resume},
      {"welcome_keeps", welcome_keeps},
      {"open_held", open_held()},
      {"open_zstd", open_zstd()},
      {"verdict_reused", verdict_reused},
      {"fault_gone", Fault{9, FaultCode::kGone, "send the whole prompt", 0}},
      {"hello", hello},
      {"welcome", welcome},
      {"open_greedy", Open{1, ids({1, 258, 65535}), {}, {}, 128, false}},
      {"open_sampled", Open{513,
                            ids({151644, 872, 198}),
                            {0.75F, 40, 0.5F, 0.0625F, 81985529216486895U},
                            ids({151645, 151643}),
                            1000,
                            true}},
      {"open_ruled", open_ruled()},
      {"open_grammar",
       Open{8, ids({1}), {}, {}, 32, false, 0, Grammar::kRegex, "[a-z\xC3\xBC]+", Mode::kCoupled}},
      {"draft_residual",
       Draft{1, 5, 1042, 17, {}, ids({150000, 7, 150001}), false, {65535, 0, 32767}, TokenId{90000}, false}},
      {"draft_more_tail", Draft{1, 6, 1042, 20, {}, {}, false, {}, kNoToken, true}},
      {"verdict_logprobs", verdict_logprobs()},
      {"verdict_sparse", verdict_sparse()},
      {"draft_hinting", draft_hinting()},
      {"verdict_hint", verdict_hint()},
      {"draft_chain",
       Draft{
           1, 3, 1042, 17, {}, ids({150000, 150001, 150002, 150003, 150004, 150005, 150006, 150007}), false}},
      {"draft_tree",
       Draft{1, 65535, 70000, 4294967000U, {0, 1, 0, 2, 255}, ids({5, 600, 7, 65535, 0}), true}},
      {"draft_wide_ids", Draft{2, 1, 9, 1, {}, ids({16777216, 2147483647}), false}},
      {"draft_plain_step", Draft{2, 4, 12, 1, {}, {}, false}},
      {"verdict", Verdict{1, 3, 1042, 20, ids({151643}), Finish::kStop, 1500, 78000}},
      {"verdict_cancelled", Verdict{1, 3, 1042, 0, {}, Finish::kCancelled, 0, 0}},
      {"cancel", Cancel{65535}},
      {"close", Close{"done"}},
      {"close_silent", Close{}},
      {"fault", Fault{7, FaultCode::kBusy, "12 sessions are open", 2500}},
  };
}

}  // namespace

TEST_CASE("every message has its golden bytes, both ways") {
  for (const auto& [name, message] : described()) {
    CAPTURE(name);
    CHECK(encode(message) == golden(name));
    CHECK((decode(golden(name)) == message));
  }
}

TEST_CASE("a message may lie at any address") {
  for (const auto& [name, message] : described()) {
    const Bytes bytes = golden(name);
    for (std::size_t shift = 1; shift < 8; ++shift) {
      Bytes shifted(shift, 0);
      shifted.insert(shifted.end(), bytes.begin(), bytes.end());
      CHECK((decode(std::span(shifted).subspan(shift)) == message));
    }
  }
}

TEST_CASE("every truncation is refused or still a whole message") {
  for (const auto& [name, message] : described()) {
    const Bytes bytes = golden(name);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      CAPTURE(name);
      CAPTURE(length);
      // An exact copy, so that a sanitizer sees a read past its end.
      const Bytes cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
      try {
        static_cast<void>(encode(decode(cut)));
      } catch (const PeerError&) {
        continue;
      }
    }
  }
}

TEST_CASE("mutated bytes decode to a valid message or are the peer's fault") {
  std::mt19937 random(1);
  std::size_t let_in = 0;
  std::size_t refused = 0;
  for (const auto& [name, message] : described()) {
    const Bytes bytes = golden(name);
    for (int i = 0; i < 20000; ++i) {
      Bytes mutated = bytes;
      for (std::size_t changes = 1 + random() % 4; changes > 0; --changes) {
        const std::size_t at = random() % mutated.size();
        mutated[at] = random() % 3 == 0 ? static_cast<std::uint8_t>(random())
                                        : static_cast<std::uint8_t>(mutated[at] ^ (1U << random() % 8));
      }
      if (random() % 4 == 0) {
        mutated.resize(random() % (mutated.size() + 8));
      }
      try {
        static_cast<void>(encode(decode(mutated)));  // encode() checks the invariants anew
        ++let_in;
      } catch (const PeerError&) {
        ++refused;
      }
    }
  }
  CHECK(let_in > 10000);
  CHECK(refused > 10000);
}

TEST_CASE("random bytes under each identifier") {
  std::mt19937 random(2);
  for (const auto& [name, message] : described()) {
    const Bytes bytes = golden(name);
    for (int i = 0; i < 2000; ++i) {
      Bytes noise(8 + random() % 120);
      for (std::uint8_t& byte : noise) {
        byte = static_cast<std::uint8_t>(random() % 2 == 0 ? random() % 24 : random());
      }
      std::copy(bytes.begin() + 4, bytes.begin() + 8, noise.begin() + 4);
      try {
        static_cast<void>(encode(decode(noise)));
      } catch (const PeerError&) {
        continue;
      }
    }
  }
}

TEST_CASE("limits are checked on both sides") {
  Draft draft;
  draft.tokens.assign(9, TokenId{1});
  const Bytes bytes = encode(draft);
  CHECK_THROWS_AS(static_cast<void>(encode(draft, {.max_nodes = 8})), UsageError);
  CHECK_THROWS_AS(static_cast<void>(decode(bytes, {.max_nodes = 8})), PeerError);
  CHECK_THROWS_AS(static_cast<void>(encode(draft, {.max_bytes = bytes.size() - 1})), UsageError);
  CHECK_THROWS_AS(static_cast<void>(decode(bytes, {.max_bytes = bytes.size() - 1})), PeerError);
  CHECK_THROWS_AS(static_cast<void>(decode({})), PeerError);
}

TEST_CASE("what a prompt builds upon has a digest of 16 bytes, and one form") {
  Open open = open_held();
  open.held_digest.pop_back();
  CHECK_THROWS_WITH_AS(static_cast<void>(encode(open)), doctest::Contains("Open.held_digest has 15 bytes"),
                       UsageError);
  open = open_held();
  open.held = 0;
  CHECK_THROWS_WITH_AS(static_cast<void>(encode(open)), doctest::Contains("0 would be right"), UsageError);
  open = open_zstd();
  open.prompt = ids({1});
  CHECK_THROWS_WITH_AS(static_cast<void>(encode(open)), doctest::Contains("both there"), UsageError);
  const Bytes bytes = encode(open_zstd());
  CHECK_THROWS_WITH_AS(static_cast<void>(decode(bytes, {.max_prompt = 20})),
                       doctest::Contains("Open.prompt_zstd"), PeerError);
  Hello hello;
  hello.resume.assign(17, 1);
  CHECK_THROWS_WITH_AS(static_cast<void>(encode(hello)), doctest::Contains("Hello.resume has 17 bytes"),
                       UsageError);
}

TEST_CASE("a parent may belong to an earlier draft, but not lie before node 1") {
  Draft draft;
  draft.first_node = 3;
  draft.tokens = ids({7, 8});
  draft.parent_offsets = {2, 3};
  CHECK((decode(encode(draft)) == Message{draft}));
  draft.parent_offsets = {3, 1};
  CHECK_THROWS_WITH_AS(static_cast<void>(encode(draft)), doctest::Contains("at most 2"), UsageError);
}

TEST_CASE("sizes keep their promises") {
  Draft chain;
  chain.first_node = 700;
  for (std::int32_t i = 0; i < 8; ++i) {
    chain.tokens.push_back(TokenId{151000 + i});
  }
  CHECK(encode(chain).size() <= 80);
  Draft tree = chain;
  tree.tokens.assign(64, TokenId{151000});
  tree.parent_offsets.assign(64, 1);
  CHECK(encode(tree).size() < 350);
  CHECK(encode(Verdict{1, 9, 5000, 0, ids({151000}), Finish::kNone, 100, 80000}).size() <= 60);
}
