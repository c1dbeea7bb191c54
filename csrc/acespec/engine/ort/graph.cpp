#include "acespec/engine/ort/graph.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string_view>

#include "acespec/base/error.h"

namespace acespec::ort {
namespace {

using Shape = std::vector<std::int64_t>;
constexpr std::int64_t kAny = -1;

struct Declared {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  Shape shape;
};
using Declarations = std::map<std::string, Declared>;

struct Expected {
  const char* name;
  ONNXTensorElementDataType type;
  Shape shape;
};

std::string type_name(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return "float32";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return "float16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return "bfloat16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return "int64";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return "int32";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED:
      return "no tensor";
    default:
      return "element type " + std::to_string(static_cast<int>(type));
  }
}

std::string describe(const std::string& type, const Shape& shape) {
  std::string text = type + "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0)
      text += ", ";
    text += shape[i] < 0 ? "?" : std::to_string(shape[i]);
  }
  return text + "]";
}

Declared declared(const Ort::TypeInfo& info) {
  if (info.GetONNXType() != ONNX_TYPE_TENSOR)
    return {};
  const auto tensor = info.GetTensorTypeAndShapeInfo();
  return {tensor.GetElementType(), tensor.GetShape()};
}

/// A declared dimension that is not fixed fits any; a fixed one fits only the same.
bool fits(const Shape& declared, const Shape& expected) {
  if (declared.size() != expected.size())
    return false;
  for (std::size_t i = 0; i < declared.size(); ++i) {
    if (declared[i] >= 0 && declared[i] != expected[i])
      return false;
  }
  return true;
}

/// One side of the graph. Every declaration is taken out once, so that what is left is unknown.
class Side {
 public:
  Side(const char* kind, Declarations left) : kind_(kind), left_(std::move(left)) {}

  [[nodiscard]] bool has(const std::string& name) const { return left_.contains(name); }

  [[nodiscard]] Declared take(const std::string& name) {
    const auto found = left_.find(name);
    if (found == left_.end())
      refuse(name, "is missing");
    Declared taken = std::move(found->second);
    left_.erase(found);
    return taken;
  }

  void take(const Expected& expected) {
    const Declared found = take(expected.name);
    if (found.type != expected.type || !fits(found.shape, expected.shape)) {
      refuse(expected.name, found, describe(type_name(expected.type), expected.shape));
    }
  }

  void finish() const {
    if (!left_.empty())
      refuse(left_.begin()->first, "is unknown");
  }

  [[noreturn]] void refuse(const std::string& name, const Declared& found, const std::string& right) const {
    refuse(name, "is " + describe(type_name(found.type), found.shape) + ", must be " + right);
  }

 private:
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const {
    throw EngineError("the graph's " + std::string(kind_) + " " + name + " " + what);
  }

  const char* kind_;
  Declarations left_;
};

Side inputs_of(const Ort::Session& session) {
  Ort::AllocatorWithDefaultOptions allocator;
  Declarations all;
  for (std::size_t i = 0; i < session.GetInputCount(); ++i) {
    all.emplace(session.GetInputNameAllocated(i, allocator).get(), declared(session.GetInputTypeInfo(i)));
  }
  return {"input", std::move(all)};
}

Side outputs_of(const Ort::Session& session) {
  Ort::AllocatorWithDefaultOptions allocator;
  Declarations all;
  for (std::size_t i = 0; i < session.GetOutputCount(); ++i) {
    all.emplace(session.GetOutputNameAllocated(i, allocator).get(), declared(session.GetOutputTypeInfo(i)));
  }
  return {"output", std::move(all)};
}

void take_logits(Side& outputs, Graph& graph) {
  const Declared found = outputs.take("logits");
  const bool good = found.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT && found.shape.size() == 2 &&
                    found.shape[0] < 0 && found.shape[1] > 0;
  if (!good)
    outputs.refuse("logits", found, "float32[?, V] with a fixed V");
  graph.logits_width = static_cast<std::size_t>(found.shape[1]);
}

/// The first tensor decides type and width; every other one, past or present, must be the same.
void take_kv(Side& side, const std::string& name, Graph& graph) {
  const Declared found = side.take(name);
  const bool known = found.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT ||
                     found.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
  const bool shaped = found.shape.size() == 2 && found.shape[0] < 0 && found.shape[1] > 0;
  if (!known || !shaped)
    side.refuse(name, found, "float32 or float16 [?, width] with a fixed width");
  const auto width = static_cast<std::size_t>(found.shape[1]);
  if (graph.kv_width == 0) {
    graph.kv_type = found.type;
    graph.kv_width = width;
  } else if (found.type != graph.kv_type || width != graph.kv_width) {
    side.refuse(name, found,
                describe(type_name(graph.kv_type), {kAny, static_cast<std::int64_t>(graph.kv_width)}) +
                    " like past_k.0");
  }
}

}  // namespace

Graph read_graph(const Ort::Session& session) {
  constexpr auto kInt = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
  const std::array<Expected, kFixedInputs> fixed{
      {{"input_ids", kInt, {1, kAny}},
       {"position_ids", kInt, {1, kAny}},
       {"kv_slots", kInt, {kAny}},
       {"attention_bias", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {kAny, kAny}},
       {"rows", kInt, {kAny}}}};
  Graph graph;
  Side inputs = inputs_of(session);
  Side outputs = outputs_of(session);
  for (const Expected& expected : fixed) {
    inputs.take(expected);
    graph.inputs.emplace_back(expected.name);
  }
  const Expected windowed{"slot_positions", kInt, {kAny}};
  graph.slot_positions = inputs.has(windowed.name);
  if (graph.slot_positions) {
    inputs.take(windowed);
    graph.inputs.emplace_back(windowed.name);
  }
  take_logits(outputs, graph);
  graph.outputs.emplace_back("logits");

  do {
    for (const char* kind : {"k.", "v."}) {
      const std::string tail = kind + std::to_string(graph.layers);
      take_kv(inputs, "past_" + tail, graph);
      take_kv(outputs, "present_" + tail, graph);
      graph.inputs.push_back("past_" + tail);
      graph.outputs.push_back("present_" + tail);
    }
    ++graph.layers;
  } while (inputs.has("past_k." + std::to_string(graph.layers)));
  inputs.finish();
  outputs.finish();
  return graph;
}

}  // namespace acespec::ort
