"""The files in which a machine describes itself."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MOST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class System:
    """A machine's /proc, /sys and libraries below ``root``. What is not there, or not to be read, is empty:
    these files differ from kernel to kernel."""

    root: Path = Path("/")

    def text(self, path: str) -> str:
        """The content of a file, without blanks and NULs around it."""
        try:
            with (self.root / path).open("rb") as file:
                return file.read(_MOST).decode("utf-8", "replace").strip("\0 \t\n")
        except OSError:
            return ""

    def number(self, path: str) -> int | None:
        """The number that a file holds."""
        text = self.text(path)
        return int(text) if re.fullmatch(r"-?\d+", text) else None

    def found(self, pattern: str) -> list[Path]:
        """Paths that match, in order."""
        return sorted(self.root.glob(pattern))


def ranges(numbers: Collection[int]) -> str:
    """Numbers as the kernel lists cores: "0-3,6"."""
    parts: list[str] = []
    left = sorted(numbers)
    while left:
        first = last = left.pop(0)
        while left and left[0] == last + 1:
            last = left.pop(0)
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts)
