#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/engine/trace/trace_engine.h"

using namespace acespec;

namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr std::size_t kSlots = 64;
constexpr std::size_t kVocabulary = 32;

std::vector<TokenId> ids(std::initializer_list<std::int32_t> tokens) {
  std::vector<TokenId> out;
  for (const std::int32_t token : tokens)
    out.emplace_back(token);
  return out;
}

/// Prompt 1 2, text 10 11 12; before text[i] the drafter's best are 20 + i and 25 + i, by -0.1 i and -3.
TraceRecord example() {
  return {
      ids({1, 2}), ids({10, 11, 12}), ids({20, 25, 21, 26, 22, 27}), {-0.0F, -3, -0.1F, -3, -0.2F, -3}, 2};
}

struct Row {
  std::int32_t token;
  std::int32_t position;
  std::uint32_t slot;
  std::vector<std::uint32_t> sees;  // its own slot is added
};

/// The id with the best score of each row.
std::vector<std::int32_t> best_of(TraceEngine& engine, const std::vector<Row>& rows) {
  std::vector<TokenId> tokens;
  std::vector<Position> positions;
  std::vector<KvSlot> slots;
  std::vector<std::uint32_t> wanted;
  std::vector<float> bias(rows.size() * kSlots, kHidden);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    tokens.emplace_back(rows[i].token);
    positions.emplace_back(rows[i].position);
    slots.emplace_back(rows[i].slot);
    wanted.push_back(static_cast<std::uint32_t>(i));
    bias[i * kSlots + rows[i].slot] = 0.0F;
    for (const std::uint32_t slot : rows[i].sees)
      bias[i * kSlots + slot] = 0.0F;
  }
  const std::span<const float> logits = engine.forward({tokens, positions, slots, bias, kSlots, wanted});
  std::vector<std::int32_t> best;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = logits.subspan(i * kVocabulary, kVocabulary);
    REQUIRE(std::ranges::count_if(row, [](float score) { return std::isfinite(score); }) == 2);
    best.push_back(static_cast<std::int32_t>(std::ranges::max_element(row) - row.begin()));
  }
  return best;
}

std::string complaint(TraceEngine& engine, const TraceRecord& record) {
  try {
    engine.set_record(record);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TraceOptions small() {
  return {kVocabulary, kSlots, 8, 128};
}

}  // namespace

TEST_CASE("a row on the text gets what was recorded there") {
  TraceEngine replay(small());
  replay.set_record(example());
  CHECK(best_of(replay, {{1, 0, 5, {}}, {2, 1, 3, {5}}}).back() == 20);
  CHECK(best_of(replay, {{10, 2, 9, {5, 3}}, {11, 3, 1, {5, 3, 9}}}) == std::vector{21, 22});
}

TEST_CASE("the order of the rows does not matter, nor what a slot held before") {
  TraceEngine replay(small());
  replay.set_record(example());
  best_of(replay, {{1, 0, 0, {}}, {9, 1, 1, {0}}});
  CHECK(best_of(replay, {{11, 3, 3, {0, 1, 2}}, {10, 2, 2, {0, 1}}, {2, 1, 1, {0}}}) ==
        std::vector{22, 21, 20});
}

TEST_CASE("a slot's old token is never taken for the one before its new one") {
  TraceEngine replay(small());
  replay.set_record(example());
  best_of(replay, {{1, 0, 5, {}}, {2, 1, 6, {5}}, {9, 2, 1, {5, 6}}, {10, 2, 7, {5, 6}}});
  CHECK(best_of(replay, {{11, 3, 1, {5, 6, 7}}}) == std::vector{22});
}

TEST_CASE("off the text a row is a function of its path, and siblings are told apart by the mask") {
  TraceEngine replay(small());
  replay.set_record(example());
  best_of(replay, {{1, 0, 0, {}}, {2, 1, 1, {0}}});
  // Two children of the prompt; the second is the text.
  best_of(replay, {{7, 2, 2, {0, 1}}, {10, 2, 3, {0, 1}}});
  const auto seen = best_of(replay, {{11, 3, 4, {0, 1, 2}}, {11, 3, 5, {0, 1, 3}}});
  CHECK(seen[1] == 22);
  CHECK(best_of(replay, {{11, 3, 6, {0, 1, 2}}})[0] == seen[0]);
  // Different paths do not all look alike.
  std::vector<std::int32_t> found;
  for (std::int32_t token = 0; token < 30; ++token)
    found.push_back(best_of(replay, {{token, 3, 7, {0, 1, 2}}})[0]);
  std::ranges::sort(found);
  CHECK(std::ranges::unique(found).begin() - found.begin() == 3);
}

TEST_CASE("past the end of the text a row gets some recorded scores") {
  TraceEngine replay(small());
  replay.set_record(example());
  const auto best = best_of(
      replay,
      {{1, 0, 0, {}}, {2, 1, 1, {0}}, {10, 2, 2, {0, 1}}, {11, 3, 3, {0, 1, 2}}, {12, 4, 4, {0, 1, 2, 3}}});
  CHECK(best.back() >= 20);
  CHECK(best.back() <= 22);
}

TEST_CASE("another record finds the prefix that it shares, and nothing of the old scores") {
  TraceEngine replay(small());
  replay.set_record(example());
  best_of(replay, {{1, 0, 0, {}}, {2, 1, 1, {0}}, {10, 2, 2, {0, 1}}});
  TraceRecord other = example();
  other.text = ids({10, 13, 14});
  other.top = ids({3, 4, 5, 6, 7, 8});
  replay.set_record(other);
  CHECK(best_of(replay, {{13, 3, 3, {0, 1, 2}}, {10, 2, 4, {0, 1}}}) == std::vector{7, 5});
  replay.clear();
  CHECK_THROWS_AS(best_of(replay, {{2, 1, 1, {0}}}), EngineError);
}

TEST_CASE("records that do not do are refused by name, and the old one stays") {
  TraceEngine replay(small());
  CHECK_THROWS_AS(best_of(replay, {{1, 0, 0, {}}}), UsageError);
  replay.set_record(example());
  const auto changed = [](auto&& change) {
    TraceRecord record = example();
    change(record);
    return record;
  };
  CHECK(complaint(replay, changed([](TraceRecord& r) { r.text.clear(); })).find("text") != std::string::npos);
  CHECK(complaint(replay, changed([](TraceRecord& r) { r.top[2] = TokenId{32}; })).find("top[2] is 32") !=
        std::string::npos);
  CHECK(complaint(replay, changed([](TraceRecord& r) { r.scores[1] = kHidden; })).find("scores[1]") !=
        std::string::npos);
  CHECK(complaint(replay, changed([](TraceRecord& r) { r.scores.pop_back(); })).find("3 rows of 2") !=
        std::string::npos);
  CHECK(complaint(replay, changed([](TraceRecord& r) { r.prompt.resize(200); })).find("at most 128") !=
        std::string::npos);
  CHECK(best_of(replay, {{1, 0, 0, {}}, {2, 1, 1, {0}}}).back() == 20);
}
