"""How long a message takes there and back."""

from __future__ import annotations

from typing import Final

_GAIN: Final = 1 / 8
"""Weight of a new sample in the smoothed round trip (RFC 6298)."""


class RoundTrip:
    """A smoothed round trip. ``seconds``: None before the first sample. Not thread-safe."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._is_rough = True

    def measured(self, sample: float, *, rough: bool) -> None:
        """Takes a sample; a ``rough`` one only stands in until there is another kind."""
        if self.seconds is None or (self._is_rough and not rough):
            self.seconds, self._is_rough = sample, rough
        elif self._is_rough == rough:
            self.seconds += _GAIN * (sample - self.seconds)
