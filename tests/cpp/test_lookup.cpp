#include <doctest/doctest.h>

#include <optional>
#include <random>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/lookup/match_record.h"
#include "acespec/lookup/ngram_index.h"

using namespace acespec;

namespace {

/// The definition, tried from the longest run and from the end of the text.
std::optional<NgramIndex::Match> reference(const std::vector<TokenId>& text,
                                           const std::vector<TokenId>& path) {
  std::vector<TokenId> whole = text;
  whole.insert(whole.end(), path.begin(), path.end());
  for (std::size_t length = NgramIndex::kLongest; length >= NgramIndex::kShortest; --length) {
    for (std::size_t next = text.size(); next-- > length;) {
      if (whole.size() >= length && std::equal(whole.end() - static_cast<std::ptrdiff_t>(length), whole.end(),
                                               text.begin() + static_cast<std::ptrdiff_t>(next - length))) {
        return NgramIndex::Match{length, next};
      }
    }
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("the longest run that went on, and its last place, is found") {
  std::mt19937 random(3);
  for (const int letters : {2, 3, 8}) {
    NgramIndex index(200);
    std::vector<TokenId> text;
    index.assign(text);
    for (int step = 0; step < 200; ++step) {
      std::vector<TokenId> path;
      for (std::size_t length = random() % 12; path.size() < length;) {
        path.emplace_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(letters)));
      }
      const auto found = index.find(path);
      const auto expected = reference(text, path);
      REQUIRE(found.has_value() == expected.has_value());
      if (found) {
        REQUIRE(found->length == expected->length);
        REQUIRE(found->next == expected->next);
      }
      text.emplace_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(letters)));
      index.append(text.back());
    }
    CHECK_THROWS_AS(index.append(TokenId{0}), UsageError);
    const std::vector<TokenId> other(5, TokenId{1});
    index.assign(other);
    CHECK(index.find({})->next == reference(other, {})->next);
  }
  CHECK_THROWS_AS(NgramIndex(0), UsageError);
}

TEST_CASE("verdicts teach what a match of a length is worth, and no other length") {
  MatchRecord record;
  const float before = record.probability(3);
  for (int sample = 0; sample < 100; ++sample) {
    record.observe(3, sample % 10 == 0);
  }
  CHECK(record.probability(3) == doctest::Approx((10 + 16 * before) / 116));
  CHECK(record.probability(4) == MatchRecord().probability(4));
  for (int sample = 0; sample < 2000; ++sample) {
    record.observe(30, true);
  }
  CHECK(record.probability(NgramIndex::kLongest) > 0.98F);
  CHECK(record.probability(12) == record.probability(NgramIndex::kLongest));
}
