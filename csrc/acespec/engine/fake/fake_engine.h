// A language model without a model: a hash of the visible tokens decides the logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "acespec/base/ids.h"
#include "acespec/engine/engine.h"
#include "acespec/engine/forward_check.h"

namespace acespec {

struct FakeOptions {
  std::size_t vocabulary = 64;
  std::size_t slots = 256;
  std::size_t max_rows = 64;
  std::size_t max_positions = 4096;
  std::uint64_t seed = 0;  ///< names the target; a drafter of it has the same seed and some disagreement
  float sharpness =
      2.0F;  ///< scale of the logits: 0 is uniform, at 2 the best token has 0.63 of the mass on average
  float disagreement =
      0.0F;  ///< 0: the target itself, 1: unrelated; 0.1, 0.2, 0.3 pick its best token in 95, 87, 75 %
  double base_seconds = 0.0;  ///< shortest time of a forward
  double row_seconds = 0.0;   ///< added for each of its rows

  /// Throws UsageError naming the first field that is out of range.
  void validate() const;
};

/// The model as a pure function: logits [vocabulary] after `tokens` at positions 0..n-1. Throws UsageError
/// when `tokens` is empty.
[[nodiscard]] std::vector<float> fake_logits(const FakeOptions& options, std::span<const TokenId> tokens);

/// An Engine over fake_logits() that keeps (token, position) per slot and judges every mask: the slots that a
/// row sees must hold exactly the positions 0..its own, each once, or forward() throws EngineError naming
/// row, slot and position. So a wrong mask, a slot never written or one overwritten too early is caught at
/// once; a mask that takes a sibling for an ancestor is not, but then the logits differ from fake_logits() of
/// the path.
///
/// Its granule is the largest power of two up to 64 that divides `slots`. A bias entry must be 0 or at most
/// -1e4. Not thread-safe; forward() allocates nothing.
class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(const FakeOptions& options);

  [[nodiscard]] const EngineInfo& info() const noexcept override { return info_; }
  [[nodiscard]] std::size_t max_rows() const noexcept override { return options_.max_rows; }
  [[nodiscard]] std::size_t visible_granule() const noexcept override { return granule_; }
  std::span<const float> forward(const Forward& batch) override;
  void clear() override;

  [[nodiscard]] const FakeOptions& options() const noexcept { return options_; }

 private:
  struct Cell {
    TokenId token;
    Position position{-1};  ///< -1: never written
  };

  /// Hash of the tokens that row `row` sees, in order of position.
  [[nodiscard]] std::uint64_t read_context(const Forward& batch, std::size_t row);

  FakeOptions options_;
  std::size_t granule_;
  EngineInfo info_;
  ForwardCheck check_;
  std::vector<Cell> ring_;
  std::vector<std::uint32_t>
      slot_at_;  ///< scratch: slot + 1 of each position of one row's context, 0 for none
  std::vector<float> logits_;
};

}  // namespace acespec
