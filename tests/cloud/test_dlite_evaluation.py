"""What is measured of a head is what a service would see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from acespec_edge import _core
from acespec_edge.errors import UsageError
from cloud_stub.continuation import SelfDrafting
from cloud_stub.dlite.checkpoint import load_head, save_head
from cloud_stub.dlite.head_runtime import HeadRuntime
from cloud_stub.dlite.identity import Identity
from tests.cloud.dlite_kit import (
    make_head,
    make_target,
)
from tests.cloud.rig import Rig
from tools.train_dlite.evaluate import Tally, Walk, decode, evaluate, leave_out

pytestmark = pytest.mark.usefixtures("one_thread")

GREEDY = _core.SamplingRules()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_walk_along_the_answer_is_what_a_service_does(temperature: float, tmp_path: Path) -> None:
    verifier = make_target()
    head = make_head(verifier, trained=False, layers=1)
    save_head(tmp_path, head, Identity.of(verifier), dtype=torch.float32)
    runtime = HeadRuntime.load(tmp_path, verifier)
    rules = _core.SamplingRules(temperature=temperature, seed=6)
    rounds = accepted = 0
    for prompt in ([1, 2, 3], [9], [50, 40]):
        answer = decode(verifier, prompt, [], 40, rules)
        tally = Tally(head.config.block)
        for drafted, right in Walk(verifier, load_head(tmp_path, verifier)).along(prompt, answer, rules):
            tally.add(drafted, right)
        rig = Rig(verifier)
        rig.service.self_drafting = SelfDrafting(Whole(runtime), 256.0)
        client = rig.client()
        client.say(_core.Open(request=1, prompt=prompt, max_tokens=40, free_run=True, rules=rules))
        rig.scheduler.run()
        verdicts = [client.next() for _ in range(len(client.inbox))][1:]
        assert [token for verdict in verdicts for token in verdict.tokens] == answer[1:]
        assert (tally.rounds, tally.tokens) == (len(verdicts), 39)
        counted = rig.service.counters.read()
        assert counted["accepted_own_nodes"] == sum(tally.accepted)
        rounds, accepted = rounds + tally.rounds, accepted + sum(tally.accepted)
        assert tally.report()["acceptance_length"] == round(39 / tally.rounds, 4)
    assert accepted > 0, "something is accepted, or nothing has been compared"


class Whole:
    """A head that is always asked for a whole block."""

    def __init__(self, runtime: HeadRuntime) -> None:
        self._runtime = runtime
        self.longest = runtime.longest

    def propose(
        self, handle: Any, tip: int, position: int, rules: Any, count: int, least: float
    ) -> list[int]:
        return self._runtime.propose(handle, tip, position, rules, count, 0.0)


def test_evaluation_reports_by_kind_and_leaves_parts_out() -> None:
    verifier = make_target()
    head = make_head(verifier)
    prompts = [("code", [1, 2]), ("math", [3]), ("code", [4, 5, 6])]
    options: dict[str, Any] = {
        "block": 5,
        "tokens": 12,
        "temperature": 0.0,
        "seed": 1,
        "advance": lambda _: None,
    }
    found = evaluate(Walk(verifier, head), verifier, prompts, [], **options)
    assert {kind: row["texts"] for kind, row in found["kinds"].items()} == {"code": 2, "math": 1}
    assert found["all"]["tokens"] == 3 * 11 and len(found["all"]["per_position"]) == 5
    one = evaluate(Walk(verifier, head), verifier, prompts[1:2], [], **options)
    assert one["all"] == found["kinds"]["math"], "an answer does not depend on those beside it"
    drawn = evaluate(Walk(verifier, head), verifier, prompts, [], **(options | {"temperature": 2.0}))
    assert drawn["all"]["tokens"] == 3 * 11 and drawn != found
    evaluate(Walk(verifier, head, history=3), verifier, prompts, [], **options)
    leave_out(head, ["rnn", "depth"])
    assert head.rnn is not None and not head.rnn.up.weight.any() and not head.features.depth.any()
    with pytest.raises(UsageError, match="trained without it"):
        leave_out(make_head(verifier, rnn=False), ["rnn"])
