#!/usr/bin/env bash
# site.sh FOLDER WHEEL: installs the aarch64 WHEEL, what it needs, and what its tests need into FOLDER, for the Python
# of the root. Nothing of it can run on this machine's processor; pip only unpacks.
#
# ONNX Runtime is 1.23.2: newer ones use instructions on which qemu 7.2 ends with an illegal-instruction fault.
set -euo pipefail
folder=$1 wheel=$2
platforms=()
for tag in 2_36 2_35 2_34 2_31 2_28 2_27 2_26 2_24 2_17 2014; do
  [[ $tag == 2014 ]] && tag=manylinux2014_aarch64 || tag=manylinux_${tag}_aarch64
  platforms+=(--platform "$tag")
done
rm -rf "$folder" "$folder.partial"
python -m pip install --quiet --disable-pip-version-check --target "$folder.partial" "${platforms[@]}" \
  --python-version 3.11 --implementation cp --only-binary=:all: \
  "$wheel[gateway]" onnxruntime==1.23.2 \
  'httpx>=0.27' 'hypothesis>=6.100' 'pip>=24' 'pytest>=8.3' 'pytest-asyncio>=0.24' 'scipy>=1.13' 'trustme>=1.1'
mv "$folder.partial" "$folder"
