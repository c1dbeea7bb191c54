"""The emulated networks that a comparison visits."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from acespec_edge.errors import UsageError

_DOWN_OVER_UP = 10.0
"""How much faster the downlink is where nothing is said, as access networks are built."""

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_RATE = re.compile(r"([0-9]*\.?[0-9]+)([kmg]?)(?:bit)?", re.IGNORECASE)
_DELAY = re.compile(r"([0-9]*\.?[0-9]+)(?:ms)?", re.IGNORECASE)


@dataclass(frozen=True)
class Cell:
    """One network: round trip in milliseconds, rates in bit/s."""

    rtt_ms: float
    up_bps: float
    down_bps: float

    def __str__(self) -> str:
        return f"RTT {self.rtt_ms:g} ms, {rate(self.up_bps)} up, {rate(self.down_bps)} down"


def parse_grid(parts: Sequence[str]) -> list[Cell]:
    """Reads `rtt=20,100 bw=50k,1m [down=10m]`: every round trip (ms) with every rate (bit/s).

    Without `rtt` it is 100 ms, without `bw` 1 Mbit/s, without `down` ten times the uplink. Raises UsageError
    naming the part and the value that is wrong.
    """
    values: dict[str, list[str]] = {}
    for part in parts:
        name, _, listed = part.partition("=")
        if name not in ("rtt", "bw", "down"):
            raise UsageError(f"grid has {part!r}: give rtt=MS,..., bw=RATE,... and down=RATE,...")
        if name in values:
            raise UsageError(f"grid has {name} twice: list its values behind one {name}=")
        values[name] = listed.split(",")
    delays = [_delay(text) for text in values.get("rtt", ["100"])]
    ups = [_rate("bw", text) for text in values.get("bw", ["1m"])]
    downs = [_rate("down", text) for text in values["down"]] if "down" in values else [None]
    return [
        Cell(delay, up, _DOWN_OVER_UP * up if down is None else down)
        for up, down, delay in itertools.product(ups, downs, delays)
    ]


def rate(bps: float) -> str:
    """A rate as people write it: 50 kbit/s."""
    for unit, scale in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bps >= scale:
            return f"{bps / scale:g} {unit}"
    return f"{bps:g} bit/s"


def _delay(text: str) -> float:
    match = _DELAY.fullmatch(text)
    if match is None:
        raise UsageError(f"rtt is {text!r}: give milliseconds such as 20 or 100")
    return float(match[1])


def _rate(name: str, text: str) -> float:
    match = _RATE.fullmatch(text)
    bps = float(match[1]) * _SCALES[match[2].lower()] if match else 0.0
    if not 0 < bps < math.inf:
        raise UsageError(f"{name} is {text!r}: give bits per second such as 50k, 1m or 100m")
    return bps
