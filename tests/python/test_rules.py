"""The rules that change logits: the native shaper against reference and golden vectors, the drafter under
them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec_edge import _core
from tests.python.rules_reference import shaped_row

CASES = json.loads((Path(__file__).parents[1] / "vectors" / "rules.json").read_text(encoding="utf-8"))
VOCABULARY = 70
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=12)
PENALTIES = st.floats(-2, 2, width=32)
BIASES = st.floats(-200, 200, width=32)
RULES = st.builds(
    _core.SamplingRules,
    repetition_penalty=st.floats(0.125, 4, width=32),
    presence_penalty=PENALTIES,
    frequency_penalty=PENALTIES,
    logit_bias=st.dictionaries(st.integers(0, VOCABULARY - 1), BIASES, max_size=4).map(
        lambda biases: list(biases.items())
    ),
    banned=TOKENS,
    allowed=TOKENS,
    min_tokens=st.integers(0, 20),
)


def bits(row: np.ndarray[Any, Any]) -> list[int]:
    return np.ascontiguousarray(row, np.float32).view(np.uint32).tolist()


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_golden_rows(case: dict[str, Any]) -> None:
    rules = _core.SamplingRules(**case["rules"])
    shaper = _core.LogitShaper(case["vocabulary"], rules, case["prompt"], case["stop_ids"])
    shaper.commit(case["committed"])
    logits = np.array(case["logits"], np.float32)
    mask = None if case["mask"] is None else np.array(case["mask"], np.uint32)
    row = shaper.shape(logits, case["path"], mask)
    wanted = np.array([-math.inf if value is None else value for value in case["shaped"]], np.float32)
    assert bits(row[: case["vocabulary"]]) == bits(wanted)
    assert _core.Sampler(case["vocabulary"]).choose(row, rules, case["position"]) == case["chosen"]


def test_golden_rows_show_every_rule() -> None:
    """Each of them must tell a shaper that leaves its rule out."""
    names = ("repetition", "presence", "frequency", "bias", "banned", "allowed", "min_tokens")
    moved = dict.fromkeys(names, 0)
    for case in CASES:
        plain = np.array(case["logits"][: case["vocabulary"]], np.float32)
        wanted = np.array([-math.inf if value is None else value for value in case["shaped"]], np.float32)
        for name in moved:
            moved[name] += case["name"].startswith(name) and bits(plain) != bits(wanted)
    assert moved == dict.fromkeys(moved, 3)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_shapes_as_the_specification(data: st.DataObject) -> None:
    rules = data.draw(RULES)
    prompt, output, path, stop_ids = (data.draw(TOKENS) for _ in range(4))
    rules.carried = data.draw(st.integers(0, len(prompt)))
    words = data.draw(st.none() | st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3))
    mask = None if words is None else np.array(words, np.uint32)
    logits = np.random.default_rng(data.draw(st.integers(0, 99))).normal(0, 3, 72).astype(np.float32)
    shaper = _core.LogitShaper(VOCABULARY, rules, prompt, stop_ids)
    shaper.commit(output)
    for drafted in (path, []):  # a path leaves no trace
        wanted = shaped_row(
            logits, VOCABULARY, rules, prompt=prompt, output=output + drafted, stop_ids=stop_ids, mask=mask
        )
        assert bits(shaper.shape(logits, drafted, mask)[:VOCABULARY]) == bits(wanted)


def test_a_row_is_never_copied_in_vain() -> None:
    logits = np.zeros(8, np.float32)
    shaper = _core.LogitShaper(8, _core.SamplingRules(temperature=1.0, min_tokens=3), [1, 2], [])
    assert not shaper.shapes()
    assert shaper.shape(logits, [1]) is logits
    banning = _core.LogitShaper(8, _core.SamplingRules(banned=[3]), [1, 2])
    assert banning.shapes()
    first = banning.shape(logits)
    assert first[3] == -math.inf and logits[3] == 0
    banning.shape(np.ones(8, np.float32))
    assert first[0] == 0  # rows returned stay as they are


def test_misuse_is_named() -> None:
    logits = np.zeros(8, np.float32)
    with pytest.raises(_core.UsageError, match="allowed names token 8"):
        _core.LogitShaper(8, _core.SamplingRules(allowed=[8]), [])
    with pytest.raises(_core.UsageError, match="carried is 2"):
        _core.LogitShaper(8, _core.SamplingRules(carried=2), [1])
    shaper = _core.LogitShaper(8, _core.SamplingRules(), [])
    with pytest.raises(_core.UsageError, match="mask has 1 words"):
        wide = _core.LogitShaper(40, _core.SamplingRules(), [])
        wide.shape(np.zeros(40, np.float32), [], np.ones(1, np.uint32))
    with pytest.raises(_core.UsageError, match="path names token 9"):
        shaper.shape(logits, [9])
    with pytest.raises(TypeError):
        shaper.shape(logits, [], np.ones(8, np.bool_))  # not a bit mask
    with pytest.raises(TypeError):
        shaper.shape(np.zeros(8), [])


def test_nothing_left_to_draw_is_said() -> None:
    rules = _core.SamplingRules(allowed=[1], banned=[1])
    row = _core.LogitShaper(4, rules, []).shape(np.zeros(4, np.float32))
    with pytest.raises(_core.EngineError, match="every token is ruled out"):
        _core.Sampler(4).choose(row, rules, 0)


def drafter() -> _core.Drafter:
    return _core.Drafter(_core.FakeEngine(vocabulary=40, seed=3), _core.DrafterOptions(context=100))


def draft(speculation: _core.Drafter, length: int) -> list[int]:
    while speculation.ready < length and not speculation.step(1, True).exhausted:
        pass
    return speculation.take_chain(length).tokens


def test_the_drafter_obeys_the_rules_along_its_path() -> None:
    rules = _core.SamplingRules(frequency_penalty=2.0, repetition_penalty=3.0, banned=[7])
    speculation, engine = drafter(), _core.FakeEngine(vocabulary=40, seed=3)
    speculation.begin([5, 6], rules)
    chain = draft(speculation, 8)
    shaper, sampler, text = _core.LogitShaper(40, rules, [5, 6]), _core.Sampler(40), [5, 6]
    for token in chain:
        assert sampler.choose(shaper.shape(engine.logits(text)), rules, len(text)) == token
        shaper.commit([token])
        text.append(token)
    assert len(chain) == 8


def test_the_drafter_asks_for_a_mask_along_each_path() -> None:
    asked: list[list[int]] = []

    def even_after_odd(path: list[int]) -> np.ndarray[Any, Any] | None:
        asked.append(path)
        if len(path) == 2:
            return None
        return np.array([0x55555555 if len(path) % 2 == 0 else 0xAAAAAAAA, 0xFF], np.uint32)

    speculation = drafter()
    speculation.begin([5, 6], _core.SamplingRules(temperature=1.0, seed=4))
    speculation.set_mask(even_after_odd)
    chain = draft(speculation, 6)
    assert [token % 2 for place, token in enumerate(chain) if place != 2 and token < 32] == [
        place % 2 for place, token in enumerate(chain) if place != 2 and token < 32
    ]
    assert asked[:6] == [chain[:length] for length in range(6)]
    speculation.begin([5, 6], _core.SamplingRules(temperature=1.0, seed=4))
    asked.clear()
    draft(speculation, 3)
    assert not asked  # a mask ends with its request


def test_what_a_mask_raises_ends_the_step() -> None:
    speculation = drafter()
    speculation.begin([5], _core.SamplingRules())

    def failing(path: list[int]) -> None:
        raise LookupError(f"no state for {path}")

    speculation.set_mask(failing)
    with pytest.raises(LookupError, match=r"no state for \[\]"):
        speculation.step(1, True)
    speculation.set_mask(lambda path: [1, 2])  # type: ignore[arg-type, return-value]
    with pytest.raises(_core.UsageError, match="array of uint32"):
        speculation.step(1, True)
    assert speculation.check() == []
    speculation.set_mask(None)
    assert len(draft(speculation, 3)) == 3


def test_nothing_is_drafted_below_a_stop_id() -> None:
    speculation = drafter()
    speculation.begin([5], _core.SamplingRules())
    chain = draft(speculation, 5)
    speculation.begin([5], _core.SamplingRules(), stop_ids=[chain[2]])
    assert draft(speculation, 5) == chain[:3]
