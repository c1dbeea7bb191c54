#include "acespec/cache/path_index.h"

#include <bit>
#include <string>

#include "acespec/base/error.h"

namespace acespec {

PathIndex::PathIndex(std::size_t capacity)
    : capacity_(capacity), mask_(std::bit_ceil(2 * capacity + 2) - 1), cells_(mask_ + 1) {}

std::size_t PathIndex::home(NodeId parent, TokenId token) const noexcept {
  // Fibonacci hashing of the 64-bit key: the high bits of the product are well mixed.
  const std::uint64_t key =
      (static_cast<std::uint64_t>(parent.value()) << 32U) | static_cast<std::uint32_t>(token.value());
  return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ULL) >> 32U) & mask_;
}

std::size_t PathIndex::locate(NodeId parent, TokenId token) const noexcept {
  std::size_t at = home(parent, token);
  while (cells_[at].used && (cells_[at].parent != parent || cells_[at].token != token)) {
    at = (at + 1) & mask_;
  }
  return at;
}

void PathIndex::insert(NodeId parent, TokenId token, NodeId child) {
  Cell& cell = cells_[locate(parent, token)];
  if (cell.used) {
    throw UsageError("PathIndex: node " + std::to_string(parent.value()) + " already has a child " +
                     std::to_string(token.value()));
  }
  if (size_ == capacity_) {
    throw UsageError("PathIndex: all " + std::to_string(capacity_) + " links are taken");
  }
  cell = Cell{parent, token, child, true};
  ++size_;
}

void PathIndex::erase(NodeId parent, TokenId token) {
  std::size_t hole = locate(parent, token);
  if (!cells_[hole].used) {
    throw UsageError("PathIndex: node " + std::to_string(parent.value()) + " has no child " +
                     std::to_string(token.value()));
  }
  // Invariant: from a cell's home to the cell itself there is no hole. Move back whatever the new hole would
  // cut off.
  for (std::size_t at = (hole + 1) & mask_; cells_[at].used; at = (at + 1) & mask_) {
    const std::size_t wanted = home(cells_[at].parent, cells_[at].token);
    if (((at - wanted) & mask_) >= ((at - hole) & mask_)) {
      cells_[hole] = cells_[at];
      hole = at;
    }
  }
  cells_[hole].used = false;
  --size_;
}

void PathIndex::clear() {
  for (Cell& cell : cells_) {
    cell.used = false;
  }
  size_ = 0;
}

std::optional<NodeId> PathIndex::find(NodeId parent, TokenId token) const {
  const Cell& cell = cells_[locate(parent, token)];
  return cell.used ? std::optional{cell.child} : std::nullopt;
}

}  // namespace acespec
