#include "acespec/cache/state_cache.h"

#include <algorithm>

namespace acespec {

StateCache::StateCache(const CacheOptions& options)
    : ring_(options.slots),
      paths_(options.links),
      context_(options.slots, false),
      bytes_per_slot_(options.bytes_per_slot) {}

std::optional<KvSlot> StateCache::acquire_context() {
  const auto slot = ring_.acquire(NodeId{});
  if (slot) {
    commit(*slot);
  }
  return slot;
}

void StateCache::commit(KvSlot slot) {
  if (ring_.state(slot) != SlotState::kPinned) {
    ring_.pin(slot);
  }
  context_[slot.index()] = true;
}

void StateCache::release(KvSlot slot) {
  ring_.release(slot);
  context_[slot.index()] = false;
}

CacheSnapshot StateCache::snapshot() const {
  CacheSnapshot result;
  for (std::size_t index = 0; index < ring_.capacity(); ++index) {
    const KvSlot slot{static_cast<std::uint32_t>(index)};
    if (ring_.state(slot) != SlotState::kFree) {
      result.slots.push_back(
          {slot, ring_.state(slot), context_[index] ? std::nullopt : std::optional{ring_.owner(slot)}});
    }
  }
  result.eviction_order = ring_.eviction_order();
  result.capacity = ring_.capacity();
  result.free = ring_.free();
  result.evictable = ring_.evictable();
  result.pinned = ring_.pinned();
  result.links = paths_.size();
  result.bytes = ring_.capacity() * bytes_per_slot_;
  return result;
}

std::vector<std::string> check_cache(const CacheSnapshot& snapshot) {
  std::vector<std::string> faults;
  const auto expect = [&faults](bool ok, const std::string& what) {
    if (!ok) {
      faults.push_back(what);
    }
  };
  expect(snapshot.free + snapshot.evictable + snapshot.pinned == snapshot.capacity,
         "free + evictable + pinned differs from the capacity");
  expect(snapshot.slots.size() == snapshot.evictable + snapshot.pinned,
         "slots in use differ from evictable + pinned");
  expect(snapshot.eviction_order.size() == snapshot.evictable,
         "the eviction order does not hold every evictable slot once");
  std::vector<NodeId> owners;
  std::vector<KvSlot> evictable;
  for (const CacheSnapshot::Slot& slot : snapshot.slots) {
    const std::string name = "slot " + std::to_string(slot.slot.value());
    expect(slot.slot.index() < snapshot.capacity, name + " is beyond the ring");
    expect(slot.owner || slot.state == SlotState::kPinned, name + " is committed but evictable");
    if (slot.owner) {
      owners.push_back(*slot.owner);
    }
    if (slot.state == SlotState::kEvictable) {
      evictable.push_back(slot.slot);
    }
  }
  std::ranges::sort(owners);
  expect(std::ranges::adjacent_find(owners) == owners.end(), "a node owns two slots");
  std::vector<KvSlot> order = snapshot.eviction_order;
  std::ranges::sort(order);
  expect(order == evictable, "the eviction order and the evictable slots differ");
  return faults;
}

}  // namespace acespec
