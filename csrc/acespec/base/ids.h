// Strong integer types. A token is not a node is not a slot is not a position, and the compiler knows.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace acespec {

template <class Tag, class Rep>
class StrongId {
 public:
  using rep = Rep;

  constexpr StrongId() noexcept = default;
  constexpr explicit StrongId(Rep value) noexcept : value_(value) {}

  [[nodiscard]] constexpr Rep value() const noexcept { return value_; }
  [[nodiscard]] constexpr std::size_t index() const noexcept { return static_cast<std::size_t>(value_); }
  constexpr auto operator<=>(const StrongId&) const noexcept = default;

 private:
  Rep value_{};
};

/// A vocabulary entry.
using TokenId = StrongId<struct TokenIdTag, std::int32_t>;
/// A node of one token tree; valid until the tree drops the node.
using NodeId = StrongId<struct NodeIdTag, std::uint32_t>;
/// A row of the KV ring. A slot is storage, not a position: a node's row may live in any slot.
using KvSlot = StrongId<struct KvSlotTag, std::uint32_t>;
/// Absolute place in the sequence; the first prompt token is at position 0.
using Position = StrongId<struct PositionTag, std::int32_t>;

}  // namespace acespec

template <class Tag, class Rep>
struct std::hash<acespec::StrongId<Tag, Rep>> {
  std::size_t operator()(acespec::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value());
  }
};
