#include "acespec/cache/slot_ring.h"

#include <bit>

#include "acespec/base/error.h"

namespace acespec {

namespace {

constexpr std::size_t kWord = 64;

constexpr std::uint64_t bit_of(std::size_t slot) {
  return std::uint64_t{1} << (slot % kWord);
}

}  // namespace

SlotRing::SlotRing(std::size_t capacity) : cells_(capacity), used_((capacity + kWord - 1) / kWord, 0) {
  if (capacity == 0 || capacity >= kEnd) {
    throw UsageError("SlotRing: capacity must be between 1 and 2^32 - 2");
  }
}

std::optional<std::uint32_t> SlotRing::lowest_free() const {
  for (std::size_t word = 0; word < used_.size(); ++word) {
    if (used_[word] != ~std::uint64_t{0}) {
      const std::size_t slot = word * kWord + static_cast<std::size_t>(std::countr_one(used_[word]));
      if (slot < cells_.size()) {
        return static_cast<std::uint32_t>(slot);
      }
    }
  }
  return std::nullopt;
}

std::size_t SlotRing::high_water() const noexcept {
  for (std::size_t word = used_.size(); word-- > 0;) {
    if (used_[word] != 0) {
      return word * kWord + kWord - static_cast<std::size_t>(std::countl_zero(used_[word]));
    }
  }
  return 0;
}

std::optional<KvSlot> SlotRing::acquire(NodeId owner) {
  const auto slot = lowest_free();
  if (!slot) {
    return std::nullopt;
  }
  cells_[*slot].state = SlotState::kEvictable;
  cells_[*slot].owner = owner;
  used_[*slot / kWord] |= bit_of(*slot);
  append(*slot);
  ++evictable_;
  return KvSlot{*slot};
}

std::optional<KvSlot> SlotRing::victim() const {
  return oldest_ == kEnd ? std::nullopt : std::optional{KvSlot{oldest_}};
}

void SlotRing::release(KvSlot slot) {
  Cell& cell = cells_[slot.index()];
  if (cell.state == SlotState::kEvictable) {
    detach(slot.value());
    --evictable_;
  } else if (cell.state == SlotState::kPinned) {
    --pinned_;
  } else {
    throw UsageError("SlotRing: slot " + std::to_string(slot.value()) + " is already free");
  }
  cell.state = SlotState::kFree;
  used_[slot.index() / kWord] &= ~bit_of(slot.index());
}

void SlotRing::touch(KvSlot slot) {
  if (cells_[slot.index()].state == SlotState::kEvictable) {
    detach(slot.value());
    append(slot.value());
  }
}

void SlotRing::pin(KvSlot slot) {
  Cell& cell = cells_[slot.index()];
  if (cell.state != SlotState::kEvictable) {
    throw UsageError("SlotRing: slot " + std::to_string(slot.value()) + " is not evictable");
  }
  detach(slot.value());
  --evictable_;
  cell.state = SlotState::kPinned;
  ++pinned_;
}

void SlotRing::unpin(KvSlot slot) {
  Cell& cell = cells_[slot.index()];
  if (cell.state != SlotState::kPinned) {
    throw UsageError("SlotRing: slot " + std::to_string(slot.value()) + " is not pinned");
  }
  --pinned_;
  cell.state = SlotState::kEvictable;
  ++evictable_;
  append(slot.value());
}

std::vector<KvSlot> SlotRing::eviction_order() const {
  std::vector<KvSlot> order;
  order.reserve(evictable_);
  for (std::uint32_t slot = oldest_; slot != kEnd; slot = cells_[slot].newer) {
    order.emplace_back(slot);
  }
  return order;
}

void SlotRing::append(std::uint32_t slot) {
  cells_[slot].older = newest_;
  cells_[slot].newer = kEnd;
  (newest_ == kEnd ? oldest_ : cells_[newest_].newer) = slot;
  newest_ = slot;
}

void SlotRing::detach(std::uint32_t slot) {
  const Cell& cell = cells_[slot];
  (cell.older == kEnd ? oldest_ : cells_[cell.older].newer) = cell.newer;
  (cell.newer == kEnd ? newest_ : cells_[cell.newer].older) = cell.older;
}

}  // namespace acespec
