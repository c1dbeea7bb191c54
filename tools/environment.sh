#!/usr/bin/env bash
# environment.sh PYTHON FOLDER: a virtual environment with the package (Python sources in place) and what builds and tests it.
set -euo pipefail
python=$1 folder=$2
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
  echo "$python is $("$python" --version 2>&1); Python 3.10 or newer is needed: make PYTHON=..." >&2
  exit 1
}
"$python" -m venv "$folder" || {
  echo "no virtual environment; on Debian or Ubuntu: apt install python3-venv" >&2
  exit 1
}
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cloud,gateway,dev]'
