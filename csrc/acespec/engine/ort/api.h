// The one way this room sees ONNX Runtime: its table of functions is set by Runtime, not at start-up.
// Private.
#pragma once

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

#include <cstdint>

namespace acespec::ort {

/// The API asked for, whatever the headers offer: its table only grows, so newer headers do not demand a
/// newer runtime.
inline constexpr std::uint32_t kApi = 21;

}  // namespace acespec::ort
