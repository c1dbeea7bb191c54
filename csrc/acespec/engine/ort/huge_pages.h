// Host memory of the runtime, in large pages where the system gives them. Private to this room.
#pragma once

#include <cstddef>
#include <mutex>

namespace acespec::ort {

/// Memory for weights, keys and values, and a forward's larger intermediate results. A decode step reads
/// every weight once; in pages of 4 KiB it waits for their addresses as well.
///
/// Blocks of kLarge bytes and more are cut, best fit, from regions that start on a border of kPage and that
/// the kernel is asked to back with pages of that size; where it does not, they are ordinary memory. A region
/// has kRegion bytes, or what a larger block needs. Only what is touched becomes resident, so what is left
/// over of a region costs at most one page. Neighbouring free parts become one; a region that is wholly free
/// is unmapped, except one of kRegion, which a next forward will want again. Smaller blocks come from the C
/// library.
///
/// All blocks are aligned to kAlignment. Thread-safe. O(number of free parts), which are few.
class HugePages {
 public:
  static constexpr std::size_t kPage = std::size_t{2} << 20U;
  static constexpr std::size_t kRegion = std::size_t{32} << 20U;
  static constexpr std::size_t kLarge = std::size_t{64} << 10U;
  static constexpr std::size_t kAlignment = 64;

  HugePages() = default;
  ~HugePages();
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;

  /// Undefined content; nullptr when there is no memory.
  [[nodiscard]] void* take(std::size_t bytes) noexcept;
  /// Takes back what take() gave; nullptr is nothing.
  void give_back(void* block) noexcept;

  /// Bytes of address space that the regions have, in use or not.
  [[nodiscard]] std::size_t reserved() const noexcept;

 private:
  struct Region;

  /// A free part of a region, noted in the part itself. Sizes are multiples of kAlignment.
  struct alignas(kAlignment) Part {
    std::size_t size;
    Part* next;  ///< by address, within the region
  };

  /// What stands before a block that is in use.
  struct alignas(kAlignment) Header {
    std::size_t size;  ///< with the header
    Region* region;    ///< nullptr: the C library's
  };

  /// Stands at the start of its own memory.
  struct alignas(kAlignment) Region {
    std::size_t size;
    Part* free;
    Region* next;

    [[nodiscard]] bool unused() const noexcept {
      return free != nullptr && free->size == size - sizeof(Region);
    }
  };

  [[nodiscard]] Region* add_region(std::size_t block) noexcept;
  void remove_unused(Region* region) noexcept;

  mutable std::mutex mutex_;
  Region* regions_ = nullptr;
};

}  // namespace acespec::ort
