// The engine of a drafter without a model.
#pragma once

#include <span>
#include <utility>

#include "acespec/base/error.h"
#include "acespec/engine/engine.h"

namespace acespec {

/// Computes nothing and knows nothing: a forward may ask for no logits, or it gets a UsageError. For drafters
/// that look their tokens up. Not thread-safe; O(1).
class BlankEngine final : public Engine {
 public:
  /// A vocabulary of `vocabulary` ids, and a ring of `slots` rows that hold nothing.
  BlankEngine(std::size_t vocabulary, std::size_t slots)
      : info_{"no model", "none", vocabulary, vocabulary, slots, slots, 0} {
    if (vocabulary == 0 || slots == 0) {
      throw UsageError("BlankEngine: vocabulary and slots must be above 0");
    }
  }

  [[nodiscard]] const EngineInfo& info() const noexcept override { return info_; }
  [[nodiscard]] std::size_t max_rows() const noexcept override { return 64; }
  [[nodiscard]] std::size_t visible_granule() const noexcept override { return 1; }

  std::span<const float> forward(const Forward& batch) override {
    if (!batch.rows.empty()) {
      throw UsageError("an engine without a model has no logits");
    }
    return {};
  }
  void clear() override {}

 private:
  EngineInfo info_;
};

}  // namespace acespec
