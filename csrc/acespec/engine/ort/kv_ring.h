// The keys and values of every layer, taken once. Private to this room.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "acespec/engine/ort/api.h"
#include "acespec/engine/ort/graph.h"

namespace acespec::ort {

/// One [slots, kv_width] buffer per layer for k and for v, where the model runs: in host memory, or on the
/// GPU. A forward that sees S slots gets the [S, kv_width] prefix of each, as input and as output. The
/// content is undefined until a first forward over all slots took Zeros as past values. Not thread-safe.
/// values() makes the handles of a prefix when it is first asked for, at most slots / granule times.
class KvRing {
 public:
  /// `host`: for a ring in host memory. Throws EngineError when there is not enough.
  KvRing(Ort::UnownedAllocator host, const Ort::Session& session, const Graph& graph, std::size_t slots,
         std::size_t granule, bool on_gpu);

  /// Handles of k and v of layer 0, 1, ... for the first `visible` slots, owned by the ring.
  [[nodiscard]] std::span<OrtValue* const> values(std::size_t visible);

  /// Past values of the first forward: [slots, kv_width] zeros in host memory, one buffer for every layer's k
  /// and v. (The runtime copies them to the present values, which clears a ring in GPU memory too.)
  class Zeros {
   public:
    Zeros(const Graph& graph, std::size_t slots);
    [[nodiscard]] std::span<OrtValue* const> values() const noexcept { return handles_; }

   private:
    std::vector<std::byte> bytes_;
    Ort::Value value_{nullptr};
    std::vector<OrtValue*> handles_;
  };

 private:
  struct Prefix {
    std::vector<Ort::Value> values;
    std::vector<OrtValue*> handles;
  };

  std::size_t granule_;
  std::size_t kv_width_;
  std::size_t row_bytes_;
  ONNXTensorElementDataType type_;
  Ort::MemoryInfo place_{nullptr};
  Ort::Allocator gpu_{nullptr};  ///< none when in host memory
  std::vector<Ort::MemoryAllocation> buffers_;
  std::vector<Prefix> prefixes_;
};

}  // namespace acespec::ort
