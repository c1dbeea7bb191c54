// The best few of many.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace acespec {

/// Keeps the `capacity` best of the candidates it is offered, in any order of offers: by score, then the
/// lower token. Memory for `reserve` entries is taken at construction. An offer costs O(log capacity).
class BestList {
 public:
  struct Entry {
    double score;
    float logit;
    std::int32_t token;
  };

  explicit BestList(std::size_t reserve) { heap_.reserve(reserve); }

  /// Forgets everything; `capacity` is at most what was reserved, and not 0.
  void reset(std::size_t capacity) {
    heap_.clear();
    capacity_ = capacity;
  }

  /// A score under this one does not enter any more.
  [[nodiscard]] double threshold() const noexcept {
    return heap_.size() < capacity_ ? -std::numeric_limits<double>::infinity() : heap_.front().score;
  }

  void offer(const Entry& entry) {
    if (heap_.size() < capacity_) {
      heap_.push_back(entry);
      std::push_heap(heap_.begin(), heap_.end(), better);
    } else if (better(entry, heap_.front())) {
      std::pop_heap(heap_.begin(), heap_.end(), better);
      heap_.back() = entry;
      std::push_heap(heap_.begin(), heap_.end(), better);
    }
  }

  /// Best first. Ends the collecting: reset() comes next.
  [[nodiscard]] std::span<const Entry> sorted() {
    std::sort_heap(heap_.begin(), heap_.end(), better);
    return heap_;
  }

 private:
  static bool better(const Entry& a, const Entry& b) noexcept {
    return a.score != b.score ? a.score > b.score : a.token < b.token;
  }

  std::vector<Entry> heap_;  // the worst in front
  std::size_t capacity_ = 0;
};

}  // namespace acespec
