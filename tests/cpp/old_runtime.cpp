// A library that says it is an ONNX Runtime older than the API that the engine needs.
#include <onnxruntime_c_api.h>

extern "C" __attribute__((visibility("default"))) const OrtApiBase* OrtGetApiBase() noexcept {
  static constexpr OrtApiBase kBase{[](uint32_t) noexcept -> const OrtApi* { return nullptr; },
                                    []() noexcept -> const char* { return "1.20.0"; }};
  return &kBase;
}
