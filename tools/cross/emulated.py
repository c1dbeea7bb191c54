"""A pytest plugin for runs under emulation: subprocesses get the emulated interpreter, too."""

from __future__ import annotations

import sys
from pathlib import Path

# The system starts no aarch64 program by itself, and the interpreter would name its own file.
sys.executable = str(Path(__file__).with_name("python.sh"))
