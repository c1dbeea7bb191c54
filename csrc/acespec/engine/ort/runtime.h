// The process's one opened ONNX Runtime library. Private to this room.
#pragma once

#include <string>
#include <vector>

#include "acespec/engine/ort/api.h"
#include "acespec/engine/ort/host_memory.h"

namespace acespec::ort {

/// Opened once and never closed: its threads and allocators may outlive every engine. Thread-safe.
class Runtime {
 public:
  /// Opens `library`, or returns the one that is open. Throws EngineError when it cannot be opened or is
  /// older than API 21, UsageError when the process already uses another one.
  static Runtime& open(const std::string& library);

  [[nodiscard]] Ort::Env& environment() noexcept { return environment_; }
  /// Of host memory; all sessions use it.
  [[nodiscard]] Ort::UnownedAllocator allocator() noexcept { return memory_.allocator(); }
  [[nodiscard]] const std::string& version() const noexcept { return version_; }
  /// The runtime's own names of the execution providers it was built with.
  [[nodiscard]] static std::vector<std::string> providers() { return Ort::GetAvailableProviders(); }

 private:
  Runtime(std::string library, std::string version);

  std::string library_;  ///< with symbolic links resolved
  std::string version_;
  HostMemory memory_;
  Ort::Env environment_;
};

}  // namespace acespec::ort
