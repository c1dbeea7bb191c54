"""Runtimes over connectors that hand out links in order, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import LinkError
from acespec_edge.transport import Link
from tests.python.edge_kit import DRAFTER
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import FakeDrafter


class Clouds:
    """A connector of links in order; an entry of None is an attempt that fails. The last one stays."""

    def __init__(self, *links: FakeCloud | None) -> None:
        self.links = list(links)
        self.made: list[FakeCloud] = []

    def __call__(self) -> Link:
        link = self.links.pop(0) if len(self.links) > 1 else self.links[0]
        if link is None:
            raise LinkError("cannot reach the cloud")
        self.made.append(link)
        return link


def edge_of(bundle: Bundle, clouds: Callable[[], Link], **options: Any) -> EdgeRuntime:
    options.setdefault("draft_length", 5)
    options.setdefault("drafter", FakeDrafter(DRAFTER))
    return EdgeRuntime(bundle, clouds, **options)
