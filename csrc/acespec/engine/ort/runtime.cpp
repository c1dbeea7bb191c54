#include "acespec/engine/ort/runtime.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>
#include <utility>

#include "acespec/base/error.h"

namespace acespec::ort {
namespace {

std::string resolve(const std::string& library) {
  std::error_code failed;
  const auto path = std::filesystem::canonical(library, failed);
  if (failed)
    throw EngineError("ONNX Runtime library " + library + ": " + failed.message());
  return path.string();
}

/// Opens the library and makes it the one that Ort:: calls; returns its version. Nothing of Ort:: may exist
/// before.
std::string take(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw EngineError("ONNX Runtime library cannot be opened: " + std::string(dlerror()));
  }
  const auto get_base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(handle, "OrtGetApiBase"));
  if (get_base == nullptr) {
    dlclose(handle);
    throw EngineError("library " + library + " is not ONNX Runtime: it has no OrtGetApiBase");
  }
  const std::string version = get_base()->GetVersionString();
  const OrtApi* const api = get_base()->GetApi(kApi);
  if (api == nullptr) {
    dlclose(handle);
    const std::string wanted = std::to_string(kApi);
    throw EngineError("ONNX Runtime " + version + " (" + library + ") does not offer API " + wanted +
                      ": install onnxruntime 1." + wanted + " or newer");
  }
  Ort::InitApi(api);
  return version;
}

}  // namespace

// What goes wrong is thrown; a second report on stderr would only be noise.
Runtime::Runtime(std::string library, std::string version)
    : library_(std::move(library)),
      version_(std::move(version)),
      environment_(ORT_LOGGING_LEVEL_FATAL, "acespec") {
  memory_.serve(environment_);
}

Runtime& Runtime::open(const std::string& library) {
  static std::mutex mutex;
  static Runtime* opened = nullptr;
  const std::string path = resolve(library);
  const std::lock_guard lock(mutex);
  if (opened == nullptr) {
    std::string version = take(path);
    opened = new Runtime(path, std::move(version));
  } else if (opened->library_ != path) {
    throw UsageError("library is " + path + ", must be " + opened->library_ +
                     ": one process can use one ONNX Runtime only, and has opened that one");
  }
  return *opened;
}

}  // namespace acespec::ort
