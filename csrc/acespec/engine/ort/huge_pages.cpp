#include "acespec/engine/ort/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace acespec::ort {
namespace {

constexpr std::size_t rounded(std::size_t size, std::size_t to) {
  return (size + to - 1) / to * to;
}

std::byte* address(void* of) {
  return static_cast<std::byte*>(of);
}

/// `size` bytes on a border of `page`, or nullptr: of a mapping that is a page longer, what lies before and
/// behind is unmapped.
std::byte* map_aligned(std::size_t size, std::size_t page) {
  void* const mapped = mmap(nullptr, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED)
    return nullptr;
  const std::size_t before = (page - reinterpret_cast<std::uintptr_t>(mapped) % page) % page;
  std::byte* const start = address(mapped) + before;
  if (before > 0)
    munmap(mapped, before);
  munmap(start + size, page - before);
#ifdef MADV_HUGEPAGE
  madvise(start, size, MADV_HUGEPAGE);  // a kernel without them refuses, and gives ordinary pages
#endif
  return start;
}

}  // namespace

HugePages::~HugePages() {
  while (regions_ != nullptr) {
    Region* const region = regions_;
    regions_ = region->next;
    munmap(region, region->size);
  }
}

void* HugePages::take(std::size_t bytes) noexcept {
  if (bytes > SIZE_MAX / 2)
    return nullptr;
  const std::size_t size = rounded(bytes + sizeof(Header), kAlignment);
  if (bytes < kLarge) {
    void* const start = std::aligned_alloc(kAlignment, size);
    return start == nullptr ? nullptr : new (start) Header{size, nullptr} + 1;
  }
  const std::lock_guard lock(mutex_);
  Region* from = nullptr;
  Part** best = nullptr;
  for (Region* region = regions_; region != nullptr; region = region->next) {
    for (Part** part = &region->free; *part != nullptr; part = &(*part)->next) {
      if ((*part)->size >= size && (best == nullptr || (*part)->size < (*best)->size)) {
        best = part;
        from = region;
      }
    }
  }
  if (best == nullptr) {
    from = add_region(size);
    if (from == nullptr)
      return nullptr;
    best = &from->free;
  }
  Part* const part = *best;
  *best = part->size == size ? part->next : new (address(part) + size) Part{part->size - size, part->next};
  return new (part) Header{size, from} + 1;
}

void HugePages::give_back(void* block) noexcept {
  if (block == nullptr)
    return;
  Header* const header = static_cast<Header*>(block) - 1;
  const auto [size, region] = *header;
  if (region == nullptr) {
    std::free(header);
    return;
  }
  const std::lock_guard lock(mutex_);
  Part* before = nullptr;
  Part* after = region->free;
  while (after != nullptr && address(after) < address(header)) {
    before = after;
    after = after->next;
  }
  Part* part = new (header) Part{size, after};
  if (after != nullptr && address(part) + part->size == address(after)) {
    part->size += after->size;
    part->next = after->next;
  }
  if (before != nullptr && address(before) + before->size == address(part)) {
    before->size += part->size;
    before->next = part->next;
  } else {
    (before == nullptr ? region->free : before->next) = part;
  }
  if (region->unused())
    remove_unused(region);
}

HugePages::Region* HugePages::add_region(std::size_t block) noexcept {
  const std::size_t size = std::max(kRegion, rounded(block + sizeof(Region), kPage));
  std::byte* const start = map_aligned(size, kPage);
  if (start == nullptr)
    return nullptr;
  Part* const all = new (start + sizeof(Region)) Part{size - sizeof(Region), nullptr};
  regions_ = new (start) Region{size, all, regions_};
  return regions_;
}

void HugePages::remove_unused(Region* region) noexcept {
  bool spare = false;
  Region** link = nullptr;
  for (Region** at = &regions_; *at != nullptr; at = &(*at)->next) {
    if (*at == region)
      link = at;
    else
      spare = spare || (*at)->unused();
  }
  if (region->size == kRegion && !spare)
    return;
  *link = region->next;
  munmap(region, region->size);
}

std::size_t HugePages::reserved() const noexcept {
  const std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const Region* region = regions_; region != nullptr; region = region->next)
    sum += region->size;
  return sum;
}

}  // namespace acespec::ort
