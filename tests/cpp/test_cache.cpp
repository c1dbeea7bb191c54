#include <doctest/doctest.h>

#include <algorithm>
#include <list>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "acespec/base/error.h"
#include "acespec/cache/state_cache.h"

using namespace acespec;

namespace {

NodeId node(std::uint32_t id) {
  return NodeId{id};
}
KvSlot slot(std::uint32_t id) {
  return KvSlot{id};
}

}  // namespace

TEST_CASE("slots are handed out lowest first and given back") {
  SlotRing ring(130);
  for (std::uint32_t index = 0; index < 130; ++index) {
    CHECK(ring.acquire(node(index)) == slot(index));
  }
  CHECK(ring.high_water() == 130);
  ring.release(slot(129));
  ring.release(slot(64));
  ring.release(slot(3));
  CHECK(ring.high_water() == 129);
  CHECK(ring.free() == 3);
  CHECK(ring.acquire(node(200)) == slot(3));
  CHECK(ring.acquire(node(201)) == slot(64));
  CHECK(ring.acquire(node(202)) == slot(129));
}

TEST_CASE("the victim is the least recently used slot and never a pinned one") {
  SlotRing ring(3);
  CHECK_FALSE(ring.victim());
  for (std::uint32_t index = 0; index < 3; ++index) {
    ring.acquire(node(index));
  }
  CHECK_FALSE(ring.acquire(node(9)));
  CHECK(ring.victim() == slot(0));
  ring.pin(slot(0));
  ring.touch(slot(1));
  CHECK(ring.victim() == slot(2));
  ring.pin(slot(1));
  ring.pin(slot(2));
  CHECK_FALSE(ring.victim());
  ring.unpin(slot(0));
  CHECK(ring.victim() == slot(0));
  ring.release(slot(0));
  CHECK(ring.acquire(node(10)) == slot(0));
  CHECK(ring.owner(slot(0)) == node(10));
}

TEST_CASE("slot misuse is named") {
  SlotRing ring(2);
  CHECK_THROWS_AS(ring.release(slot(0)), UsageError);
  CHECK_THROWS_AS(ring.pin(slot(0)), UsageError);
  ring.acquire(node(1));
  CHECK_THROWS_AS(ring.unpin(slot(0)), UsageError);
  CHECK_THROWS_AS(SlotRing{0}, UsageError);
}

TEST_CASE("random operations: the ring equals a list of slots") {
  std::mt19937 random(7);
  SlotRing ring(70);
  std::list<std::uint32_t> order;  // evictable, oldest first
  std::set<std::uint32_t> pinned;
  std::map<std::uint32_t, std::uint32_t> owner;
  const auto pick = [&](const auto& from) {
    auto at = from.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(random() % from.size()));
    return *at;
  };
  for (std::uint32_t step = 0; step < 20000; ++step) {
    switch (random() % 6) {
      case 0:
      case 1: {
        const auto taken = ring.acquire(node(step));
        if (order.size() + pinned.size() < 70) {
          std::uint32_t lowest = 0;
          while (owner.contains(lowest)) {
            ++lowest;
          }
          CHECK(taken == slot(lowest));
          order.push_back(lowest);
          owner[lowest] = step;
        } else {
          CHECK_FALSE(taken);
        }
        break;
      }
      case 2:
        if (!order.empty()) {
          const std::uint32_t at = pick(order);
          ring.touch(slot(at));
          order.remove(at);
          order.push_back(at);
        }
        break;
      case 3:
        if (!order.empty()) {
          const std::uint32_t at = pick(order);
          ring.pin(slot(at));
          order.remove(at);
          pinned.insert(at);
        }
        break;
      case 4:
        if (!pinned.empty()) {
          const std::uint32_t at = pick(pinned);
          ring.unpin(slot(at));
          pinned.erase(at);
          order.push_back(at);
        }
        break;
      default:
        if (!owner.empty()) {
          const std::uint32_t at = pick(owner).first;
          ring.release(slot(at));
          order.remove(at);
          pinned.erase(at);
          owner.erase(at);
        }
    }
    REQUIRE(ring.victim() == (order.empty() ? std::nullopt : std::optional{slot(order.front())}));
    REQUIRE(ring.evictable() == order.size());
    REQUIRE(ring.pinned() == pinned.size());
    REQUIRE(ring.free() == 70 - owner.size());
    REQUIRE(ring.high_water() == (owner.empty() ? 0 : owner.rbegin()->first + 1));
  }
  std::vector<KvSlot> expected;
  for (const std::uint32_t at : order) {
    expected.push_back(slot(at));
  }
  CHECK(ring.eviction_order() == expected);
}

TEST_CASE("random operations: the path index equals a map") {
  std::mt19937 random(11);
  PathIndex index(64);
  std::map<std::pair<std::uint32_t, std::int32_t>, std::uint32_t> model;
  for (std::uint32_t step = 0; step < 50000; ++step) {
    const auto parent = static_cast<std::uint32_t>(random() % 24);
    const std::int32_t token = static_cast<std::int32_t>(random() % 6);
    const auto key = std::pair(parent, token);
    const auto found = index.find(node(parent), TokenId{token});
    REQUIRE(found.has_value() == model.contains(key));
    if (found) {
      REQUIRE(found->value() == model[key]);
      index.erase(node(parent), TokenId{token});
      model.erase(key);
    } else if (model.size() < 64) {
      index.insert(node(parent), TokenId{token}, node(step));
      model[key] = step;
    } else {
      CHECK_THROWS_AS(index.insert(node(parent), TokenId{token}, node(step)), UsageError);
    }
    REQUIRE(index.size() == model.size());
  }
  index.clear();
  CHECK(index.size() == 0);
  CHECK_FALSE(index.find(node(model.begin()->first.first), TokenId{model.begin()->first.second}));
}

TEST_CASE("path misuse is named") {
  PathIndex index(4);
  index.insert(node(1), TokenId{5}, node(2));
  CHECK_THROWS_AS(index.insert(node(1), TokenId{5}, node(3)), UsageError);
  CHECK_THROWS_AS(index.erase(node(1), TokenId{6}), UsageError);
}

TEST_CASE("a committed slot stays where it is and has no owner") {
  StateCache cache({4, 100, 8});
  const KvSlot branch = *cache.acquire(node(1));
  const KvSlot context = *cache.acquire_context();
  cache.commit(branch);
  CHECK(cache.holds_context(branch));
  CHECK(cache.holds_context(context));
  const CacheSnapshot snapshot = cache.snapshot();
  CHECK(check_cache(snapshot).empty());
  CHECK(snapshot.pinned == 2);
  CHECK(snapshot.bytes == 400);
  CHECK_FALSE(snapshot.slots[0].owner);
  cache.release(branch);
  CHECK_FALSE(cache.holds_context(branch));
}

TEST_CASE("the checker finds a broken snapshot") {
  StateCache cache({4, 1, 4});
  cache.acquire(node(1));
  cache.acquire(node(2));
  const CacheSnapshot sound = cache.snapshot();
  REQUIRE(check_cache(sound).empty());

  CacheSnapshot lost = sound;
  lost.free -= 1;
  CHECK_FALSE(check_cache(lost).empty());
  CacheSnapshot twice = sound;
  twice.slots[1].owner = node(1);
  CHECK_FALSE(check_cache(twice).empty());
  CacheSnapshot ownerless = sound;
  ownerless.slots[0].owner.reset();
  CHECK_FALSE(check_cache(ownerless).empty());
  CacheSnapshot unordered = sound;
  unordered.eviction_order[0] = slot(3);
  CHECK_FALSE(check_cache(unordered).empty());
}
