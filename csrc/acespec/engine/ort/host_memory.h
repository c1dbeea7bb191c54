// The allocator that the runtime's sessions and the ring share. Private to this room.
#pragma once

#include <cstddef>

#include "acespec/engine/ort/api.h"
#include "acespec/engine/ort/huge_pages.h"

namespace acespec::ort {

/// HugePages as ONNX Runtime calls it. Made when the library is open; must outlive whatever was allocated
/// from it. Thread-safe.
class HostMemory {
 public:
  HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  /// Makes it the allocator of host memory of every session that asks for those of `environment`
  /// ("session.use_env_allocators"). Throws Ort::Exception.
  void serve(Ort::Env& environment);

  [[nodiscard]] Ort::UnownedAllocator allocator() noexcept { return Ort::UnownedAllocator(&table_); }

 private:
  /// What the runtime holds: its own table of functions, and the way back to here.
  struct Table : OrtAllocator {
    HostMemory* owner;
  };
  [[nodiscard]] static HostMemory& of(const OrtAllocator* table) noexcept {
    return *static_cast<const Table*>(table)->owner;
  }

  Ort::MemoryInfo info_ = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  HugePages pages_;
  Table table_{};
};

}  // namespace acespec::ort
