"""Fixtures that files of every folder take, most for all their tests, by ``pytest.mark.usefixtures``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.python.fakes import no_thread_left


@pytest.fixture
def threads_end() -> Iterator[None]:
    """Fails when a thread that the test started does not end."""
    with no_thread_left():
        yield


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts to reconnect come within 20 to 100 ms; their times are tested where they are made."""
    monkeypatch.setattr("acespec_edge.reconnect._FIRST", 0.02)
    monkeypatch.setattr("acespec_edge.reconnect._LONGEST", 0.1)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait between attempts to reconnect, where what goes on meanwhile must not end first."""
    monkeypatch.setattr("acespec_edge.reconnect._FIRST", 0.0)
    monkeypatch.setattr("acespec_edge.reconnect._LONGEST", 0.001)
