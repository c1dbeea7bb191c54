// Opens a model on one execution provider. Private to this room.
#pragma once

#include <string>
#include <vector>

#include "acespec/engine/ort/ort_engine.h"
#include "acespec/engine/ort/runtime.h"

namespace acespec::ort {

/// The providers to try for `wanted`, best first: "tensorrt", "cuda", "cpu". Throws UsageError for a name it
/// does not know, EngineError when the runtime was built without it.
[[nodiscard]] std::vector<std::string> candidates(const std::string& wanted, const Runtime& runtime);

/// Throws Ort::Exception when the model or the provider does not load.
[[nodiscard]] Ort::Session open_session(Runtime& runtime, const OrtOptions& options,
                                        const std::string& provider);

}  // namespace acespec::ort
