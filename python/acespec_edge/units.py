"""Durations and rates as people write them: `100ms`, `0.1s`, `1mbit`, `unlimited`."""

from __future__ import annotations

import math
import re

from acespec_edge.errors import UsageError

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def seconds(value: str | float, field: str) -> float:
    """A duration in seconds from text with a unit (us, ms, s) or from a number of seconds.

    Raises UsageError naming `field` when the value is not a finite duration of zero or more.
    """
    return _quantity(value, field, _SECONDS, "a duration such as 100ms or 0.1s")


def bits_per_second(value: str | float | None, field: str) -> float | None:
    """A rate in bit/s from text with a unit (bit, kbit, mbit, gbit) or from a number; None means unlimited.

    Raises UsageError naming `field` when the value is not a finite rate above zero.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() == "unlimited"):
        return None
    wanted = "a rate such as 50kbit, 1mbit or unlimited"
    rate = _quantity(value, field, _BITS, wanted)
    if rate <= 0:
        raise UsageError(f"{field} is {value!r}: a rate must be above zero; give {wanted}")
    return rate


def _quantity(value: str | float, field: str, units: dict[str, float], wanted: str) -> float:
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        scale = units.get(match[2].lower()) if match else None
        if match is None or scale is None:
            raise UsageError(f"{field} is {value!r}: give {wanted}")
        return float(match[1]) * scale
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{field} is {value!r}: give {wanted}")
    return float(value)
