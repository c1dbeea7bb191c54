// Snapshot and the invariant checker: kept apart from the working code, which never calls them.
#include <algorithm>

#include "acespec/drafter/drafter.h"

namespace acespec {

DrafterSnapshot Drafter::snapshot() const {
  DrafterSnapshot result;
  result.cache = cache_.snapshot();
  result.committed = committed_.size();
  result.pending = pending();
  for (const NodeId id : tree_.live()) {
    const TokenTree::Node& node = tree_[id];
    result.nodes.push_back(
        {id, node.parent, node.token, node.position, node.log_weight, node.slot.has_value(), node.number});
  }
  const auto root = std::ranges::find(result.nodes, tree_.root(), &DrafterSnapshot::Node::id);
  std::iter_swap(result.nodes.begin(), root);
  return result;
}

std::vector<std::string> Drafter::check() const {
  std::vector<std::string> faults = check_cache(cache_.snapshot());
  const auto expect = [&faults](bool ok, const std::string& what) {
    if (!ok) {
      faults.push_back(what);
    }
  };
  expect(committed_.size() <= limit_, "more tokens are committed than the context holds");
  expect(cache_.paths().size() + 1 == tree_.size(), "path links differ from the nodes below the root");
  for (const KvSlot slot : context_slots_) {
    expect(cache_.holds_context(slot), "a committed token's slot is not held as context");
  }

  std::size_t owned = 0;
  std::vector<std::uint32_t> numbers;
  NodeId chained = tree_.root();
  for (const NodeId id : in_flight_) {
    expect(residual_ && tree_[id].live && tree_[id].parent == chained && tree_[id].number != 0,
           "the chain in flight is none, or not sent");
    chained = id;
  }
  const std::vector<KvSlot> order = cache_.ring().eviction_order();
  const auto age = [&order](KvSlot slot) {  // larger: used more recently; pinned: never evicted
    const auto at = std::ranges::find(order, slot);
    return at == order.end() ? order.size() : static_cast<std::size_t>(at - order.begin());
  };
  for (const NodeId id : tree_.live()) {
    const TokenTree::Node& node = tree_[id];
    const std::string name = "node " + std::to_string(id.value());
    expect(node.slot.has_value() || drawn_from_.empty() || drawn_from_[id.index()].empty(),
           name + " is not expanded and keeps a distribution");
    expect(
        !residual_ || !node.first_child || drawn_from_[id.index()].weight(tree_[*node.first_child].token) > 0,
        name + " has a first child that was not drawn from its distribution");
    if (id == tree_.root()) {
      expect(node.slot.has_value() == (pending() == 0),
             name + ": the root is expanded iff nothing is pending");
      expect(node.position.index() + 1 == committed_.size(),
             name + ": the root is not the last committed token");
      expect(node.token == committed_.back(), name + ": the root holds another token than was committed");
      expect(node.number == 0, name + ": the root has a number");
      continue;
    }
    const TokenTree::Node& parent = tree_[node.parent];
    expect(parent.live, name + " hangs from a node that is gone");
    expect(parent.slot || !node.slot, name + " is expanded, and what it hangs from is not");
    expect(parent.slot || node.guess.match > 0,
           name + " was not looked up and hangs from an unexpanded node");
    expect(node.position.value() == parent.position.value() + 1,
           name + " is not one position below its parent");
    expect(node.log_weight <= parent.log_weight, name + " is likelier than its parent");
    expect(cache_.find(node.parent, node.token) == id, name + " is not found by its path");
    expect(!node.sealed || !node.first_child, name + " is sealed and has children");
    if (node.number != 0) {
      numbers.push_back(node.number);
      expect(node.number < next_number_, name + " has a number that was not given yet");
      expect(node.parent == tree_.root() || (parent.number != 0 && parent.number < node.number),
             name + " was sent before its parent");
    }
    if (node.slot) {
      ++owned;
      expect((cache_.ring().state(*node.slot) == SlotState::kPinned) == (node.number != 0),
             name + " is to be pinned iff it is sent");
      expect(cache_.ring().owner(*node.slot) == id, name + " does not own its slot");
      expect(!cache_.holds_context(*node.slot), name + " holds a committed token's slot");
      expect(node.parent == tree_.root() || age(*parent.slot) >= age(*node.slot),
             name + " was used more recently than its parent");
    }
  }
  std::ranges::sort(numbers);
  expect(std::ranges::adjacent_find(numbers) == numbers.end(), "two nodes have one number");
  expect(owned + context_slots_.size() == cache_.ring().evictable() + cache_.ring().pinned(),
         "a slot in use belongs to nobody");
  return faults;
}

}  // namespace acespec
