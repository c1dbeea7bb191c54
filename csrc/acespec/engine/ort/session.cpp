#include "acespec/engine/ort/session.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

#include "acespec/base/error.h"

namespace acespec::ort {
namespace {

struct Provider {
  std::string_view name;
  std::string_view runtime_name;
};

/// Best first.
constexpr std::array<Provider, 3> kProviders{{{"tensorrt", "TensorrtExecutionProvider"},
                                              {"cuda", "CUDAExecutionProvider"},
                                              {"cpu", "CPUExecutionProvider"}}};

void append_tensorrt(Ort::SessionOptions& options,
                     const std::vector<std::pair<std::string, std::string>>& entries) {
  const OrtApi& api = Ort::GetApi();
  OrtTensorRTProviderOptionsV2* tensorrt = nullptr;
  Ort::ThrowOnError(api.CreateTensorRTProviderOptions(&tensorrt));
  const std::unique_ptr<OrtTensorRTProviderOptionsV2, decltype(api.ReleaseTensorRTProviderOptions)> owner(
      tensorrt, api.ReleaseTensorRTProviderOptions);
  std::vector<const char*> keys;
  std::vector<const char*> values;
  for (const auto& [key, value] : entries) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
  if (!keys.empty()) {
    Ort::ThrowOnError(api.UpdateTensorRTProviderOptions(tensorrt, keys.data(), values.data(), keys.size()));
  }
  options.AppendExecutionProvider_TensorRT_V2(*tensorrt);
}

void append_cuda(Ort::SessionOptions& options) {
  const OrtApi& api = Ort::GetApi();
  OrtCUDAProviderOptionsV2* cuda = nullptr;
  Ort::ThrowOnError(api.CreateCUDAProviderOptions(&cuda));
  const std::unique_ptr<OrtCUDAProviderOptionsV2, decltype(api.ReleaseCUDAProviderOptions)> owner(
      cuda, api.ReleaseCUDAProviderOptions);
  options.AppendExecutionProvider_CUDA_V2(*cuda);
}

/// The runtime counts processors from 1: "2,3;2,3" keeps two threads to the cores 1 and 2.
std::string affinities(const OrtOptions& options) {
  std::string one;
  for (const std::size_t core : options.cores) {
    if (!one.empty())
      one += ',';
    one += std::to_string(core + 1);
  }
  std::string all;
  for (std::size_t thread = 1; thread < options.threads; ++thread) {
    if (!all.empty())
      all += ';';
    all += one;
  }
  return all;
}

}  // namespace

std::vector<std::string> candidates(const std::string& wanted, const Runtime& runtime) {
  const std::vector<std::string> built = Runtime::providers();
  std::vector<std::string> found;
  bool known = wanted == "auto";
  for (const Provider& provider : kProviders) {
    const bool asked = wanted == "auto" || wanted == provider.name;
    known = known || asked;
    if (asked && std::ranges::find(built, provider.runtime_name) != built.end())
      found.emplace_back(provider.name);
  }
  if (!known)
    throw UsageError("provider is \"" + wanted + "\", must be auto, tensorrt, cuda or cpu");
  if (found.empty()) {
    throw EngineError("provider " + wanted + " is not part of this ONNX Runtime (" + runtime.version() +
                      "): install a build that has it, or choose cpu or auto");
  }
  return found;
}

Ort::Session open_session(Runtime& runtime, const OrtOptions& options, const std::string& provider) {
  Ort::SessionOptions settings;
  settings.SetGraphOptimizationLevel(ORT_ENABLE_ALL);
  settings.SetExecutionMode(ORT_SEQUENTIAL);
  settings.SetIntraOpNumThreads(static_cast<int>(options.threads));
  settings.SetInterOpNumThreads(1);
  // T, S and R change from call to call; a pattern would be kept for each combination ever seen.
  settings.DisableMemPattern();
  settings.AddConfigEntry("session.use_env_allocators", "1");
  settings.AddConfigEntry("session.intra_op.allow_spinning", options.spinning ? "1" : "0");
  settings.AddConfigEntry("session.force_spinning_stop", "1");
  if (options.threads > 1 && !options.cores.empty())
    settings.AddConfigEntry("session.intra_op_thread_affinities", affinities(options).c_str());
  settings.AddConfigEntry("session.enable_dq_matmulnbits_fusion", "1");
  settings.AddConfigEntry("session.qdq_matmulnbits_accuracy_level", "4");
  if (provider == "tensorrt")
    append_tensorrt(settings, options.provider_options);
  // TensorRT leaves what it cannot run to the next provider, which should be on the GPU as well.
  if (provider != "cpu")
    append_cuda(settings);
  return Ort::Session(runtime.environment(), options.model.c_str(), settings);
}

}  // namespace acespec::ort
