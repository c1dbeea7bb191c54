"""Fixtures of edge and cloud together."""

from __future__ import annotations

from pathlib import Path

import pytest

from acespec_edge.bundle import Bundle
from tests.python.fake_bundle import make_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """The 64 tokens of the fake engines; none ends a text."""
    return make_bundle(tmp_path / "bundle", eos_ids=())
