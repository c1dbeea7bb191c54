#include "acespec/engine/ort/kv_ring.h"

#include <array>
#include <cstdint>
#include <string>

#include "acespec/base/error.h"

namespace acespec::ort {
namespace {

using Shape = std::array<std::int64_t, 2>;

Shape shape_of(std::size_t rows, std::size_t width) {
  return {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(width)};
}

Ort::MemoryInfo host_memory() {
  return Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
}

}  // namespace

KvRing::KvRing(Ort::UnownedAllocator host, const Ort::Session& session, const Graph& graph, std::size_t slots,
               std::size_t granule, bool on_gpu)
    : granule_(granule),
      kv_width_(graph.kv_width),
      row_bytes_(graph.kv_width * graph.kv_element()),
      type_(graph.kv_type),
      prefixes_(slots / granule) {
  const std::size_t bytes = slots * row_bytes_;
  buffers_.reserve(graph.layers * 2);
  place_ = on_gpu ? Ort::MemoryInfo("Cuda", OrtDeviceAllocator, 0, OrtMemTypeDefault) : host_memory();
  if (on_gpu)
    gpu_ = Ort::Allocator(session, place_);
  for (std::size_t i = 0; i < graph.layers * 2; ++i) {
    buffers_.push_back(on_gpu ? gpu_.GetAllocation(bytes) : host.GetAllocation(bytes));
    if (buffers_.back().get() == nullptr) {
      throw EngineError("no memory for the keys and values: " + std::to_string(slots) + " slots take " +
                        std::to_string(graph.layers * 2 * bytes) + " bytes");
    }
  }
}

std::span<OrtValue* const> KvRing::values(std::size_t visible) {
  Prefix& prefix = prefixes_[visible / granule_ - 1];
  if (prefix.handles.empty()) {
    const Shape shape = shape_of(visible, kv_width_);
    prefix.values.reserve(buffers_.size());
    prefix.handles.reserve(buffers_.size());
    for (Ort::MemoryAllocation& buffer : buffers_) {
      prefix.values.push_back(Ort::Value::CreateTensor(place_, buffer.get(), visible * row_bytes_,
                                                       shape.data(), shape.size(), type_));
      prefix.handles.push_back(prefix.values.back());
    }
  }
  return prefix.handles;
}

KvRing::Zeros::Zeros(const Graph& graph, std::size_t slots)
    : bytes_(slots * graph.kv_width * graph.kv_element()) {
  const Shape shape = shape_of(slots, graph.kv_width);
  value_ = Ort::Value::CreateTensor(host_memory(), bytes_.data(), bytes_.size(), shape.data(), shape.size(),
                                    graph.kv_type);
  handles_.assign(graph.layers * 2, value_);
}

}  // namespace acespec::ort
