"""Fixtures of the tests with PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small models are quicker, and their sums the same everywhere, with one thread."""
    import torch  # the other tests of this folder run without it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
