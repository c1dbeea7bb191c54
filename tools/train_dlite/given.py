"""Prompts of the user's own beside the invented ones."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tools.bench.data import Prompt
from tools.train_dlite.invented import WORDS, invented_prompts

_SWAPPED: Final = ("names", "things", "places", "days", "jobs", "topics", "cities", "feelings", "events")
"""Lists of words whose members stand for each other."""

_LISTS: Final = {word: words for words in (WORDS[name] for name in _SWAPPED) for word in words}
_NUMBER: Final = r"(?<![\w.])\d+(?!\.?\w)"
_PARTS: Final = re.compile(
    _NUMBER + "|" + "|".join(rf"\b{re.escape(word)}\b" for word in sorted(_LISTS, key=len, reverse=True))
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt to be answered. ``again``: its text has been asked before, so a greedy answer is known."""

    prompt: Prompt
    again: bool = False


def mixed_prompts(given: Sequence[Prompt], share: float, seed: int) -> Iterator[Asked]:
    """Prompts without end, the same ones for the same seed; ``share`` of them come from ``given``.

    All of ``given`` are asked in an order that is drawn anew each round. One whose text was asked already is
    varied; where nothing in it can be, it is asked again. Rows that are there twice count twice.
    """
    rng = random.Random(seed)
    invented, own = invented_prompts(seed), _rounds(given, random.Random(seed))
    while True:
        if given and rng.random() < share:
            yield next(own)
        else:
            yield Asked(next(invented))


def _rounds(given: Sequence[Prompt], rng: random.Random) -> Iterator[Asked]:
    said: set[str] = set()
    number = 0
    while True:
        for prompt in rng.sample(given, len(given)):
            text = prompt.text if prompt.text not in said else varied(prompt.text, rng)
            number += 1
            yield Asked(Prompt(f"given-{number}-{prompt.id}", prompt.kind, text), text in said)
            said.add(text)


def varied(text: str, rng: random.Random) -> str:
    """``text`` with other whole numbers, of as many digits, and with other names, things, places and the like
    where it has known ones; what was the same stays the same.
    """
    chosen: dict[str, str] = {}

    def other(match: re.Match[str]) -> str:
        part = match[0]
        if part not in chosen and part in _LISTS:
            chosen[part] = rng.choice(_LISTS[part])
        elif part not in chosen:
            least = 10 ** (len(part) - 1)
            chosen[part] = str(rng.randint(max(2, least), 10 * least - 1))
        return chosen[part]

    return _PARTS.sub(other, text)
