"""A cloud with a head says, when it is asked, how it thinks that the text goes on."""

from __future__ import annotations

from typing import Any

import pytest

from acespec_edge import _core
from tests.cloud.rig import expect_fault, plain_greedy
from tests.cloud.test_dlite_going_on import LOGITS, PROMPT, Oracle, drafting_rig

Finish = _core.Finish
TRUTH = plain_greedy(LOGITS, PROMPT, 60)


def opened(oracle: Oracle, per_token: float = 16.0, **fields: Any) -> Any:
    rig = drafting_rig(oracle, per_token)
    client = rig.client()
    client.open(PROMPT, **{"max_tokens": 60, **fields})
    return client


def test_a_verdict_brings_a_hint_where_the_draft_wants_one() -> None:
    oracle = Oracle(lambda position: False)
    client = opened(oracle)
    answer = client.draft(1, [*TRUTH[1:4], 99 % 16], wants_hint=True)
    committed = len(client.committed) - len(PROMPT)
    assert answer.hint == TRUTH[committed : committed + 5]
    assert client.draft(2, TRUTH[committed : committed + 2]).hint == []
    plain = client.draft(3, [], wants_hint=True)
    committed = len(client.committed) - len(PROMPT)
    assert plain.hint == TRUTH[committed : committed + 5], "plain steps too"
    assert client.committed[len(PROMPT) :] == TRUTH[:committed]
    counted = client.rig.service.counters.read()
    assert counted["hinted_nodes"] == 10


def test_a_hint_sent_back_is_verified_as_any_draft_is() -> None:
    client = opened(Oracle(lambda position: position % 7 == 0))
    answer = client.draft(1, [TRUTH[1]], wants_hint=True)
    for round in range(2, 12):
        before = len(client.committed)
        answer = client.draft(round, answer.hint, wants_hint=True)
        assert len(client.committed) - before >= 1
        if answer.finish != Finish.none:
            break
    output = client.committed[len(PROMPT) :]
    assert output == TRUTH[: len(output)] and len(output) > 30


def test_a_cloud_without_a_head_and_a_request_that_ends_bring_none() -> None:
    client = opened(Oracle(lambda position: False), per_token=0.0)
    assert client.draft(1, TRUTH[1:3], wants_hint=True).hint == []
    client = opened(Oracle(lambda position: False), max_tokens=4)
    last = client.draft(1, TRUTH[1:9], wants_hint=True)
    assert last.finish == Finish.length and last.hint == []


@pytest.mark.parametrize("most", range(2, 9))
def test_no_hint_reaches_past_the_end(most: int) -> None:
    client = opened(Oracle(lambda position: False), max_tokens=most)
    answer = client.draft(1, [], wants_hint=True)
    left = most - (len(client.committed) - len(PROMPT))
    assert len(answer.hint) == max(0, min(5, left - 1))


def test_hints_come_out_of_the_same_allowance() -> None:
    """Of a head that is always right, at two nodes a token: no more than the tokens pay for."""
    client = opened(Oracle(lambda position: False), per_token=2.0)
    hinted = 0
    for round in range(1, 40):
        answer = client.draft(round, [], wants_hint=True)
        hinted += len(answer.hint)
        assert hinted <= 5 + 2 * (len(client.committed) - len(PROMPT))
        if answer.finish != Finish.none:
            break
    assert hinted > 20


def test_residual_mode_takes_no_hints() -> None:
    client = opened(Oracle(lambda position: False), mode=_core.Mode.residual)
    client.send(1, [], wants_hint=True)
    client.rig.scheduler.run()
    expect_fault(client, _core.FaultCode.request, "wants_hint", ends=False)
