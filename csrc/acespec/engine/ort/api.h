// The one way this room sees ONNX Runtime: its table of functions is set by Runtime, not at start-up.
// Private.
#pragma once

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>
