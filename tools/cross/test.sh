#!/usr/bin/env bash
# test.sh [FILE...]: the Python tests under qemu, against the installed aarch64 wheel; those files, or all that say
# something about the device package on another processor and need no PyTorch.
set -euo pipefail
command -v qemu-aarch64-static >/dev/null || {
  echo "no qemu-aarch64-static; on Debian or Ubuntu: apt install qemu-user-static" >&2
  exit 1
}
files=("$@")
if ((${#files[@]} == 0)); then
  files=(
    tests/integration/test_tiny_bundle.py # from a graph to text
    tests/integration/test_edge_cloud.py
    tests/python/test_wire.py     # golden bytes
    tests/python/test_sampling.py # golden noise
    tests/python/test_rules.py
    tests/python/test_engine.py
    tests/python/test_placement.py
    tests/python/test_drafter.py
    tests/python/test_residual.py
    tests/python/test_policy.py
    tests/python/test_control_choices.py
    tests/python/test_control_measured.py
    tests/python/test_control_sending.py
    tests/python/test_pace.py
    tests/python/test_cores.py
    tests/python/test_session.py
    tests/python/test_session_in_flight.py
    tests/python/test_session_residual.py
    tests/python/test_vocabulary.py
    tests/python/test_grammar.py
    tests/python/test_quantize.py
    tests/python/test_bundle.py
    tests/python/test_stops.py
  )
fi
# Emulation is ten times slower or more: examples have no deadline. Sources come from the wheel, not from python/.
export HYPOTHESIS_STORAGE_DIRECTORY=build/cross/hypothesis
tools/cross/python.sh -m pytest -p tools.cross.emulated -p no:cacheprovider -o pythonpath=. -m 'not slow' -q "${files[@]}"
