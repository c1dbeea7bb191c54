"""Traces made up for tests of the simulator."""

from __future__ import annotations

import random

import numpy as np

from acespec_edge.simulate.trace import Record, Timing, Trace

VOCABULARY = 64


def record(
    number: int,
    tokens: int = 40,
    *,
    right: float = 0.7,
    width: int = 6,
    prompt: int = 10,
    stop: int | None = None,
) -> Record:
    """Random text; the drafter's first choice is the text's with probability ``right``, else its second."""
    draw = random.Random(number)
    text = [draw.randrange(2, VOCABULARY) for _ in range(tokens)]
    if stop is not None:
        text[-1] = stop
    top = []
    for token in text:
        others = draw.sample([other for other in range(2, VOCABULARY) if other != token], width - 1)
        others.insert(0 if draw.random() < right else 1, token)
        top.append(others)
    scores = np.log([[0.6, 0.3, 0.05, 0.03, 0.01, 0.01][:width]] * tokens)
    return Record(
        id=f"made-up/{number}",
        kind="code" if number % 2 else "chat",
        seed=number,
        prompt=[draw.randrange(2, VOCABULARY) for _ in range(prompt)],
        text=text,
        top=np.array(top, np.int32),
        scores=scores.astype(np.float16).astype(np.float32) - np.arange(width, dtype=np.float32) * 1e-5,
    )


def trace(records: int = 3, **options: object) -> Trace:
    """A greedy one."""
    return Trace(
        pair="made-up",
        drafter="a drafter",
        target="a target",
        vocabulary=VOCABULARY,
        temperature=0.0,
        stop_ids=(1,),
        records=[record(number, **options) for number in range(records)],  # type: ignore[arg-type]
        machine="none",
        sources=("made up",),
        timing=Timing({1: 10.0, 8: 17.0}, {0: 100.0, 10: 120.0}, 1.5),
    )
