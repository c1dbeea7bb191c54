// The KV ring's slots: who holds which, and which one goes next when there is no room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "acespec/base/ids.h"

namespace acespec {

enum class SlotState : std::uint8_t {
  kFree,
  kEvictable,  ///< holds the state of a speculated node; the least recently used one goes first
  kPinned,     ///< holds the state of a committed token or of a node that a draft in flight names
};

/// Hands out the lowest free slot first, so that the used prefix of the ring stays short (attention cost
/// follows it).
///
/// Every slot is in exactly one state: free + evictable + pinned == capacity. Only pin() and unpin() move a
/// slot between the evictable list and the pinned set, and victim() names one of the former alone, so a
/// pinned slot cannot be lost.
/// All memory is taken at construction. acquire() is O(capacity / 64) in the worst case, the rest O(1).
/// Not thread-safe.
class SlotRing {
 public:
  explicit SlotRing(std::size_t capacity);

  /// An evictable slot for `owner`, most recently used; nullopt when none is free.
  std::optional<KvSlot> acquire(NodeId owner);
  /// The evictable slot least recently used, which is the next to release when room is needed.
  [[nodiscard]] std::optional<KvSlot> victim() const;
  /// Back to free, from either state.
  void release(KvSlot slot);
  /// Evictable -> most recently used. Nothing for a pinned slot.
  void touch(KvSlot slot);
  void pin(KvSlot slot);
  /// Pinned -> evictable, most recently used.
  void unpin(KvSlot slot);

  [[nodiscard]] SlotState state(KvSlot slot) const { return cells_[slot.index()].state; }
  [[nodiscard]] NodeId owner(KvSlot slot) const { return cells_[slot.index()].owner; }
  [[nodiscard]] std::size_t capacity() const noexcept { return cells_.size(); }
  [[nodiscard]] std::size_t evictable() const noexcept { return evictable_; }
  [[nodiscard]] std::size_t pinned() const noexcept { return pinned_; }
  [[nodiscard]] std::size_t free() const noexcept { return cells_.size() - evictable_ - pinned_; }
  /// One past the highest slot in use.
  [[nodiscard]] std::size_t high_water() const noexcept;
  /// Evictable slots, least recently used first.
  [[nodiscard]] std::vector<KvSlot> eviction_order() const;

 private:
  static constexpr std::uint32_t kEnd = UINT32_MAX;

  struct Cell {
    SlotState state = SlotState::kFree;
    NodeId owner;
    std::uint32_t older = kEnd;
    std::uint32_t newer = kEnd;
  };

  void append(std::uint32_t slot);
  void detach(std::uint32_t slot);
  [[nodiscard]] std::optional<std::uint32_t> lowest_free() const;

  std::vector<Cell> cells_;
  std::vector<std::uint64_t> used_;  // one bit a slot
  std::uint32_t oldest_ = kEnd;
  std::uint32_t newest_ = kEnd;
  std::size_t evictable_ = 0;
  std::size_t pinned_ = 0;
};

}  // namespace acespec
