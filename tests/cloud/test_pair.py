"""Both roles connected: the edge's machine and the cloud's, over a wire of two queues."""

from __future__ import annotations

import random
from collections import deque

import pytest

from acespec_edge import _core
from acespec_edge.session import EdgeSession
from acespec_edge.session_events import Committed, Welcomed
from tests.cloud.rig import Rig, hashed_logits, plain_greedy, scripted_rig
from tests.python.session_kit import waits

LOGITS = hashed_logits(16)
PROMPT = [4, 5]


class Pair:
    """An ``EdgeSession`` and a cloud connection; ``deliver`` moves what is under way."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        target = rig.service.target
        self.edge = EdgeSession(
            tokenizer=target.fingerprint, vocabulary=target.vocabulary, drafter="tiny", chunks=target.chunks
        )
        self.down: deque[bytes] = deque()
        self.connection = rig.service.connect(self.down.append, lambda reason: None)
        self.now = 0.0
        self.connection.receive(self.edge.hello())
        assert isinstance(self.edge.receive(self.down.popleft(), 0.0), Welcomed)
        self.committed: list[int] = []
        self.finish = _core.Finish.none

    def open(self, prompt: list[int], **fields: object) -> None:
        self.committed, self.finish = list(prompt), _core.Finish.none
        options = {"rules": _core.SamplingRules(), "stop_ids": [], "max_tokens": 40, "at": self.now} | fields
        self.up(self.edge.open(prompt, **options))

    def up(self, frame: bytes) -> None:
        self.connection.receive(frame)

    def deliver(self, most: int = 1000) -> list[Committed]:
        events = []
        while self.down and len(events) < most:
            self.now += 0.01
            event = self.edge.receive(self.down.popleft(), self.now)
            assert isinstance(event, Committed)
            self.committed += event.tokens
            self.finish = event.finish
            events.append(event)
        return events


@pytest.mark.parametrize("seed", range(8))
def test_random_drafts_and_free_runs_never_disagree(seed: int) -> None:
    rng = random.Random(seed)
    pair = Pair(scripted_rig())
    truth = plain_greedy(LOGITS, PROMPT, 60)
    for count in (1, 7, 40):
        pair.open(list(PROMPT), max_tokens=count, free_run=rng.random() < 0.3)
        for _ in range(2000):
            if pair.finish != _core.Finish.none:
                break
            move = rng.random()
            if move < 0.4 and pair.rig.scheduler.queue:
                pair.rig.scheduler.step()
            elif move < 0.6 or waits(pair.edge):
                pair.deliver(rng.randrange(1, 3))
            else:
                done = len(pair.committed) - len(PROMPT)
                chain = truth[done : done + rng.randrange(6)]
                if chain and rng.random() < 0.5:
                    place = rng.randrange(len(chain))
                    chain[place] = (chain[place] + 1) % 16
                pair.up(pair.edge.draft(chain, at=pair.now, free_run=rng.random() < 0.2))
        assert pair.finish == _core.Finish.length
        assert pair.committed == PROMPT + truth[:count]
        assert not pair.down


def test_cancel_in_every_state_and_again() -> None:
    pair = Pair(scripted_rig())
    for steps in range(4):
        pair.open(list(PROMPT), free_run=bool(steps % 2))
        for _ in range(steps):
            if pair.rig.scheduler.queue:
                pair.rig.scheduler.step()
        pair.up(pair.edge.cancel())
        pair.deliver()
        assert pair.finish == _core.Finish.cancelled
        pair.rig.scheduler.run()
        assert not pair.down
    pair.open(list(PROMPT), max_tokens=1)
    pair.rig.scheduler.run()
    pair.deliver()
    assert pair.finish == _core.Finish.length


def test_cancelling_after_a_dropped_draft() -> None:
    pair = Pair(scripted_rig())
    pair.open(list(PROMPT), free_run=True)
    pair.rig.scheduler.step()
    pair.deliver()
    wrong = (plain_greedy(LOGITS, PROMPT, 2)[1] + 1) % 16
    pair.up(pair.edge.draft([wrong], at=0.0))
    pair.rig.scheduler.run()
    pair.deliver()
    assert not waits(pair.edge), "both sides dropped it"
    pair.up(pair.edge.cancel())
    pair.deliver()
    assert pair.finish == _core.Finish.cancelled
