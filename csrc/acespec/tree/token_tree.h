// The speculated continuations of the committed text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "acespec/base/ids.h"

namespace acespec {

/// What the drafter thought of a candidate when it grew it, before verdicts are taken into account.
struct Guess {
  static constexpr std::uint8_t kUnranked = 255;

  float confidence = 0.0F;        ///< its probability among the candidates of its parent
  float prior = 0.0F;             ///< the estimate made of that, as Calibration takes it
  std::uint8_t rank = kUnranked;  ///< among them; kUnranked: the model has not named it
  std::uint8_t match = 0;         ///< tokens before it that agree with where it was looked up; 0: it was not
};

/// A tree of candidate tokens below the last committed token. A node is *expanded* once its keys and values
/// sit in a KV slot; its ancestors then are too. Children are kept in the order in which they were grown, a
/// model's likeliest first; looked-up ones may hang from nodes that are not expanded.
///
/// Nodes live in a pool taken at construction; ids are pool cells, reused after a drop. `log_weight` is the
/// estimated log-probability that the target's text runs through the node, given that it runs through the
/// node that was root when the tree was last reset; it never grows along a path. grow() is O(1), the others
/// are linear in what they visit. Not thread-safe.
class TokenTree {
 public:
  struct Node {
    NodeId parent;
    TokenId token;
    Position position;
    float log_weight = 0.0F;
    std::uint32_t depth = 0;  ///< steps below the root of the last reset
    std::optional<KvSlot> slot;
    std::optional<NodeId> first_child;
    std::optional<NodeId> last_child;
    std::optional<NodeId> next_sibling;
    Guess guess;
    std::uint32_t number = 0;  ///< by which the target knows it; 0: the root, or not sent
    bool sealed = false;       ///< nothing may follow it: never in the frontier, never with children
    bool live = false;
  };

  /// `capacity`: nodes, the root included; at least 2.
  explicit TokenTree(std::size_t capacity);

  /// Drops everything and starts over from one committed token, not expanded.
  NodeId reset(TokenId token, Position position);
  /// A new last child; `log_p` <= 0 is its estimated log-probability given the parent. nullopt when the pool
  /// is full.
  std::optional<NodeId> grow(NodeId parent, TokenId token, float log_p, const Guess& guess = {});
  /// Marks a node as expanded, its keys and values being in `slot`. The root's slot belongs to the context.
  void expand(NodeId node, KvSlot slot) { cells_[node.index()].slot = slot; }
  /// Another opinion of a node: its guess becomes `guess`, and its weight what `log_p` makes of it where that
  /// is more, with all that descends from it.
  void revise(NodeId node, float log_p, const Guess& guess);
  /// Nothing may follow a node, which has no children.
  void seal(NodeId node) { cells_[node.index()].sealed = true; }
  /// The node is sent under `number`, from 1; 0 takes that back.
  void set_number(NodeId node, std::uint32_t number) { cells_[node.index()].number = number; }
  /// The node lost its slot: it is a mere candidate again, and what was below it is gone.
  void collapse(NodeId node, const std::function<void(NodeId)>& on_drop);
  /// Makes `node` the root, which has no number. `on_drop` is called once for every node that does not
  /// descend from it, while it can still be read; a parent is dropped after its children.
  void reroot(NodeId node, const std::function<void(NodeId)>& on_drop);

  [[nodiscard]] const Node& operator[](NodeId node) const { return cells_[node.index()]; }
  [[nodiscard]] NodeId root() const noexcept { return root_; }
  [[nodiscard]] std::size_t size() const noexcept { return live_.size(); }
  [[nodiscard]] std::size_t capacity() const noexcept { return cells_.size(); }
  /// Live nodes in no particular order.
  [[nodiscard]] std::span<const NodeId> live() const noexcept { return live_; }

  /// Nodes of the main chain (first child of first child ...) below the root; the last one may be unexpanded.
  [[nodiscard]] std::size_t chain_length() const;
  /// The last node of the main chain; the root itself when it has no child.
  [[nodiscard]] NodeId chain_tip() const;

  /// Writes the unexpanded nodes, not sealed, of greatest weight, greatest first and parents before their
  /// children, at most `out.size()`; only
  /// nodes no lighter than `floor` (relative to the root, <= 0) and at positions below `limit`. Returns how
  /// many. O(size * log(out.size())).
  std::size_t frontier(std::span<NodeId> out, float floor, Position limit) const;

 private:
  NodeId take();
  void drop(NodeId node, const std::function<void(NodeId)>& on_drop);
  void drop_below(NodeId node, const std::function<void(NodeId)>& on_drop);

  std::vector<Node> cells_;
  std::vector<std::uint32_t> vacant_;      // stack of free cells
  std::vector<NodeId> live_;               // dense set, order arbitrary
  std::vector<std::uint32_t> live_place_;  // cell -> place in live_
  NodeId root_;
};

}  // namespace acespec
