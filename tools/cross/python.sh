#!/bin/sh
# python.sh ARGUMENT...: the aarch64 root's Python under qemu, with the packages of site.sh. Scripts and subprocesses may
# call it as they would an interpreter.
folder=$(dirname "$(realpath "$0")")/../../build/cross
folder=$(realpath "$folder")
exec qemu-aarch64-static -cpu cortex-a76 -L "$folder/root" -E "PYTHONPATH=$folder/site" \
  "$folder/root/usr/bin/python3.11" "$@"
