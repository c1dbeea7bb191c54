"""The order of runs, and whether every answer is the target's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from acespec_edge.errors import AcespecError
from tools.bench.paradigms.grid import Cell
from tools.bench.paradigms.paradigms import Contender
from tools.bench.paradigms.runs import Field, Question, Run
from tools.bench.reference import TIE

WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Mismatch:
    """Where an answer left the target's first; None stands for an end of text. `lead`: of the target's token
    over its second best in a greedy run, if that was asked for. `tie`: the target hardly preferred its own.
    """

    question: str
    repeat: int
    position: int
    expected: int | None
    got: int | None
    lead: float | None = None

    @property
    def tie(self) -> bool:
        return self.lead is not None and self.lead < TIE


@dataclass
class Tally:
    """What one contender did in one cell: runs by repeat; of those held against the target, how many were and
    where they differed; `failure`, after which it did not go on.
    """

    contender: Contender
    repeats: list[list[Run]]
    checked: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    failure: str | None = None

    @property
    def wrong(self) -> bool:
        """Whether a token differs that had to be the target's."""
        must = self.contender.paradigm.repeats_the_target(self.contender.temperature)
        return must and any(not mismatch.tie for mismatch in self.mismatches)


class Comparison:
    """Runs cells one after the other. `results` holds what there is so far, also when a visit is broken off.
    One thread at a time.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        contenders: Sequence[Contender],
        repeat: int,
        advance: Callable[[str], None],
    ) -> None:
        """`contenders`: among them the target alone at each of their temperatures. `advance` hears of each
        run."""
        self.results: list[tuple[Cell, list[Tally]]] = []
        self._questions = questions
        self._contenders = contenders
        self._repeat = repeat
        self._advance = advance
        self._alone: dict[tuple[str, float], list[int]] = {}
        """The target's own answers, by question and temperature: its first, which its others must be, too."""

    def visit(self, cell: Cell, at: Field) -> None:
        """Each contender answers a short question first, which is not counted, so that what it estimates of
        the network is there. Then they take turns at each question, beginning with another one each time, so
        that whatever else the machine does hits all. A contender that fails rests until the next cell; the
        failure of the target alone is raised.
        """
        tallies = [Tally(contender, [[] for _ in range(self._repeat)]) for contender in self._contenders]
        self.results.append((cell, tallies))
        first = self._questions[0]
        for tally in tallies:
            _run(tally, at, replace(first, tokens=min(WARM_UP_TOKENS, first.tokens)))
        for repeat in range(self._repeat):
            for place, question in enumerate(self._questions):
                turn = (repeat * len(self._questions) + place) % len(tallies)
                answers = []
                for tally in tallies[turn:] + tallies[:turn]:
                    self._advance(f"{cell.rtt_ms:g} ms, {tally.contender.label}")
                    if (run := _run(tally, at, question)) is not None:
                        tally.repeats[repeat].append(run)
                        answers.append((tally, run))
                self._check(answers, question, repeat, at)

    def _check(
        self, answers: Sequence[tuple[Tally, Run]], question: Question, repeat: int, at: Field
    ) -> None:
        """Holds the answers to one question against the target's own at the same temperature."""
        for tally, run in answers:
            if tally.contender.paradigm.is_alone:
                self._alone.setdefault((question.id, tally.contender.temperature), run.ids)
        for tally, run in answers:
            paradigm, temperature = tally.contender.paradigm, tally.contender.temperature
            if paradigm.text != "rounded" and not paradigm.repeats_the_target(temperature):
                continue
            tally.checked += 1
            found = first_mismatch(self._alone[question.id, temperature], run.ids, question.id, repeat)
            if found is None:
                continue
            if temperature == 0 and found.expected is not None and found.got is not None:
                found = replace(found, lead=at.lead(question, found.position))
            tally.mismatches.append(found)


def _run(tally: Tally, at: Field, question: Question) -> Run | None:
    """One answer; None after a failure, which only the target alone may not have."""
    if tally.failure is not None:
        return None
    before = at.forwards()
    try:
        run = at.runners[tally.contender.label].run(question, tally.contender.temperature)
    except AcespecError as error:
        if tally.contender.paradigm.is_alone:
            raise
        tally.failure = str(error)
        return None
    return replace(run, target_forwards=at.forwards() - before)


def first_mismatch(
    expected: Sequence[int], got: Sequence[int], question: str, repeat: int
) -> Mismatch | None:
    """Where `got` leaves `expected` first; None when they are equal."""
    for position in range(max(len(expected), len(got))):
        wanted = expected[position] if position < len(expected) else None
        found = got[position] if position < len(got) else None
        if wanted != found:
            return Mismatch(question, repeat, position, wanted, found)
    return None
