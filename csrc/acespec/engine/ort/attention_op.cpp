#include "acespec/engine/ort/attention_op.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "acespec/engine/ort/ring_attention.h"

namespace acespec::ort {
namespace {

using Shape = std::vector<std::int64_t>;

enum Input : std::size_t { kQueries, kKeys, kValues, kSlots, kBias, kPastKeys, kPastValues, kInputs };
enum Output : std::size_t { kAttended, kPresentKeys, kPresentValues, kOutputs };

[[noreturn]] void refuse(const std::string& what) {
  throw Ort::Exception("RingAttention: " + what, ORT_INVALID_ARGUMENT);
}

void expect(const char* name, const Ort::ConstValue& value, const Shape& wanted) {
  const Shape found = value.GetTensorTypeAndShapeInfo().GetShape();
  if (found == wanted)
    return;
  const auto text = [](const Shape& shape) {
    std::string out = "[";
    for (const std::int64_t size : shape)
      out += (out.size() > 1 ? ", " : "") + std::to_string(size);
    return out + "]";
  };
  refuse(std::string(name) + " is " + text(found) + ", must be " + text(wanted));
}

std::size_t positive(const Ort::ConstKernelInfo& info, const char* name) {
  const auto value = info.GetAttribute<std::int64_t>(name);
  if (value < 1 || value > 65536)
    refuse(std::string(name) + " is " + std::to_string(value) + ", must be in 1..65536");
  return static_cast<std::size_t>(value);
}

class Kernel {
 public:
  explicit Kernel(const Ort::ConstKernelInfo& info)
      : kv_heads_(positive(info, "kv_heads")),
        group_(positive(info, "group")),
        head_dim_(positive(info, "head_dim")),
        scale_(info.GetAttribute<float>("scale")),
        cap_(info.GetAttribute<float>("cap")) {
    if (head_dim_ > RingAttention::kMostHeadDim) {
      refuse("head_dim is " + std::to_string(head_dim_) + ", must be at most " +
             std::to_string(RingAttention::kMostHeadDim));
    }
  }

  /// The rows' keys and values go into their slots, then the rows attend. A present tensor that is bound to
  /// its past one's memory is written in place.
  void Compute(OrtKernelContext* context) {
    const Ort::KernelContext call(context);
    const auto slots = call.GetInput(kSlots);
    const auto past_keys = call.GetInput(kPastKeys);
    const Shape ring = past_keys.GetTensorTypeAndShapeInfo().GetShape();
    const auto rows = static_cast<std::int64_t>(slots.GetTensorTypeAndShapeInfo().GetElementCount());
    const auto width = static_cast<std::int64_t>(kv_heads_ * head_dim_);
    const Shape query{1, rows, width * static_cast<std::int64_t>(group_)};
    expect("past keys", past_keys, {ring.at(0), width});
    expect("past values", call.GetInput(kPastValues), ring);
    expect("q", call.GetInput(kQueries), query);
    expect("k", call.GetInput(kKeys), {1, rows, width});
    expect("v", call.GetInput(kValues), {1, rows, width});
    expect("bias", call.GetInput(kBias), {rows, ring[0]});
    const std::span<const std::int64_t> places(slots.GetTensorData<std::int64_t>(), to_size(rows));
    for (const std::int64_t place : places) {
      if (place < 0 || place >= ring[0])
        refuse("a slot is " + std::to_string(place) + ", must be below " + std::to_string(ring[0]));
    }

    const RingAttention attention{
        .queries = call.GetInput(kQueries).GetTensorData<float>(),
        .keys = written(call, kKeys, kPastKeys, kPresentKeys, places, ring),
        .values = written(call, kValues, kPastValues, kPresentValues, places, ring),
        .bias = call.GetInput(kBias).GetTensorData<float>(),
        .out = call.GetOutput(kAttended, query).GetTensorMutableData<float>(),
        .rows = to_size(rows),
        .visible = to_size(ring[0]),
        .group = group_,
        .kv_heads = kv_heads_,
        .head_dim = head_dim_,
        .scale = scale_,
        .cap = cap_,
    };
    call.ParallelFor(
        [](void* data, std::size_t part) { attend(*static_cast<const RingAttention*>(data), part); },
        attention.parts(), 0, const_cast<RingAttention*>(&attention));
  }

 private:
  static std::size_t to_size(std::int64_t number) { return static_cast<std::size_t>(number); }

  const float* written(const Ort::KernelContext& call, Input fresh, Input past, Output present,
                       std::span<const std::int64_t> places, const Shape& ring) const {
    const std::size_t width = kv_heads_ * head_dim_;
    const auto* const rows = call.GetInput(fresh).GetTensorData<float>();
    const auto* const old = call.GetInput(past).GetTensorData<float>();
    float* const out = call.GetOutput(present, ring).GetTensorMutableData<float>();
    if (out != old)
      std::copy_n(old, to_size(ring[0]) * width, out);
    for (std::size_t row = 0; row < places.size(); ++row)
      std::copy_n(rows + row * width, width, out + to_size(places[row]) * width);
    return out;
  }

  std::size_t kv_heads_;
  std::size_t group_;
  std::size_t head_dim_;
  float scale_;
  float cap_;
};

struct AttentionOp : Ort::CustomOpBase<AttentionOp, Kernel> {
  void* CreateKernel(const OrtApi& /*api*/, const OrtKernelInfo* info) const {
    return std::make_unique<Kernel>(Ort::ConstKernelInfo(info)).release();
  }
  const char* GetName() const { return "RingAttention"; }
  std::size_t GetInputTypeCount() const { return kInputs; }
  ONNXTensorElementDataType GetInputType(std::size_t index) const {
    return index == kSlots ? ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 : ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
  std::size_t GetOutputTypeCount() const { return kOutputs; }
  ONNXTensorElementDataType GetOutputType(std::size_t /*index*/) const {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
};

}  // namespace

struct OwnOperators::Operators {
  AttentionOp attention;
};

OwnOperators::OwnOperators() : operators_(std::make_unique<Operators>()), domain_("acespec") {
  domain_.Add(&operators_->attention);
}

OwnOperators::~OwnOperators() = default;

}  // namespace acespec::ort
