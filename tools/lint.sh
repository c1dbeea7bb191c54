#!/usr/bin/env bash
# Every check that needs no test run. Reports all of them before it fails.
set -uo pipefail
failed=0
ruff check . || failed=1
mypy || failed=1
git ls-files 'csrc/*.h' 'csrc/*.cpp' 'tests/cpp/*.h' 'tests/cpp/*.cpp' | xargs -r clang-format --dry-run --Werror || failed=1
exit "$failed"
