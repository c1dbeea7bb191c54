#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "acespec/base/error.h"
#include "acespec/engine/fake/fake_engine.h"

using namespace acespec;

namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

struct Row {
  std::int32_t token;
  std::int32_t position;
  std::uint32_t slot;
  std::vector<std::uint32_t> sees;
};

/// Owns what a Forward refers to. Logits of every row are wanted.
class Batch {
 public:
  Batch(const Engine& engine, const std::vector<Row>& rows) : visible_(engine.info().slots) {
    bias_.assign(rows.size() * visible_, kHidden);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      tokens_.emplace_back(rows[i].token);
      positions_.emplace_back(rows[i].position);
      slots_.emplace_back(rows[i].slot);
      wanted_.push_back(static_cast<std::uint32_t>(i));
      for (const std::uint32_t slot : rows[i].sees)
        bias_[i * visible_ + slot] = 0.0F;
    }
  }

  [[nodiscard]] Forward forward() const { return {tokens_, positions_, slots_, bias_, visible_, wanted_}; }
  std::vector<float>& bias() { return bias_; }

 private:
  std::size_t visible_;
  std::vector<TokenId> tokens_;
  std::vector<Position> positions_;
  std::vector<KvSlot> slots_;
  std::vector<float> bias_;
  std::vector<std::uint32_t> wanted_;
};

FakeOptions small() {
  FakeOptions options;
  options.vocabulary = 16;
  options.slots = 16;
  options.max_rows = 8;
  options.seed = 7;
  return options;
}

std::vector<float> row_of(std::span<const float> logits, std::size_t row) {
  const auto part = logits.subspan(row * 16, 16);
  return {part.begin(), part.end()};
}

std::vector<TokenId> ids(std::initializer_list<std::int32_t> tokens) {
  std::vector<TokenId> out;
  for (const std::int32_t token : tokens)
    out.emplace_back(token);
  return out;
}

/// What forward() complains about; empty when it does not.
template <class Expected>
std::string complaint(Engine& engine, const Forward& batch) {
  try {
    engine.forward(batch);
  } catch (const Expected& error) {
    return error.what();
  }
  return {};
}

bool names(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a row's logits are a function of the path it sees, wherever the path lies") {
  FakeEngine engine(small());
  // Context 3 1 in slots 9 and 4; below it the siblings 5 and 6, and 2 below 6.
  engine.forward(Batch(engine, {{3, 0, 9, {9}}, {1, 1, 4, {9, 4}}}).forward());
  const auto logits = engine.forward(
      Batch(engine, {{5, 2, 0, {9, 4, 0}}, {6, 2, 15, {9, 4, 15}}, {2, 3, 1, {9, 4, 15, 1}}}).forward());
  CHECK(row_of(logits, 0) == fake_logits(small(), ids({3, 1, 5})));
  CHECK(row_of(logits, 1) == fake_logits(small(), ids({3, 1, 6})));
  CHECK(row_of(logits, 2) == fake_logits(small(), ids({3, 1, 6, 2})));
  CHECK(row_of(logits, 0) != row_of(logits, 1));
}

TEST_CASE("only the rows asked for are returned, in order") {
  FakeEngine engine(small());
  const Batch batch(engine, {{3, 0, 0, {0}}, {1, 1, 1, {0, 1}}, {4, 2, 2, {0, 1, 2}}});
  Forward forward = batch.forward();
  const std::vector<std::uint32_t> wanted{0, 2};
  forward.rows = wanted;
  const auto logits = engine.forward(forward);
  REQUIRE(logits.size() == 32);
  CHECK(row_of(logits, 1) == fake_logits(small(), ids({3, 1, 4})));
  forward.rows = {};
  CHECK(engine.forward(forward).empty());
}

TEST_CASE("a wrong mask is caught and named") {
  FakeEngine engine(small());
  engine.forward(Batch(engine, {{3, 0, 0, {0}}, {1, 1, 1, {0, 1}}, {2, 1, 2, {0, 2}}}).forward());
  const auto said = [&](const std::vector<Row>& rows) {
    return complaint<EngineError>(engine, Batch(engine, rows).forward());
  };
  CHECK(names(said({{5, 2, 3, {0, 3}}}), "row 0 at position 2 does not see position 1"));
  CHECK(names(said({{5, 2, 3, {0, 1, 2, 3}}}), "sees position 1 twice, in slot 1 and in slot 2"));
  CHECK(names(said({{5, 2, 3, {0, 1, 3, 8}}}), "sees slot 8, which was never written"));
  CHECK(names(said({{5, 1, 3, {0, 3}}, {5, 2, 4, {0, 3}}}), "row 1 at position 2 does not see position 2"));
  CHECK(names(said({{5, 2, 3, {0, 1, 3}}, {5, 1, 4, {0, 3, 4}}}),
              "sees slot 3, which holds the later position 2"));
}

TEST_CASE("a slot that was reused is not the old node any more") {
  FakeEngine engine(small());
  engine.forward(Batch(engine, {{3, 0, 0, {0}}, {1, 1, 1, {0, 1}}}).forward());
  engine.forward(Batch(engine, {{9, 0, 1, {1}}}).forward());
  CHECK(names(complaint<EngineError>(engine, Batch(engine, {{5, 2, 2, {0, 1, 2}}}).forward()), "twice"));
}

TEST_CASE("a bias that neither shows nor hides is refused") {
  FakeEngine engine(small());
  Batch batch(engine, {{3, 0, 0, {0}}});
  batch.bias()[1] = -1e4F;
  CHECK(complaint<EngineError>(engine, batch.forward()).empty());
  for (const float value : {-1.0F, 0.5F, std::numeric_limits<float>::quiet_NaN()}) {
    batch.bias()[1] = value;
    CHECK(names(complaint<EngineError>(engine, batch.forward()), "must be 0 or at most -1e4"));
  }
}

TEST_CASE("broken invariants are usage errors that name field and value") {
  FakeEngine engine(small());
  const Batch batch(engine, {{3, 0, 0, {0}}, {1, 1, 1, {0, 1}}});
  const auto said = [&](auto change) {
    Forward forward = batch.forward();
    change(forward);
    return complaint<UsageError>(engine, forward);
  };
  const auto bad_token = ids({3, 16});
  const std::vector<Position> bad_position{Position(0), Position(4096)};
  const std::vector<KvSlot> twice{KvSlot(1), KvSlot(1)};
  const std::vector<KvSlot> outside{KvSlot(1), KvSlot(16)};
  const std::vector<std::uint32_t> descending{1, 0};
  const std::vector<std::uint32_t> beyond{2};
  CHECK(said([](Forward&) {}).empty());
  CHECK(names(said([&](Forward& f) { f.tokens = bad_token; }), "tokens[1] is 16, must be in 0..15"));
  CHECK(names(said([&](Forward& f) { f.tokens = {}; }), "tokens count is 0, must be in 1..8"));
  CHECK(names(said([&](Forward& f) { f.positions = bad_position; }),
              "positions[1] is 4096, must be in 0..4095"));
  CHECK(names(said([&](Forward& f) { f.positions = f.positions.first(1); }), "positions count is 1"));
  CHECK(names(said([&](Forward& f) { f.slots = twice; }), "slots[1] is 1, must be distinct"));
  CHECK(names(said([&](Forward& f) { f.slots = outside; }), "slots[1] is 16, must be in 0..15"));
  CHECK(names(said([&](Forward& f) { f.bias = f.bias.first(5); }), "bias size is 5, must be 2 x 16"));
  CHECK(names(said([&](Forward& f) { f.visible = 32; }), "visible is 32, must be a multiple of 16 up to 16"));
  CHECK(names(said([&](Forward& f) { f.rows = descending; }), "rows[1] is 0, must be above rows[0] = 1"));
  CHECK(names(said([&](Forward& f) { f.rows = beyond; }), "rows[0] is 2, must be in 0..1"));
  // None of them wrote anything: slot 1 still holds what the one good forward put there.
  CHECK(complaint<EngineError>(engine, Batch(engine, {{4, 2, 2, {0, 1, 2}}}).forward()).empty());
}

TEST_CASE("a drafter agrees with its target as often as its disagreement says") {
  FakeOptions target = small();
  target.vocabulary = 64;
  const auto agreement = [&](float disagreement) {
    FakeOptions drafter = target;
    drafter.disagreement = disagreement;
    int same = 0;
    for (std::int32_t i = 0; i < 1000; ++i) {
      const auto context = ids({i % 64, i / 64});
      const auto p = fake_logits(target, context);
      const auto q = fake_logits(drafter, context);
      same += std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin() ? 1 : 0;
    }
    return same / 1000.0;
  };
  CHECK(agreement(0.0F) == 1.0);
  CHECK(agreement(0.2F) == doctest::Approx(0.87).epsilon(0.04));
  CHECK(agreement(0.3F) == doctest::Approx(0.75).epsilon(0.05));
  CHECK(agreement(1.0F) < 0.05);
}

TEST_CASE("the granule divides the ring and options out of range are refused") {
  FakeOptions options = small();
  const auto granule = [&](std::size_t slots) {
    options.slots = slots;
    return FakeEngine(options).visible_granule();
  };
  CHECK(granule(256) == 64);
  CHECK(granule(96) == 32);
  CHECK(granule(9) == 1);
  const auto refuses = [](auto change) {
    FakeOptions changed = small();
    change(changed);
    CHECK_THROWS_AS(FakeEngine{changed}, UsageError);
  };
  refuses([](FakeOptions& o) { o.vocabulary = 0; });
  refuses([](FakeOptions& o) { o.slots = 0; });
  refuses([](FakeOptions& o) { o.max_rows = 17; });
  refuses([](FakeOptions& o) { o.max_positions = 0; });
  refuses([](FakeOptions& o) { o.sharpness = -1.0F; });
  refuses([](FakeOptions& o) { o.disagreement = 1.5F; });
  refuses([](FakeOptions& o) { o.base_seconds = -0.1; });
  CHECK_THROWS_AS((void)fake_logits(small(), {}), UsageError);
}

TEST_CASE("a forward takes the time it was told to") {
  FakeOptions options = small();
  options.base_seconds = 0.02;
  options.row_seconds = 0.01;
  FakeEngine engine(options);
  const Batch batch(engine, {{3, 0, 0, {0}}, {1, 1, 1, {0, 1}}});
  const auto start = std::chrono::steady_clock::now();
  engine.forward(batch.forward());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  CHECK(took.count() >= 0.04);
}
