#!/usr/bin/env bash
# test.sh [FILE...]: the Python tests under qemu, against the installed aarch64 wheel; those files, or all of the device
# package and of edge and cloud together. emulated.py skips what needs PyTorch, by the imports it meets.
set -euo pipefail
command -v qemu-aarch64-static >/dev/null || {
  echo "no qemu-aarch64-static; on Debian or Ubuntu: apt install qemu-user-static" >&2
  exit 1
}
(($#)) || set -- tests/python tests/integration
# Emulation is ten times slower or more: examples have no deadline. Sources come from the wheel, not from python/.
export HYPOTHESIS_STORAGE_DIRECTORY=build/cross/hypothesis
tools/cross/python.sh -m pytest -p tools.cross.emulated -p no:cacheprovider -o pythonpath=. \
  -m 'not slow and not native' -q "$@"
