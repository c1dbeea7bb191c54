// (parent node, token) -> child node, the lookup that turns a verdict into a place in the tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "acespec/base/ids.h"

namespace acespec {

/// Open addressing with linear probing over a power of two of cells, at most half full; removal shifts the
/// probe sequence back, so there are no tombstones and a lookup stays O(1) expected however long the index
/// lives. All memory is taken at construction. Not thread-safe.
class PathIndex {
 public:
  /// Room for `capacity` links.
  explicit PathIndex(std::size_t capacity);

  /// Throws UsageError when the link exists or the index is full.
  void insert(NodeId parent, TokenId token, NodeId child);
  /// Throws UsageError when there is no such link.
  void erase(NodeId parent, TokenId token);
  /// Removes every link. O(capacity).
  void clear();
  [[nodiscard]] std::optional<NodeId> find(NodeId parent, TokenId token) const;

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }

 private:
  struct Cell {
    NodeId parent;
    TokenId token;
    NodeId child;
    bool used = false;
  };

  [[nodiscard]] std::size_t home(NodeId parent, TokenId token) const noexcept;
  [[nodiscard]] std::size_t locate(NodeId parent, TokenId token) const noexcept;

  std::size_t capacity_;
  std::size_t mask_;
  std::vector<Cell> cells_;
  std::size_t size_ = 0;
};

}  // namespace acespec
