"""Prompts out of thin air: as many as are wanted, no two alike, without a data set."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tools.bench.data import Prompt

WORDS: Final[dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""Words and sentences, by what they stand for."""

_SHARES: Final = {"math": 3, "code": 3, "chat": 4}
"""Of ten prompts."""

_TRIES: Final = 100


def invented_prompts(seed: int) -> Iterator[Prompt]:
    """Prompts without end, of the kinds in turn, all different; the same ones for the same seed. A kind of
    which nothing new is found is passed over; of word problems there are many millions.
    """
    rng = random.Random(seed)
    kinds = [kind for kind, share in _SHARES.items() for _ in range(share)]
    makers: dict[str, Callable[[random.Random], str]] = {"math": _math, "code": _code, "chat": _chat}
    said: set[str] = set()
    while True:
        rng.shuffle(kinds)
        for kind in kinds:
            tries = (makers[kind](rng) for _ in range(_TRIES))
            text = next((text for text in tries if text not in said), None)
            if text is not None:
                said.add(text)
                yield Prompt(f"invented-{seed}-{len(said)}", kind, text)


def _math(rng: random.Random) -> str:
    """A word problem of the primary school, in two to four steps."""
    one, two = rng.sample(WORDS["names"], 2)
    thing, other = rng.sample(WORDS["things"], 2)
    values = {
        "one": one,
        "two": two,
        "thing": thing,
        "other": other,
        "a": rng.randint(2, 12),
        "b": rng.randint(3, 30),
        "c": rng.randint(2, 9),
        "d": rng.randint(10, 95),
        "h": rng.randint(2, 10),
        "m": rng.randint(2, 40),
        "p": rng.choice((5, 10, 15, 20, 25, 30, 40, 50, 60, 75)),
        "big": 10 * rng.randint(5, 120),
        "times": rng.choice(("twice", "three times", "four times", "half")),
        **_one_of_each(rng, place="places", day="days", later="days", job="jobs"),
    }
    if rng.random() < 0.3:
        story: str = rng.choice(WORDS["stories"]) + " " + rng.choice(WORDS["questions"])
    else:
        story = rng.choice(WORDS["problems"])
    return story.format(**values)


def _code(rng: random.Random) -> str:
    """A function to be written: told in words, or begun as a signature with a docstring."""
    task, arguments, result = rng.choice(WORDS["tasks"])
    task = task.format(n=rng.randint(2, 9), w=rng.choice(WORDS["words"]), d=rng.choice(WORDS["days"]))
    name = "_".join(
        word for word in task.lower().replace("'", "").split()[: rng.randint(2, 4)] if word.isalnum()
    )
    name = f"{rng.choice(WORDS['prefixes'])}{name or 'solve'}"
    if rng.random() < 0.6:
        extra = rng.choice(WORDS["notes"])
        head = "from typing import List\n\n\n" if "List" in arguments + result else ""
        return (
            f"Complete this Python function:\n\n{head}def {name}({arguments}) -> {result}:\n"
            f'    """ {task}.{extra}\n    """\n'
        )
    asked: str = rng.choice(WORDS["asked_code"])
    return asked.format(task=task[0].lower() + task[1:], name=name)


def _chat(rng: random.Random) -> str:
    """A question, a text to be written, a list, advice."""
    values = {
        "n": rng.randint(3, 10),
        "year": rng.randint(1500, 2020),
        **_one_of_each(rng, topic="topics", second="topics", place="cities", who="people", name="names"),
        **_one_of_each(rng, job="jobs", thing="things", other="things", style="styles", event="events"),
        **_one_of_each(rng, feeling="feelings"),
    }
    request: str = rng.choice(WORDS["requests"])
    return request.format(**values)


def _one_of_each(rng: random.Random, **lists: str) -> dict[str, str]:
    return {name: rng.choice(WORDS[words]) for name, words in lists.items()}
