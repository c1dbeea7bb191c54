#!/usr/bin/env bash
# wheel.sh FOLDER: builds the aarch64 wheel for Python 3.11 into FOLDER, against the root of root.sh. auditwheel names it
# after the oldest manylinux that has every symbol it needs.
set -euo pipefail
folder=$1
command -v aarch64-linux-gnu-g++ >/dev/null || {
  echo "no aarch64 compiler; on Debian or Ubuntu: apt install g++-aarch64-linux-gnu" >&2
  exit 1
}
# The build names the wheel's Python after the one that runs it; the headers are those of the root's.
python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
  echo "$(python --version) cannot build for the root's Python 3.11: make PYTHON=python3.11 ..., after make clean" >&2
  exit 1
}
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT

# The folder is that of the preset aarch64: what both compile is compiled once. pip of Python 3.11 has no -C yet.
_PYTHON_HOST_PLATFORM=linux-aarch64 SETUPTOOLS_EXT_SUFFIX=.cpython-311-aarch64-linux-gnu.so \
  CMAKE_TOOLCHAIN_FILE=$PWD/cmake/aarch64.cmake \
  python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$built" \
  --config-settings=build-dir=build/aarch64 --config-settings=cmake.define.ACESPEC_BUILD_PYTHON=ON \
  --config-settings=cmake.define.ACESPEC_BUILD_TESTS=OFF --config-settings=cmake.define.ACESPEC_WERROR="${WERROR:-OFF}" .
rm -f "$folder"/acespec_edge-*_aarch64.whl
python -m auditwheel repair --only-plat --wheel-dir "$folder" "$built"/*.whl
