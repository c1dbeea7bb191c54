"""Both roles connected through conversations at random: cut, cancelled, lost, forgotten, and always the
target's own text.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from acespec_edge import _core, known_contexts
from acespec_edge.errors import UsageError
from acespec_edge.known_contexts import KnownContexts
from acespec_edge.session import EdgeSession
from acespec_edge.session_events import Repeated, Welcomed
from tests.cloud.rig import Rig, hashed_logits, plain_greedy, scripted_rig
from tests.cloud.test_pair import Pair

LOGITS = hashed_logits(16)
CONTEXT = 120


class Talk(Pair):
    """A pair whose edge comes back on a new connection, and says again what is gone."""

    def __init__(self, rig: Rig, contexts: KnownContexts) -> None:
        super().__init__(rig)
        target = rig.service.target
        self.connection.lost()
        self.edge = EdgeSession(
            tokenizer=target.fingerprint, vocabulary=target.vocabulary, drafter="tiny", contexts=contexts
        )
        self.connection = rig.service.connect(self.down.append, lambda reason: None)
        self.connection.receive(self.edge.hello())
        assert isinstance(self.edge.receive(self.down.popleft(), 0.0), Welcomed)
        self.edge.taken()
        self.repeated = 0

    def step(self) -> None:
        """Delivers one message down."""
        event = self.edge.receive(self.down.popleft(), 0.0)
        if isinstance(event, Repeated):
            self.repeated += 1
            for frame in event.frames:
                self.up(frame)
            return
        self.committed += event.tokens
        self.finish = event.finish


@pytest.mark.parametrize("seed", range(12))
def test_random_conversations_are_the_targets_own(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_contexts, "_LEAST", 1)
    rng, seen = random.Random(seed), Counter[str]()
    rig = scripted_rig(max_context=CONTEXT, kv_tokens=2 * CONTEXT, prefill_chunk=8)
    store = rig.service.store
    talks = [Talk(rig, KnownContexts()) for _ in range(2)]
    texts: list[list[int]] = [[1]]
    for _ in range(60):
        place = rng.randrange(2)
        talk = talks[place]
        if rng.random() < 0.1:
            talk = talks[place] = again(rig, talk)
        if rng.random() < 0.1:
            clock, store._clock = store._clock, lambda: 1e9
            store.expire()
            store._clock = clock
        old = rng.choice(texts)
        prompt = [*old[: rng.randrange(len(old) + 1)], *rng.choices(range(16), k=rng.randrange(1, 12))]
        prompt = prompt[: CONTEXT - 30]
        right = plain_greedy(LOGITS, prompt, 20)
        talk.open(prompt, max_tokens=20, free_run=rng.random() < 0.3)
        leave_after = rng.choice([20, 20, rng.randrange(20)])
        for _ in range(1000):
            done = len(talk.committed) - len(prompt)
            if talk.finish != _core.Finish.none or done >= leave_after:
                break
            move = rng.random()
            if move < 0.5 and rig.scheduler.queue:
                rig.scheduler.step()
            elif talk.down:
                talk.step()
            else:
                draft(talk, right[done : done + rng.randrange(6)], rng)
        assert talk.committed == [*prompt, *right][: len(talk.committed)]
        if talk.finish == _core.Finish.none and rng.random() < 0.5:
            talk.up(talk.edge.cancel())
            while talk.finish == _core.Finish.none:
                talk.step()
            seen["cancelled"] += 1
        elif talk.finish == _core.Finish.none:
            talks[place] = again(rig, talk)
            seen["lost"] += 1
        assert talk.committed == [*prompt, *right][: len(talk.committed)]
        seen["gone"] += talk.repeated
        talk.repeated = 0
        texts = [*texts[-5:], talk.committed]
        rig.scheduler.run()
        assert store.tokens + rig.service.kv.reserved <= 2 * CONTEXT and rig.service.kv.reserved == 0
    assert rig.service.counters.read()["reused_tokens"] > 0
    assert min(seen["cancelled"], seen["lost"]) > 0


def test_such_conversations_meet_a_cloud_that_has_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_contexts, "_LEAST", 1)
    rig = scripted_rig(max_context=CONTEXT, kv_tokens=CONTEXT)
    mine, theirs = Talk(rig, KnownContexts()), Talk(rig, KnownContexts())
    for number in range(4):
        for talk in (mine, theirs):
            prompt = [number % 2] * 60
            talk.open(prompt, max_tokens=5, free_run=True)
            while talk.finish == _core.Finish.none:
                rig.scheduler.run()
                talk.step()
            assert talk.committed == [*prompt, *plain_greedy(LOGITS, prompt, 5)]
    assert mine.repeated > 0 and theirs.repeated > 0, "there was room for one of them"


def again(rig: Rig, talk: Talk) -> Talk:
    """The same edge on a new connection; the cloud has heard of the loss, or not."""
    if random.Random(len(talk.committed)).random() < 0.5:
        talk.connection.lost()
    return Talk(rig, talk.edge._contexts)


def draft(talk: Talk, chain: list[int], rng: random.Random) -> None:
    if chain and rng.random() < 0.5:
        wrong = rng.randrange(len(chain))
        chain[wrong] = (chain[wrong] + 1) % 16
    try:
        talk.up(talk.edge.draft(chain, at=0.0))
    except UsageError:
        return  # as many as may wait
