// One masked forward of a small language model over a KV ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "acespec/base/exclusive.h"
#include "acespec/base/ids.h"

namespace acespec {

/// What a loaded model is. Sizes in tokens unless said otherwise.
struct EngineInfo {
  std::string name;                ///< for messages
  std::string provider;            ///< execution provider taken, e.g. "cpu"
  std::size_t vocabulary = 0;      ///< drawable ids
  std::size_t logits_width = 0;    ///< columns of a logit row, >= vocabulary
  std::size_t max_positions = 0;   ///< positions the model can represent
  std::size_t slots = 0;           ///< rows of the KV ring, taken at construction
  std::size_t bytes_per_slot = 0;  ///< KV bytes of one row over all layers
};

/// One forward over T rows that may see the first `visible` slots of the ring (S below).
/// Invariants the caller keeps: tokens, positions and slots have T entries, slots are distinct and < S;
/// bias is row-major [T, S] with 0 where row t may attend to a slot and -inf (or a large negative) elsewhere,
/// its own slot included; rows are ascending indices into T whose logits are wanted.
struct Forward {
  std::span<const TokenId> tokens;
  std::span<const Position> positions;
  std::span<const KvSlot> slots;
  std::span<const float> bias;
  std::size_t visible = 0;
  std::span<const std::uint32_t> rows;
};

/// Every row's keys and values are written to its slot before attention, so rows of one forward may see each
/// other. Thread safety: none; one forward at a time, any thread. forward() takes no memory that grows with
/// the number of calls.
class Engine {
 public:
  Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  virtual ~Engine() = default;

  [[nodiscard]] virtual const EngineInfo& info() const noexcept = 0;

  /// Largest T of one forward, and the granule to which callers round S up (S <= info().slots always holds).
  [[nodiscard]] virtual std::size_t max_rows() const noexcept = 0;
  [[nodiscard]] virtual std::size_t visible_granule() const noexcept = 0;

  /// Returns logits [R, logits_width], valid until the next call. Throws UsageError on a broken invariant
  /// that can be checked cheaply (sizes, ranges), EngineError when the runtime fails.
  virtual std::span<const float> forward(const Forward& batch) = 0;

  /// Forgets every key and value. Needed after a forward that produced numbers no bias can hide (NaN, Inf).
  virtual void clear() = 0;

  /// Held by the one user whose idea of the ring's content counts; a second one gets a UsageError.
  Exclusive owner;
};

}  // namespace acespec
