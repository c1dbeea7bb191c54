#!/usr/bin/env bash
# step.sh LABEL LOG COMMAND...: runs the command quietly, shows that time passes, and its log when it fails.
set -uo pipefail
label=$1 log=$2
shift 2
mkdir -p "$(dirname "$log")"
started=$SECONDS
printf '%-24s' "$label"

set -m # the command gets a process group of its own, so that an interrupt ends all of it
"$@" >"$log" 2>&1 </dev/null &
work=$!
set +m
trap 'kill -TERM -- "-$work" 2>/dev/null; wait "$work"; echo " interrupted"; exit 130' INT TERM

ticks=0
while kill -0 "$work" 2>/dev/null; do
  sleep 0.2
  ((++ticks % 15)) || printf '.'
done
wait "$work"
status=$?
if ((status)); then
  printf ' failed after %d s; the end of %s:\n' "$((SECONDS - started))" "$log"
  tail -n 40 "$log"
  exit "$status"
fi
printf ' %d s\n' "$((SECONDS - started))"
