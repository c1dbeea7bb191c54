"""A runtime between a fake drafter and a fake cloud."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from acespec_edge.bundle import Bundle
from acespec_edge.edge import EdgeRuntime
from tests.python.fake_bundle import ENTRIES
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import Choose, FakeDrafter, mixing, sometimes

PROMPT = [3, 1, 4, 1, 5]
TARGET = mixing(1, vocabulary=40)
DRAFTER = sometimes(TARGET, mixing(2, vocabulary=40), every=5)


def unhurried(choose: Choose) -> Choose:
    """The same model at 2 ms a token: thousands of them are still under way when a test cancels them."""

    def choose_slowly(sequence: Sequence[int]) -> int:
        time.sleep(0.002)
        return choose(sequence)

    return choose_slowly


def ids_of(text: str) -> list[int]:
    return [ENTRIES.index(character) for character in text]


def runtime(
    bundle: Bundle,
    target: Choose = TARGET,
    drafter: Choose | FakeDrafter = DRAFTER,
    *,
    cloud: FakeCloud | None = None,
    context: int = 2048,
    **options: Any,
) -> EdgeRuntime:
    """One connection: ``cloud``, or one that ``target`` answers. Chains of one length, unless another is
    named: beside a target that takes no time nothing is worth drafting. A lost connection is an error."""
    fake = drafter if isinstance(drafter, FakeDrafter) else FakeDrafter(drafter, context=context)
    link = cloud or FakeCloud(target)
    options.setdefault("draft_length", 8)
    options.setdefault("reconnect_for", 0.0)
    return EdgeRuntime(bundle, lambda: link, drafter=fake, context=context, **options)
