# Headers of the ONNX Runtime C and C++ API. The library itself is opened at run time and never linked.
#
# ACESPEC_ORT_INCLUDE_DIR when given, else the system's, else fetched once into the build folder.
# Defines the target acespec_ort_headers.
set(ACESPEC_ORT_INCLUDE_DIR "" CACHE PATH "Folder that holds onnxruntime_c_api.h (API 21 or newer)")

if(NOT ACESPEC_ORT_INCLUDE_DIR)
  find_path(ortheaders_system onnxruntime_c_api.h PATH_SUFFIXES onnxruntime onnxruntime/core/session NO_CACHE)
  if(ortheaders_system)
    set(ortheaders_folder "${ortheaders_system}")
  else()
    set(ortheaders_folder "${CMAKE_BINARY_DIR}/ort-headers/include")
    if(NOT EXISTS "${ortheaders_folder}/onnxruntime_c_api.h")
      execute_process(
        COMMAND "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/tools/fetch_ort_headers.py" "${ortheaders_folder}"
        RESULT_VARIABLE ortheaders_result)
      if(ortheaders_result)
        message(FATAL_ERROR "ONNX Runtime headers are missing; see the message above")
      endif()
    endif()
  endif()
else()
  set(ortheaders_folder "${ACESPEC_ORT_INCLUDE_DIR}")
endif()

if(NOT EXISTS "${ortheaders_folder}/onnxruntime_c_api.h")
  message(FATAL_ERROR "ACESPEC_ORT_INCLUDE_DIR=${ortheaders_folder} holds no onnxruntime_c_api.h")
endif()
file(STRINGS "${ortheaders_folder}/onnxruntime_c_api.h" ortheaders_line REGEX "^#define ORT_API_VERSION [0-9]+")
string(REGEX REPLACE ".* ([0-9]+)$" "\\1" ortheaders_api "${ortheaders_line}")
if(ortheaders_api LESS 21)
  message(FATAL_ERROR "ONNX Runtime headers in ${ortheaders_folder} are of API ${ortheaders_api}; 21 or newer is needed")
endif()
message(STATUS "ONNX Runtime headers: ${ortheaders_folder} (API ${ortheaders_api})")

add_library(acespec_ort_headers INTERFACE)
target_include_directories(acespec_ort_headers SYSTEM INTERFACE "${ortheaders_folder}")
