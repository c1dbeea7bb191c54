# Toolchain: aarch64 Linux from another machine, against the Debian root that tools/cross/root.sh makes.
#
# The compiler is Debian's g++-aarch64-linux-gnu; what is built runs here under qemu, so CTest does, too.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

get_filename_component(aarch64_root "${CMAKE_CURRENT_LIST_DIR}/../build/cross/root" ABSOLUTE)
set(CMAKE_SYSROOT "${aarch64_root}")

# Headers first from the root; flatc's, pybind11's and ONNX Runtime's are the same everywhere and lie outside.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)

# The interpreter is this machine's, the headers are the root's: one version of Python (see root.sh).
set(Python_INCLUDE_DIR "${aarch64_root}/usr/include/python3.11")
set(Python_SOABI cpython-311-aarch64-linux-gnu)
set(PYTHON_MODULE_EXTENSION ".${Python_SOABI}.so")

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -cpu cortex-a76 -L "${aarch64_root}")
