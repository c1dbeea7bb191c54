// A drafter without a model: what a recorded one said along one text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "acespec/base/ids.h"
#include "acespec/engine/engine.h"
#include "acespec/engine/forward_check.h"

namespace acespec {

struct TraceOptions {
  std::size_t vocabulary = 64;
  std::size_t slots = 512;  ///< a multiple of 64
  std::size_t max_rows = 64;
  std::size_t max_positions = 4096;
};

/// A prompt, the text that the target wrote after it, and for every token of the text the ids that the
/// recorded drafter found likeliest before it, `width` of them, with their log-probabilities.
struct TraceRecord {
  std::vector<TokenId> prompt;
  std::vector<TokenId> text;
  std::vector<TokenId> top;   ///< row-major [text.size(), width]
  std::vector<float> scores;  ///< row-major [text.size(), width]
  std::size_t width = 0;
};

/// An Engine that replays one record at a time. A row whose path (its own token, and backwards the visible
/// slots of the positions before) is the prompt and the text so far gets the scores recorded there, and -inf
/// for every id that was not recorded. Any other row gets the row of a position that a hash of its path
/// names: such a path is none that the target takes, so its tokens never count, and its confidences are as
/// real ones are.
///
/// forward() takes no time to speak of: O(T S + R width). It throws EngineError for a row that sees no slot
/// of the position before its own. Memory is taken at construction and in set_record(). Not thread-safe.
class TraceEngine final : public Engine {
 public:
  /// Throws UsageError for sizes that make no engine.
  explicit TraceEngine(const TraceOptions& options);

  /// Replays `record` from now on; the ring stays, for a prefix that it shares with the last one. Throws
  /// UsageError, and keeps the record it has, when prompt or text is empty, they exceed the positions, an id
  /// is outside the vocabulary, a score is not finite, or top and scores are not [text, width].
  void set_record(TraceRecord record);

  [[nodiscard]] const EngineInfo& info() const noexcept override { return info_; }
  [[nodiscard]] std::size_t max_rows() const noexcept override { return max_rows_; }
  [[nodiscard]] std::size_t visible_granule() const noexcept override;
  std::span<const float> forward(const Forward& batch) override;
  void clear() override;

 private:
  struct Cell {
    Position position{-1};   ///< -1: never written
    std::uint64_t path = 0;  ///< hash of all tokens up to this one
  };

  void check(const TraceRecord& record) const;
  void walk(const Forward& batch, std::size_t row);
  [[nodiscard]] std::size_t recorded(const Cell& cell) const noexcept;
  void erase(std::size_t out) noexcept;

  std::size_t max_rows_;
  EngineInfo info_;
  ForwardCheck check_;
  TraceRecord record_;
  std::vector<std::uint64_t> whole_;  ///< path of every position of prompt and text
  std::vector<Cell> ring_;
  std::vector<std::uint32_t> order_;  ///< scratch: rows of one forward by position
  /// Rows of logits; `written_[i]`: the recorded position that row i holds, or kNothing. All else is -inf.
  std::vector<float> logits_;
  std::vector<std::size_t> written_;
};

}  // namespace acespec
