"""How much of what a head proposes its target accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from acespec_edge import _core
from acespec_edge.errors import UsageError
from cloud_stub.dlite.head_runtime import HeadRuntime
from cloud_stub.dlite.model import DLiteHead, History
from cloud_stub.judge import Terms, choose
from cloud_stub.judge import as_it_is as no_rules
from cloud_stub.verifiers.base import Verifier, drawable
from cloud_stub.verifiers.hidden_states import HiddenStates
from cloud_stub.verifiers.torch_verifier import TorchVerifier
from tools.train_dlite.decoding import Row, decode_together
from tools.train_dlite.states import states_of

WITHOUT: Final = ("rnn", "depth")
"""Parts that an evaluation can leave out."""

_TOGETHER: Final = 32
"""Greedy answers at a time."""


@dataclass(slots=True)
class Tally:
    """``rounds``: verifications; ``tried``, ``accepted``: of each place, how often all before it were
    accepted, and how often it was as well.
    """

    block: int
    texts: int = 0
    rounds: int = 0
    tokens: int = 0
    tried: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tried = self.tried or [0] * self.block
        self.accepted = self.accepted or [0] * self.block

    def add(self, drafted: int, accepted: int) -> None:
        """Takes a verification of ``drafted`` tokens."""
        self.rounds += 1
        self.tokens += accepted + 1
        for place in range(min(drafted, accepted + 1)):
            self.tried[place] += 1
            self.accepted[place] += place < accepted

    def report(self) -> dict[str, Any]:
        """``acceptance_length``: tokens of a verification, the target's own (the bonus) included;
        ``per_position``: the share of each place that is accepted where all before it are.
        """
        return {
            "texts": self.texts,
            "rounds": self.rounds,
            "tokens": self.tokens,
            "acceptance_length": round(self.tokens / self.rounds, 4) if self.rounds else 0.0,
            "per_position": [
                round(accepted / tried, 4) if tried else 0.0
                for accepted, tried in zip(self.accepted, self.tried, strict=True)
            ],
        }


def leave_out(head: DLiteHead, parts: Sequence[str]) -> None:
    """Makes the head do without parts that it was trained with. Raises UsageError for unknown ones, and for
    one that it does not have.
    """
    for part in parts:
        if part not in WITHOUT:
            raise UsageError(f"without is {part!r}: {' or '.join(WITHOUT)} would be right")
        with torch.no_grad():
            if part == "rnn" and head.rnn is not None:
                head.rnn.up.weight.zero_()
            elif part == "depth" and head.features.depth is not None:
                head.features.depth.zero_()
            else:
                raise UsageError(f"without is {part!r}: the head was trained without it")


def decode(
    verifier: Verifier,
    prompt: Sequence[int],
    stop_ids: Sequence[int],
    tokens: int,
    rules: _core.SamplingRules,
) -> list[int]:
    """The target's own answer: up to ``tokens`` tokens, to a stop id at most."""
    sampler = _core.Sampler(drawable(verifier))
    terms = Terms(rules, frozenset(stop_ids), len(prompt), tokens, verifier.max_context)
    handle = verifier.open()
    try:
        rows = handle.prefill(prompt)
        text: list[int] = []
        while True:
            length = len(prompt) + len(text)
            text.append(choose(rows[-1], [], length, terms, sampler, no_rules))
            if terms.finish(text[-1], length + 1) != _core.Finish.none:
                return text
            rows = handle.verify(text[-1], [], [])
            handle.keep([])
    finally:
        handle.close()


class Walk:
    """Speculates along answers that are known: what a service would have verified, without its forwards.

    Because the target's text does not depend on what is drafted, the verifications that would have made it
    follow from the text, the target's states along it, and the head.
    """

    def __init__(self, verifier: TorchVerifier, head: DLiteHead, *, history: int = 0) -> None:
        """``history``: tokens of the past that the head is given, for a teacher."""
        self._verifier, self._head, self._history = verifier, head, history
        self._runtime = HeadRuntime(head, drawable(verifier))

    def along(
        self, prompt: Sequence[int], answer: Sequence[int], rules: _core.SamplingRules
    ) -> Iterator[tuple[int, int]]:
        """The verifications that make ``answer``, but for its first token, which the prompt gives: how many
        tokens were drafted, and how many of them accepted.
        """
        text = [*prompt, *answer]
        hooks = HiddenStates(self._verifier.model, self._head.config.aux_layers)
        try:
            states = states_of(self._verifier, hooks, text[:-1])[:, :-1]
        finally:
            hooks.remove()
        anchor = len(prompt)
        while anchor + 1 < len(text):
            # A token that would be the last is not drafted: the target's own choice is that.
            count = min(self._head.config.block, len(text) - anchor - 2)
            features = self._tensor(states[anchor - 1])
            past = self._past(states, anchor - 1)
            drafted = self._runtime.block(features, text[anchor], anchor + 1, rules, count, history=past)
            right = 0
            while right < len(drafted) and drafted[right] == text[anchor + 1 + right]:
                right += 1
            yield len(drafted), right
            anchor += right + 1

    def _past(self, states: npt.NDArray[np.float16], verified: int) -> History | None:
        if not self._history:
            return None
        first = max(0, verified - self._history)
        window = self._tensor(states[first:verified, -1])[None]
        return History(window, torch.ones(window.shape[:2], dtype=torch.bool, device=window.device))

    def _tensor(self, states: npt.NDArray[np.float16]) -> torch.Tensor:
        model = self._verifier.model
        return torch.from_numpy(np.array(states)).to(model.device, model.dtype)


def evaluate(
    walk: Walk,
    verifier: TorchVerifier,
    prompts: Sequence[tuple[str, Sequence[int]]],
    stop_ids: Sequence[int],
    *,
    block: int,
    tokens: int,
    temperature: float,
    seed: int,
    advance: Callable[[str], None],
) -> dict[str, Any]:
    """Over ``prompts`` (kind and ids): a report by kind, and of all."""
    tallies: dict[str, Tally] = {}
    whole = Tally(block)
    rules = [_core.SamplingRules(temperature=temperature, seed=seed + n) for n in range(len(prompts))]
    answers = _answers(verifier, [ids for _, ids in prompts], stop_ids, tokens, rules)
    for (kind, prompt), rule, answer in zip(prompts, rules, answers, strict=True):
        both = (tallies.setdefault(kind, Tally(block)), whole)
        for tally in both:
            tally.texts += 1
        for drafted, right in walk.along(prompt, answer, rule):
            for tally in both:
                tally.add(drafted, right)
        advance(kind)
    return {"kinds": {kind: tally.report() for kind, tally in tallies.items()}, "all": whole.report()}


def _answers(
    verifier: TorchVerifier,
    prompts: Sequence[Sequence[int]],
    stop_ids: Sequence[int],
    tokens: int,
    rules: Sequence[_core.SamplingRules],
) -> Iterator[list[int]]:
    """The target's own answers: many at a time where they are greedy, with the noise of each where not."""
    for first in range(0, len(prompts), _TOGETHER):
        part = prompts[first : first + _TOGETHER]
        if rules[first].temperature > 0:
            drawn = zip(part, rules[first:], strict=False)
            yield from (decode(verifier, ids, stop_ids, tokens, rule) for ids, rule in drawn)
        else:
            room = verifier.max_context
            yield from decode_together(
                verifier, [Row(ids, 0.0, min(tokens, room - len(ids))) for ids in part], stop_ids, 0
            )
