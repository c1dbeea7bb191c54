#!/usr/bin/env bash
# native.sh PRESET OPTION...: configures and builds a preset, and says first what the system lacks.
set -euo pipefail
preset=$1
shift
command -v c++ >/dev/null || {
  echo "no C++ compiler; on Debian or Ubuntu: apt install g++" >&2
  exit 1
}
if [[ " $* " == *" -DACESPEC_BUILD_TESTS=ON "* ]] && ! echo '#include <doctest/doctest.h>' | c++ -E -x c++ - >/dev/null 2>&1; then
  echo "the C++ tests need the doctest headers; on Debian or Ubuntu: apt install doctest-dev" >&2
  exit 1
fi
cmake --preset "$preset" "$@"
cmake --build --preset "$preset"
