// A bundle's model on ONNX Runtime, whose library is opened at run time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "acespec/engine/engine.h"

namespace acespec {

struct OrtOptions {
  std::string model;              ///< path of model.onnx
  std::string library;            ///< path of libonnxruntime.so, 1.21 or newer
  std::size_t slots = 2048;       ///< rows of the KV ring, a multiple of 64
  std::size_t vocabulary = 0;     ///< drawable ids; the model may have more logits
  std::size_t max_positions = 0;  ///< positions of the model's rotary table; 0: as many as slots
  std::size_t threads = 1;        ///< of one operator
  /// Numbers of the processor cores that the threads it starts are kept to; empty: any. The caller's own
  /// thread, which takes part in a forward, is the caller's to place.
  std::vector<std::size_t> cores;
  bool spinning = true;  ///< idle threads spin, within a forward only; costs power, saves time
  std::string name;      ///< for messages; empty: the model's path
  std::string provider =
      "cpu";  ///< "cpu", "cuda", "tensorrt", or "auto" for the best that loads and keeps KV right
  /// Of TensorRT, under ONNX Runtime's names for them ("trt_engine_cache_path"): other providers take none.
  std::vector<std::pair<std::string, std::string>> provider_options{};
};

/// The graph contract: inputs input_ids int64[1,T], position_ids int64[1,T], kv_slots int64[T],
/// attention_bias float32[T,S], rows int64[R] and per layer past_k.N, past_v.N float32|float16[S,width];
/// outputs logits float32[R,V] and present_k.N, present_v.N like the past ones. A graph with windowed layers
/// also takes slot_positions int64[S], the position that each slot was last written for: the engine keeps
/// them, for the bias says who may be seen, and not how far away it is. Past and present are bound to
/// one buffer, so the graph's ScatterND writes the ring in place, and S is a prefix of it.
///
/// The constructor takes all memory: the ring, and what the runtime needs for the largest forward, by running
/// one. It throws UsageError for options out of range, EngineError when library, model or provider do not do,
/// naming which and why. All engines of a process share one opened library, which is never closed. Not
/// thread-safe; engines of their own are independent. forward() allocates handles only.
class OrtEngine final : public Engine {
 public:
  explicit OrtEngine(const OrtOptions& options);
  ~OrtEngine() override;

  [[nodiscard]] const EngineInfo& info() const noexcept override;
  [[nodiscard]] std::size_t max_rows() const noexcept override;
  [[nodiscard]] std::size_t visible_granule() const noexcept override;
  std::span<const float> forward(const Forward& batch) override;
  void clear() override;

 private:
  void load(const OrtOptions& options);

  class Model;
  std::unique_ptr<Model> model_;
};

}  // namespace acespec
