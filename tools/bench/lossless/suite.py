"""Plays the cases and judges what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from acespec_edge import _core
from tools.bench.lossless import play
from tools.bench.lossless.cases import CASES, Case
from tools.bench.lossless.chi_square import Counts, Probabilities, p_value
from tools.bench.lossless.enumeration import LogitsOf, enumerate_outputs
from tools.bench.lossless.faults import Credulous, Forgetful, without

LENGTH: Final = 4
"""Tokens of an output: one from the prompt alone, then a drafted block of two and what follows it."""

PROMPT: Final = (3, 9, 3)
FALSE_ALARM: Final = 1e-6
"""Chance that a correct system fails the suite, at most."""

TAIL_RESERVE: Final = 100.0
"""How much likelier than computed a p-value that small may be: the tail is an approximation."""

THRESHOLD: Final = FALSE_ALARM / TAIL_RESERVE / len(CASES)
"""A case fails under it (Bonferroni: the chances of its alarms add up)."""

_DISAGREEMENT: Final = 0.5
_LOOKS: Final = (0.02, 0.06, 0.2, 0.5, 1.0)
"""Shares of its draws after which a negative control is looked at; a caught one goes no further."""


@dataclass(frozen=True)
class Outcome:
    """``verdict``: ``pass`` or ``fail``; of a negative control ``rejected`` or, when it was not, ``fail``."""

    name: str
    draws: int
    p: float
    negative: bool
    verdict: str


def run(case: Case, draws: int) -> Outcome:
    """The system as it is, against the exact distribution."""
    p = _Trial(case, faulty=False).p_after(draws)
    return Outcome(case.name, draws, p, False, "pass" if p > THRESHOLD else "fail")


def run_negative(case: Case, draws: int) -> Outcome:
    """The same with a fault in it, which must show within ``draws``."""
    trial = _Trial(case, faulty=True)
    for share in _LOOKS:
        played = round(share * draws)
        p = trial.p_after(played)
        if p <= THRESHOLD:
            return Outcome(case.name, played, p, True, "rejected")
    return Outcome(case.name, draws, p, True, "fail")


class _Trial:
    """Draws are numbered from 0; each is a request of its own seed, drafted one or two tokens at a time."""

    def __init__(self, case: Case, *, faulty: bool) -> None:
        self._case = case
        self._dropped = case.dropped if faulty else ()
        target = play.engine(sharpness=case.sharpness)
        self._target = play.logits_of(target)
        honest = play.verifier_of(self._target)
        plain = faulty and not case.dropped
        self._table = play.Table(
            Credulous(honest) if plain and case.mode != "residual" else honest,
            play.engine(sharpness=case.sharpness, disagreement=_DISAGREEMENT),
            Forgetful if plain and case.mode == "residual" else _core.Drafter,
        )
        self._played = 0
        self._counts: Counts
        self._expected: Probabilities
        if case.mode == "greedy":
            self._counts, self._expected = np.zeros(2, np.int64), np.array([1.0, 0.0])
            self._alone: dict[tuple[int, ...], tuple[int, ...]] = {}
        else:
            self._expected = self._enumerated(PROMPT, case.request(0))
            self._counts = np.zeros(self._expected.shape, np.int64)

    def p_after(self, draws: int) -> float:
        """Plays on to ``draws`` in all; how well they fit."""
        for number in range(self._played, draws):
            self._count(number)
        self._played = draws
        if self._case.mode == "greedy" or self._counts[self._expected == 0.0].any():
            return p_value(self._counts, self._expected)
        pairs = [(first, first + 1) for first in range(LENGTH - 1)]
        others = [tuple(axis for axis in range(LENGTH) if axis not in pair) for pair in pairs]
        return min(
            1.0,
            len(pairs)
            * min(p_value(self._counts.sum(axis=rest), self._expected.sum(axis=rest)) for rest in others),
        )

    def _count(self, number: int) -> None:
        """Greedy outputs are right or wrong, for one prompt after the other; others are counted."""
        rules = self._case.request(number)
        if self._case.mode == "greedy":
            prompt = (PROMPT[0], number % play.SIZE, number // play.SIZE % play.SIZE)
            self._counts[int(self._output(prompt, rules, number) != self._likeliest(prompt, rules))] += 1
        else:
            self._counts[self._output(PROMPT, rules, number)] += 1

    def _output(self, prompt: tuple[int, ...], rules: _core.SamplingRules, number: int) -> tuple[int, ...]:
        drafter, grammar = self._case.drafter, self._case.grammar
        output = self._table.play(
            prompt,
            without(rules, self._dropped) if self._dropped else rules,
            tokens=LENGTH,
            draft_length=1 + (number + number // play.SIZE**2) % 2,
            stop_ids=self._case.stop_ids,
            drafter_rules=rules if drafter is None else _core.SamplingRules(seed=rules.seed, **drafter),
            residual=self._case.mode == "residual",
            regex=None if grammar is None else grammar.text,
            told="grammar" not in self._dropped,
        )
        return (*output, *[play.SIZE] * (LENGTH - len(output)))

    def _likeliest(self, prompt: tuple[int, ...], rules: _core.SamplingRules) -> tuple[int, ...]:
        if prompt not in self._alone:
            certain = np.argwhere(self._enumerated(prompt, rules))
            self._alone[prompt] = tuple(certain[0].tolist())
        return self._alone[prompt]

    def _enumerated(self, prompt: tuple[int, ...], rules: _core.SamplingRules) -> Probabilities:
        return enumerate_outputs(
            self._held_to_grammar(len(prompt)),
            prompt,
            rules,
            size=play.SIZE,
            length=LENGTH,
            stop_ids=self._case.stop_ids,
        )

    def _held_to_grammar(self, prompt_length: int) -> LogitsOf:
        grammar = self._case.grammar
        if grammar is None:
            return self._target

        def held(tokens: Sequence[int]) -> npt.NDArray[np.float32]:
            row = np.full(play.SIZE, -np.inf, np.float32)
            allowed = list(grammar.allowed(tokens[prompt_length:]))
            row[allowed] = self._target(tokens)[allowed]
            return row

        return held
