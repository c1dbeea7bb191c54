"""A rate that is kept on the long run, with bursts."""

from __future__ import annotations


class TokenBucket:
    """Fills with ``rate`` units a second up to ``capacity``, and begins full. It may be overdrawn: what is
    spent too much has to flow in first. Time is an argument, in monotonic seconds. Not thread-safe; O(1).
    """

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        self.rate = rate
        self.capacity = capacity
        self._level = capacity
        self._at = now

    def wait(self, amount: float, now: float) -> float:
        """Seconds until ``amount`` (``capacity`` at most) is there; 0 when it is."""
        self._fill(now)
        return max(0.0, min(amount, self.capacity) - self._level) / self.rate

    def spend(self, amount: float, now: float) -> None:
        """Takes ``amount`` out, whether it is there or not."""
        self._fill(now)
        self._level -= amount

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._level = min(self.capacity, self._level + self.rate * (now - self._at))
            self._at = now
