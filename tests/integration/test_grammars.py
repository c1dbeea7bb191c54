"""Grammars through EdgeRuntime in all its modes: the output keeps to them, whatever the drafter does."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from acespec_edge.bundle import Bundle
from acespec_edge.errors import EngineError, PeerError, UsageError
from acespec_edge.grammar import Grammar
from acespec_edge.request import Mode, Sampling
from tests.integration.edge_cloud_kit import (
    PROMPT,
    local_runtime,
    native_drafter,
)
from tests.python.fake_bundle import EOS, with_eos

pytestmark = pytest.mark.usefixtures("threads_end")

SAMPLED = {"temperature": 1.0, "seed": 42}
REGEX = "[a-f]{3}-([0-9]{2}|th(er|an)){2,6}!"


def _fits(text: str) -> bool:
    import re

    return re.fullmatch(REGEX, text) is not None


@pytest.mark.parametrize("sampling", ["coupled", "residual"])
@pytest.mark.parametrize("mode", ["auto", "cloud", "edge"])
def test_output_keeps_to_its_grammar(bundle: Bundle, mode: Mode, sampling: Sampling) -> None:
    options: dict[str, Any] = {"max_tokens": 60, "mode": mode, "sampling": sampling, "regex": REGEX}
    with local_runtime(with_eos(bundle, EOS), native_drafter(disagreement=0.2), draft_length=4) as edge:
        for noise in ({}, SAMPLED, {"temperature": 1.5, "seed": 3}):
            result = edge.generate(PROMPT, **options, **noise)
            assert _fits(result.text), result.text
            assert (result.finish_reason, result.token_ids[-1]) == ("stop", EOS)
            if mode == "auto" and sampling == "coupled":
                alone = edge.generate(PROMPT, **{**options, "mode": "cloud"}, **noise)
                assert alone.token_ids == result.token_ids


def test_masks_on_both_sides_keep_acceptance_high(bundle: Bundle) -> None:
    stopping = with_eos(bundle, EOS)
    with local_runtime(stopping, native_drafter(disagreement=0.0), draft_length=4) as edge:
        stats = edge.generate(PROMPT, max_tokens=40, regex="[a-z ]{60}").stats
    assert stats.accepted_mean > 3.5


@pytest.mark.parametrize("broken", ["mask", "commit"])
def test_a_drafter_whose_grammar_fails_goes_on_without(
    bundle: Bundle, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target still holds the output to it."""

    def fails(self: Grammar, tokens: Sequence[int]) -> Any:
        if threading.current_thread().name == "acespec-generation" and (tokens or broken == "mask"):
            raise (EngineError if broken == "mask" else PeerError)("cannot follow")
        return kept(self, tokens)

    with local_runtime(with_eos(bundle, EOS), native_drafter(disagreement=0.2)) as edge:
        right = edge.generate(PROMPT, max_tokens=60, regex=REGEX)
        kept = getattr(Grammar, broken)
        monkeypatch.setattr(Grammar, broken, fails)
        result = edge.generate(PROMPT, max_tokens=60, regex=REGEX)
        assert result.token_ids == right.token_ids and _fits(result.text)
        if broken == "mask":
            with pytest.raises(EngineError, match="cannot follow"):
                edge.generate(PROMPT, max_tokens=60, regex=REGEX, mode="edge")


@pytest.mark.parametrize("mode", ["auto", "cloud", "edge"])
def test_a_grammar_goes_on_where_the_earlier_output_left_it(bundle: Bundle, mode: Mode) -> None:
    options: dict[str, Any] = {"regex": REGEX, "mode": mode, **SAMPLED}
    with local_runtime(with_eos(bundle, EOS), native_drafter(disagreement=0.2)) as edge:
        whole = edge.generate(PROMPT, max_tokens=60, **options)
        for place in (1, 3, 6):
            first = edge.generate(PROMPT, max_tokens=place, **options)
            rest = edge.generate(PROMPT, max_tokens=60, continue_from=first, **options)
            assert first.token_ids + rest.token_ids == whole.token_ids
            assert first.text + rest.text == whole.text
        with pytest.raises(UsageError, match="does not keep to the grammar"):
            edge.generate(PROMPT, max_tokens=5, continue_from=[30, 30], **options)
        assert edge.generate(PROMPT, max_tokens=60, **options).token_ids == whole.token_ids


@pytest.mark.parametrize("mode", ["auto", "cloud", "edge"])
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"regex": "("}, "regex"),
        ({"json_schema": {"type": 3}}, "json_schema"),
        ({"json_schema": "{"}, "json_schema"),
    ],
)
def test_grammars_that_do_not_do_are_refused_and_the_session_lives(
    bundle: Bundle, mode: Mode, options: dict[str, Any], complaint: str
) -> None:
    with local_runtime(with_eos(bundle, EOS)) as edge:
        with pytest.raises(UsageError, match=complaint):
            edge.generate(PROMPT, mode=mode, **options)
        assert edge.generate(PROMPT, max_tokens=5, mode=mode).token_ids


def test_a_grammar_needs_an_end(bundle: Bundle) -> None:
    with local_runtime(bundle) as edge, pytest.raises(UsageError, match="fake-64 has none"):
        edge.generate(PROMPT, regex="a")
