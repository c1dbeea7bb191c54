// The probabilistic state cache: KV slots and path links of every expanded branch, in fixed memory (AceSpec,
// arXiv:2609.02514).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "acespec/base/ids.h"
#include "acespec/cache/path_index.h"
#include "acespec/cache/slot_ring.h"

namespace acespec {

struct CacheOptions {
  std::size_t slots = 0;           ///< rows of the engine's KV ring
  std::size_t bytes_per_slot = 0;  ///< KV bytes of one row, for the accounting
  std::size_t links = 0;           ///< most path links alive at a time
};

/// What the cache holds, as values: for tests, for `check_cache` and for support.
struct CacheSnapshot {
  struct Slot {
    KvSlot slot;
    SlotState state = SlotState::kFree;
    std::optional<NodeId> owner;  ///< none: a committed token
  };
  std::vector<Slot> slots;             ///< those in use, ascending
  std::vector<KvSlot> eviction_order;  ///< least recently used first
  std::size_t capacity = 0;
  std::size_t free = 0;
  std::size_t evictable = 0;
  std::size_t pinned = 0;
  std::size_t links = 0;
  std::size_t bytes = 0;  ///< KV bytes of the ring, all of them taken at construction
};

/// One invariant checker for tests and debugging: empty when the snapshot is sound, else one line a
/// violation.
[[nodiscard]] std::vector<std::string> check_cache(const CacheSnapshot& snapshot);

/// Slots move free -> evictable (a speculated node) -> pinned (in flight) -> context (committed) and back to
/// free. Nothing is ever copied: a committed node keeps the slot it was computed in, a rejected one just
/// gives it back. Owners must keep ancestors at least as recently used as their descendants (touch a node,
/// then its ancestors): the next slot to be evicted then never has a descendant in the cache. Not
/// thread-safe; allocates only at construction and in snapshot().
class StateCache {
 public:
  explicit StateCache(const CacheOptions& options);

  std::optional<KvSlot> acquire(NodeId owner) { return ring_.acquire(owner); }
  /// A slot for a committed token: pinned, without owner.
  std::optional<KvSlot> acquire_context();
  /// A speculated node became a committed token: its slot stays, pinned and ownerless.
  void commit(KvSlot slot);
  void release(KvSlot slot);
  [[nodiscard]] bool holds_context(KvSlot slot) const { return context_[slot.index()]; }
  void touch(KvSlot slot) { ring_.touch(slot); }
  void pin(KvSlot slot) { ring_.pin(slot); }
  void unpin(KvSlot slot) { ring_.unpin(slot); }

  void link(NodeId parent, TokenId token, NodeId child) { paths_.insert(parent, token, child); }
  void unlink(NodeId parent, TokenId token) { paths_.erase(parent, token); }
  void unlink_all() { paths_.clear(); }
  [[nodiscard]] std::optional<NodeId> find(NodeId parent, TokenId token) const {
    return paths_.find(parent, token);
  }

  [[nodiscard]] const SlotRing& ring() const noexcept { return ring_; }
  [[nodiscard]] const PathIndex& paths() const noexcept { return paths_; }
  [[nodiscard]] CacheSnapshot snapshot() const;

 private:
  SlotRing ring_;
  PathIndex paths_;
  std::vector<bool> context_;  // slots of committed tokens
  std::size_t bytes_per_slot_;
};

}  // namespace acespec
