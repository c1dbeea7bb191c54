"""What quantising a drafter costs: agreement with its float32 weights, and accepted tokens.

Texts are what the target says greedily to our own prompts. A drafter reads them, and at every place says
its likeliest token. While it agrees with a text, its own draft is that text, so what the target would accept
of a chain follows exactly, without generating any.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from acespec_edge.bundle import Bundle
from acespec_edge.export.agreement import choices
from tools.bench import command
from tools.bench.data import load_prompts
from tools.bench.pairs import PAIRS, bundle_of, load_pair


@dataclass(frozen=True)
class Variant:
    """A way to store and compute with the weights. `level`: MatMulNBits' accuracy_level, None for graphs
    without that operator."""

    name: str
    quant: str
    level: int | None = None


VARIANTS = (
    Variant("fp32", "fp32"),
    Variant("fp16", "cuda-fp16"),
    Variant("int8, level 4", "int8", 4),
    Variant("int8, level 0", "int8", 0),
    Variant("int4, level 4", "int4", 4),
    Variant("int4, level 1", "int4", 1),
    Variant("int4, level 0", "int4", 0),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the measurement; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.quality", description=__doc__)
    command.add_pair(parser)
    parser.add_argument("--prompts", type=int, default=2, metavar="N", help="prompts of each kind (2)")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens of each text (64)")
    parser.add_argument("--draft-length", type=int, default=8, metavar="K", help="tokens of a chain (8)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    return command.run(lambda: _measure(options))


def accepted_mean(agrees: NDArray[np.bool_], length: int) -> float:
    """Mean number of tokens that the target accepts of chains of `length`, over one text: each round goes on
    behind what was accepted and the token that the target adds."""
    at, rounds, accepted = 0, 0, 0
    while at < len(agrees):
        chain = agrees[at : at + length]
        taken = len(chain) if chain.all() else int(chain.argmin())
        at, rounds, accepted = at + taken + 1, rounds + 1, accepted + taken
    return accepted / rounds if rounds else 0.0


def _measure(options: argparse.Namespace) -> int:
    pair = PAIRS[options.pair]
    loaded = load_pair(options.pair)
    prompts = [row for rows in load_prompts(None).values() for row in rows[: options.prompts]]
    texts = []
    table = loaded.bundle.vocabulary_table
    for prompt in prompts:
        ids = loaded.bundle.with_one_bos(table.encode(prompt.text, add_special=True))
        texts.append((len(ids), [*ids, *_greedy(loaded.model, ids, options.tokens)]))
    rows: list[dict[str, Any]] = []
    exact: list[NDArray[np.int64]] = []
    for variant in VARIANTS:
        bundle = bundle_of(replace(pair, quant=variant.quant))
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=bundle.path.parent) as folder:
            graph = None if variant.level is None else at_level(bundle, variant.level, Path(folder))
            said = [choices(bundle, text, graph)[start - 1 : -1] for start, text in texts]
        exact = exact or said
        matches = [mine == np.array(text[start:]) for mine, (start, text) in zip(said, texts, strict=True)]
        agreed = np.concatenate([mine == theirs for mine, theirs in zip(said, exact, strict=True)])
        means = [accepted_mean(match, options.draft_length) for match in matches]
        rows.append({
            "variant": variant.name,
            "tokens": len(agreed),
            "agreement": round(float(agreed.mean()), 4),
            "match": round(float(np.concatenate(matches).mean()), 4),
            "accepted_mean": round(float(np.mean(means)), 3),
            "seconds": round(time.monotonic() - began, 1),
        })  # fmt: skip
    report = {"pair": options.pair, "draft_length": options.draft_length, "rows": rows}
    if options.json:
        print(json.dumps(report))
    else:
        _print(report)
    return 0


def at_level(bundle: Bundle, level: int, folder: Path) -> Path:
    """The bundle's graph in `folder` with another accuracy level; its weights are shared."""
    model = onnx.load(bundle.model_file, load_external_data=False)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = level
    for file in bundle.path.glob("*.data"):
        os.link(file, folder / file.name)
    onnx.save(model, folder / bundle.model_file.name)
    return folder / bundle.model_file.name


def _greedy(model: Any, ids: list[int], count: int) -> list[int]:
    import torch

    with torch.inference_mode():
        whole = model.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False, pad_token_id=0)
    return [int(token) for token in whole[0, len(ids) :]]


def _print(report: dict[str, Any]) -> None:
    print(f"{report['pair']}, chains of {report['draft_length']}")
    print(f"{'weights':<16}{'tokens':>8}{'agreement':>11}{'match':>8}{'accepted':>10}{'s':>7}")
    for row in report["rows"]:
        print(
            f"{row['variant']:<16}{row['tokens']:>8}{row['agreement']:>11.3f}{row['match']:>8.3f}"
            f"{row['accepted_mean']:>10.2f}{row['seconds']:>7.1f}"
        )


if __name__ == "__main__":
    sys.exit(main())
