#include "acespec/engine/ort/runtime.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>

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

const OrtApiBase* open_library(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    throw EngineError("ONNX Runtime library cannot be opened: " + std::string(dlerror()));
  const auto get_base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(handle, "OrtGetApiBase"));
  if (get_base == nullptr) {
    dlclose(handle);
    throw EngineError("library " + library + " is not ONNX Runtime: it has no OrtGetApiBase");
  }
  return get_base();
}

}  // namespace

Runtime::Runtime(const std::string& library) : library_(library) {
  const OrtApiBase* const base = open_library(library_);
  version_ = base->GetVersionString();
  const OrtApi* const api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr) {
    throw EngineError("ONNX Runtime " + version_ + " (" + library_ + ") does not offer API " +
                      std::to_string(ORT_API_VERSION) + ": install onnxruntime 1." +
                      std::to_string(ORT_API_VERSION) + " or newer");
  }
  Ort::InitApi(api);
  // What goes wrong is thrown; a second report on stderr would only be noise.
  environment_ = Ort::Env(ORT_LOGGING_LEVEL_FATAL, "acespec");
}

Runtime& Runtime::open(const std::string& library) {
  static std::mutex mutex;
  static Runtime* opened = nullptr;
  const std::string path = resolve(library);
  const std::lock_guard lock(mutex);
  if (opened == nullptr) {
    opened = new Runtime(path);
  } else if (opened->library_ != path) {
    throw UsageError("library is " + path + ", must be " + opened->library_ +
                     ": one process can use one ONNX Runtime only, and has opened that one");
  }
  return *opened;
}

}  // namespace acespec::ort
