"""Writes rules.json: rows of logits under the rules of a request, as the reference shapes them and draws from
them. From the repository root: python -m tests.vectors.make_rules
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from acespec_edge import _core
from tests.python.rules_reference import Row, ranked, shaped_row

RULES: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "repetition": {"temperature": 0.9, "repetition_penalty": 1.3},
    "presence": {"temperature": 1.0, "presence_penalty": 0.75},
    "frequency": {"temperature": 1.0, "frequency_penalty": -0.3},
    "bias": {"temperature": 1.0, "logit_bias": [[3, -100.0], [9, 2.25], [11, 0.1]]},
    "banned": {"temperature": 0.7, "banned": [0, 1, 2, 3, 4, 17]},
    "allowed": {"temperature": 1.0, "allowed": [5, 6, 7, 20, 30]},
    "min_tokens": {"temperature": 1.0, "min_tokens": 8},
    "carried": {"temperature": 1.0, "min_tokens": 10, "frequency_penalty": 0.5, "carried": 3},
    "greedy": {"repetition_penalty": 1.7, "frequency_penalty": 0.4, "logit_bias": [[8, 1.5]]},
    "truncated": {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.02, "presence_penalty": 0.5},
    "all": {
        "temperature": 1.1,
        "top_k": 25,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.6,
        "logit_bias": [[4, 3.0], [6, -1.5]],
        "banned": [1, 12],
        "allowed": list(range(30)),
        "min_tokens": 9,
        "carried": 1,
    },
}
STOP_IDS = [5, 6, 700]
SIZES = ((40, 48, False), (300, 304, False), (40, 40, True))
"""Vocabulary, columns of the row, whether a grammar masks it."""

MARGIN = 1e-4
"""Between the best two scores, so that no rounding decides."""


def row_of(random: np.random.Generator, columns: int) -> Row:
    row: Row = (random.normal(0, 3, columns) * 1024).round().astype(np.float32) / np.float32(1024)
    return row


def case(random: np.random.Generator, name: str, size: tuple[int, int, bool]) -> dict[str, Any]:
    vocabulary, columns, masked = size
    rules = _core.SamplingRules(seed=int(random.integers(2**63)), **RULES[name])
    prompt, committed, path = (random.integers(0, 32, count).tolist() for count in (7, 4, 3))
    words = random.integers(0, 2**32, -(-vocabulary // 32), dtype=np.uint32) | np.uint32(0xFF)
    mask = words if masked else None
    while True:
        logits, position = row_of(random, columns), int(random.integers(14, 100_000))
        shaped = shaped_row(
            logits, vocabulary, rules, prompt=prompt, output=committed + path, stop_ids=STOP_IDS, mask=mask
        )
        order, scores = ranked(shaped, rules, position)
        if len(order) == 1 or scores[0] - scores[1] > MARGIN:
            break
    return {
        "name": f"{name}-{vocabulary}{'-masked' if masked else ''}",
        "vocabulary": vocabulary,
        "rules": {**RULES[name], "seed": rules.seed},
        "prompt": prompt,
        "stop_ids": STOP_IDS,
        "committed": committed,
        "path": path,
        "mask": None if mask is None else mask.tolist(),
        "position": position,
        "logits": logits.tolist(),
        "shaped": [value if np.isfinite(value) else None for value in shaped.tolist()],
        "chosen": int(order[0]),
    }


def main() -> None:
    random = np.random.default_rng(20)
    lines = ",\n".join(json.dumps(case(random, name, size)) for name in RULES for size in SIZES)
    Path(__file__).with_name("rules.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
