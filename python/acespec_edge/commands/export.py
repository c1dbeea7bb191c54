"""`acespec export`: a model into a draft bundle."""

from __future__ import annotations

import json
import time
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Quant(str, Enum):
    """How weights are stored."""

    int4 = "int4"
    int8 = "int8"
    fp32 = "fp32"


def export(
    source: Annotated[
        str,
        typer.Argument(
            help="A name from `acespec models list`, a model folder with safetensors, a .gguf file, "
            "or a Hugging Face id."
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The bundle's folder; an older bundle there is replaced.")
    ],
    quant: Annotated[Quant, typer.Option(help="Bits of the weights.")] = Quant.int4,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout, no progress bar.")
    ] = False,
) -> None:
    """Make the bundle that drafts on a device: graph, weights, tokenizer, chat template."""
    # Half a second of imports that `acespec --help` can do without.
    from acespec_edge.bundle import Bundle
    from acespec_edge.commands.bar import download_bar, fraction_bar
    from acespec_edge.export.build import export_bundle
    from acespec_edge.export.sources import open_source

    started = time.monotonic()
    with download_bar(source, shown=not as_json) as fetched:
        opened = open_source(source, progress=fetched)
    with fraction_bar("export", shown=not as_json) as done:
        bundle = Bundle.load(export_bundle(opened, out, quant.value, done))
    seconds = time.monotonic() - started
    size = sum(file.stat().st_size for file in bundle.path.iterdir())
    if as_json:
        print(
            json.dumps(
                {
                    "path": str(bundle.path),
                    "name": bundle.name,
                    "architecture": bundle.architecture,
                    "quant": bundle.quant,
                    "layers": bundle.layers,
                    "vocabulary": bundle.vocabulary,
                    "tokenizer_fingerprint": bundle.tokenizer_fingerprint,
                    "licence": bundle.licence,
                    "bytes": size,
                    "seconds": round(seconds, 1),
                }
            )
        )
        return
    print(
        f"{bundle.path}: {bundle.name} ({bundle.licence}), {bundle.quant}, {bundle.layers} layers, "
        f"{bundle.vocabulary:,} tokens, tokenizer {bundle.tokenizer_fingerprint[:8]}, {size / 1e6:.0f} MB, "
        f"{seconds:.0f} s"
    )
