"""Time in tests on a machine that now and then stands still for a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Measured = TypeVar("Measured")

ATTEMPTS = 5
LIMIT = 20.0
"""Seconds within which something comes that takes milliseconds, unless it never does."""


def steady(measure: Callable[[], Measured], check: Callable[[Measured], None]) -> None:
    """Measures until ``check``, which asserts, passes; after ``ATTEMPTS`` times its last failure stands.
    A real deviation fails every time, a stall of the machine does not.

    What no stall can break, such as that nothing is early and no byte is lost, belongs into ``measure``: a
    failure there is not tried again.
    """
    for left in reversed(range(ATTEMPTS)):
        measured = measure()
        try:
            check(measured)
            return
        except AssertionError:
            if left == 0:
                raise


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
