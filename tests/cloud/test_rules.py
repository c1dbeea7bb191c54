"""The cloud applies every rule to every token it judges, drafted or not, and reports what was asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from acespec_edge import _core
from cloud_stub.logprobs import token_logprob
from cloud_stub.verifiers.base import Rows
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.cloud.rig import Client, Rig, hashed_logits, scripted_rig, tiny_vocabulary

SIZE = 16
PROMPT = [3, 1, 4]
LOGITS = hashed_logits(SIZE)
FAVOURITE = int(np.argmax(LOGITS(PROMPT)))

RULES: list[dict[str, Any]] = [
    {"repetition_penalty": 3.0},
    {"presence_penalty": 2.0},
    {"frequency_penalty": 2.0},
    {"frequency_penalty": -2.0},
    {"logit_bias": [(FAVOURITE, -100.0), (5, 3.0)]},
    {"banned": [FAVOURITE, 2, 7]},
    {"allowed": [1, 2, 3, 5, 8, 13]},
    {"temperature": 1.0, "min_p": 0.5, "logit_bias": [(FAVOURITE, -100.0)]},
    {
        "temperature": 0.8,
        "top_k": 9,
        "repetition_penalty": 1.4,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.6,
        "logit_bias": [(4, 1.5)],
        "banned": [1],
        "allowed": list(range(14)),
        "carried": 2,
    },
]


def plainly(rules: _core.SamplingRules, count: int, stop_ids: Sequence[int] = ()) -> list[int]:
    """What the target writes alone under the rules, token by token."""
    sampler = _core.Sampler(SIZE)
    shaper = _core.LogitShaper(SIZE, rules, PROMPT, stop_ids)
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + count:
        tokens.append(sampler.choose(shaper.shape(LOGITS(tokens)), rules, len(tokens)))
        shaper.commit(tokens[-1:])
        if tokens[-1] in stop_ids:
            break
    return tokens[len(PROMPT) :]


def output(client: Client) -> list[int]:
    return client.committed[len(PROMPT) :]


def speculated(
    rules: _core.SamplingRules, script: Sequence[int], *, right: int, stop_ids: Sequence[int] = ()
) -> Client:
    """Drafts of five with ``right`` right tokens of ``script`` each, until the request ends."""
    client = scripted_rig().client()
    verdict = client.open(PROMPT, max_tokens=len(script), rules=rules, stop_ids=list(stop_ids))
    for number in range(1, 1000):
        if verdict.finish != _core.Finish.none:
            return client
        done = len(client.committed) - len(PROMPT)
        chain = [*script[done : done + right], *(SIZE - 1 - token for token in script[done + right :])][:5]
        verdict = client.draft(number, chain, first_node=10 * number)
    raise AssertionError("no end")


@pytest.mark.parametrize("right", [0, 2, 5])
@pytest.mark.parametrize("rules", RULES)
def test_s3_s4_rules_hold_for_verified_tokens(rules: dict[str, Any], right: int) -> None:
    asked = _core.SamplingRules(seed=7, **rules)
    alone = plainly(asked, 30)
    assert output(speculated(asked, alone, right=right)) == alone
    assert alone != plainly(_core.SamplingRules(seed=7, temperature=asked.temperature), 30), (
        "rules that do nothing"
    )


def test_s3_the_likeliest_token_biased_away_never_comes() -> None:
    rules = _core.SamplingRules(temperature=1.0, min_p=0.5, seed=3, logit_bias=[(FAVOURITE, -100.0)])
    alone = plainly(rules, 40)
    assert FAVOURITE not in alone
    assert output(speculated(rules, alone, right=5)) == alone


def test_s4_rejected_drafts_leave_no_trace_in_the_counts() -> None:
    rules = _core.SamplingRules(frequency_penalty=2.0, presence_penalty=1.0, repetition_penalty=1.5)
    alone = plainly(rules, 40)
    client = scripted_rig().client()
    client.open(PROMPT, max_tokens=40, rules=rules)
    for number in range(1, 40):
        wrong = (alone[number] + 1) % SIZE
        verdict = client.draft(number, [wrong] * 8, first_node=8 * number)
        assert verdict.accepted_node == 0
    assert output(client) == alone


@pytest.mark.parametrize("least", range(6))
def test_e1_min_tokens_holds_stop_ids_back(least: int) -> None:
    free = plainly(_core.SamplingRules(), 20)
    rules = _core.SamplingRules(min_tokens=least)
    alone = plainly(rules, 20, stop_ids=[free[1]])
    client = speculated(rules, [*alone, *[0] * 20][:20], right=5, stop_ids=[free[1]])
    assert output(client) == alone
    assert len(alone) > least or len(alone) == 20


def test_rules_outside_the_vocabulary_are_refused_by_name() -> None:
    client = scripted_rig().client()
    for number, (rules, words) in enumerate(
        [
            ({"banned": [SIZE]}, "Open.banned"),
            ({"allowed": [2, SIZE]}, r"Open.allowed\[1\]"),
            ({"logit_bias": [(SIZE, 1.0)]}, "Open.logit_bias"),
            ({"carried": 4}, "Open.carried is 4: the prompt has 3"),
        ]
    ):
        fault = client.open(PROMPT, request=number + 1, rules=_core.SamplingRules(**rules))
        with pytest.raises(AssertionError, match=words):
            raise AssertionError(fault.message)
        assert fault.code == _core.FaultCode.request
    assert client.open(PROMPT, request=9).tokens


def test_n1_rules_that_leave_no_token_end_the_request_with_a_fault() -> None:
    client = scripted_rig().client()
    fault = client.open(PROMPT, rules=_core.SamplingRules(banned=list(range(SIZE))))
    assert "position 3" in fault.message and "ruled out" in fault.message
    assert client.open(PROMPT, request=2).tokens


def expected_report(tokens: Sequence[int], chosen: int, alternatives: int) -> tuple[float, list[int]]:
    row = LOGITS(tokens).astype(np.float64)
    p = np.exp(row - row.max())
    logs = np.log(p / p.sum())
    return float(logs[chosen]), np.argsort(-logs, kind="stable")[:alternatives].tolist()


@pytest.mark.parametrize("alternatives", [0, 1, 5, 20])
@pytest.mark.parametrize("right", [0, 2, 5])
def test_l1_logprobs_are_the_plain_targets(right: int, alternatives: int) -> None:
    rules = _core.SamplingRules(temperature=0.9, frequency_penalty=1.0, banned=[FAVOURITE], seed=5)
    script = plainly(rules, 24)
    client = scripted_rig().client()
    verdict = client.open(PROMPT, max_tokens=24, rules=rules, logprobs=alternatives)
    reports = verdict.logprobs
    for number in range(1, 30):
        if verdict.finish != _core.Finish.none:
            break
        done = len(client.committed) - len(PROMPT)
        verdict = client.draft(number, [*script[done : done + right], 0, 0], first_node=10 * number)
        reports += verdict.logprobs
    assert output(client) == script and len(reports) == 24
    for place, report in enumerate(reports):
        before = [*PROMPT, *script[:place]]
        logprob, top = expected_report(before, script[place], min(alternatives, SIZE))
        assert report.logprob == pytest.approx(logprob, abs=1e-5)
        assert [token for token, _ in report.top] == top
        assert all(
            value == pytest.approx(expected_report(before, token, 0)[0], abs=1e-5)
            for token, value in report.top
        )


def test_logprobs_leave_padding_out_and_stay_finite() -> None:
    row = np.array([1.0, -np.inf, 1.0, 0.0], np.float32)
    report = token_logprob(row, 1, 4)
    assert report.logprob == -9999.0
    assert [token for token, _ in report.top] == [0, 2, 3, 1]

    def padded(tokens: Sequence[int]) -> Rows:
        return np.concatenate([LOGITS(tokens), np.full(4, 50.0, np.float32)])

    target = ScriptedVerifier(padded, tiny_vocabulary(SIZE), logits_width=SIZE + 4)
    (told,) = Rig(target).client().open(PROMPT, logprobs=20).logprobs
    assert told.logprob == pytest.approx(expected_report(PROMPT, FAVOURITE, 0)[0], abs=1e-5)
    assert len(told.top) == SIZE


def settled(client: Client) -> Any:
    """The next message of a request whose grammar is compiled on another thread."""
    deadline = time.monotonic() + 20.0
    while not client.inbox and time.monotonic() < deadline:
        client.rig.scheduler.run()
        time.sleep(0.005)
    return client.take()


def letters(text: str) -> list[int]:
    table = tiny_vocabulary(SIZE)
    return [
        next(token for token in range(SIZE) if table.token_bytes(token) == bytes([byte]))
        for byte in text.encode()
    ]


def test_a_grammar_holds_for_drafted_tokens_and_ends_the_text() -> None:
    table = tiny_vocabulary(SIZE)
    client = scripted_rig().client()
    one, two, end = (table.token_bytes(token).decode() for token in (2, 5, 9))
    fields = {"grammar_kind": _core.Grammar.regex, "stop_ids": letters(end), "max_tokens": 20}
    client.open(PROMPT, grammar=_escaped(one, two), **fields)
    verdict = settled(client)
    number = 0
    while verdict.finish == _core.Finish.none:
        number += 1
        verdict = client.draft(number, [2, 5, 2, 2, 5], first_node=10 * number)
    text = output(client)
    assert verdict.finish == _core.Finish.stop and text[-1] == 9
    pairs = [tuple(text[index : index + 2]) for index in range(0, len(text) - 1, 2)]
    assert 2 <= len(pairs) <= 3 and set(pairs) <= {(2, 5), (5, 2)}


def _escaped(one: str, two: str) -> str:
    first, second = (f"\\x{{{ord(letter):x}}}" for letter in (one, two))
    return f"({first}{second}|{second}{first}){{2,3}}"


def test_grammars_that_do_not_do_are_faults_of_the_request() -> None:
    client = scripted_rig().client()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"grammar_kind": _core.Grammar.regex, "grammar": "(", "stop_ids": [9]}, "regex"),
        ({"grammar_kind": _core.Grammar.regex, "grammar": "a"}, "stop_ids is empty"),
        ({"grammar_kind": _core.Grammar.json_schema, "grammar": "{", "stop_ids": [9]}, "json_schema"),
        (
            {
                "grammar_kind": _core.Grammar.regex,
                "grammar": _escaped(*(tiny_vocabulary(SIZE).token_bytes(token).decode() for token in (2, 5))),
                "stop_ids": [9],
                "rules": _core.SamplingRules(carried=1),
            },
            "does not keep to the grammar",
        ),
    ]
    for number, (fields, words) in enumerate(cases):
        client.say(_core.Open(request=number + 1, prompt=PROMPT, max_tokens=5, **fields))
        fault = settled(client)
        assert fault.code == _core.FaultCode.request and words in fault.message, fault.message
    assert client.open(PROMPT, request=9).tokens


def test_a_request_cancelled_while_its_grammar_compiles_leaves_nothing() -> None:
    rig = scripted_rig()
    client = rig.client()
    schema = json.dumps({"type": "integer"})
    for number in range(1, 20):
        fields = {"grammar_kind": _core.Grammar.json_schema, "grammar": schema, "stop_ids": [9]}
        client.say(_core.Open(request=number, prompt=PROMPT, max_tokens=5, **fields))
        client.say(_core.Cancel(request=number))
        rig.scheduler.run()
        assert client.next().finish == _core.Finish.cancelled
    rig.service.compiler.shutdown(wait=True)
    rig.scheduler.run()
    assert not client.inbox and not client.connection._running and rig.service.kv.reserved == 0
