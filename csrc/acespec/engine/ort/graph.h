// What a model's graph declares, checked against the contract. Private to this room.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "acespec/engine/ort/api.h"

namespace acespec::ort {

/// Names in the order in which a forward passes its values: the fixed ones, slot_positions where the graph
/// has it, then k and v of layer 0, 1, ...
struct Graph {
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::size_t layers = 0;
  std::size_t kv_width = 0;  ///< elements of one row of one k or v
  std::size_t logits_width = 0;
  bool slot_positions = false;  ///< the graph asks where each slot lies: it has layers with a window
  ONNXTensorElementDataType kv_type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;

  /// Bytes of one element of the ring.
  [[nodiscard]] std::size_t kv_element() const noexcept {
    return kv_type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 ? 2 : 4;
  }
};

/// Inputs before the KV: input_ids, position_ids, kv_slots, attention_bias, rows.
inline constexpr std::size_t kFixedInputs = 5;

/// Throws EngineError that names the input or output which is missing, unknown, or of another type or shape.
[[nodiscard]] Graph read_graph(const Ort::Session& session);

}  // namespace acespec::ort
