"""`acespec export`: a model into a draft bundle."""

from __future__ import annotations

import json
import time
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Target(str, Enum):
    """What a bundle is to run on, and how its weights are stored."""

    cpu_int4 = "cpu-int4"
    cpu_int8 = "cpu-int8"
    cpu_fp32 = "cpu-fp32"
    cuda_fp16 = "cuda-fp16"
    tensorrt_fp16 = "tensorrt-fp16"
    tensorrt_int8 = "tensorrt-int8"
    tensorrt_int4 = "tensorrt-int4"
    none = "none"


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
    target: Annotated[
        Target,
        typer.Option(
            help="What the bundle runs on, and the bits of its weights; none is a tokenizer alone, for "
            "--drafter lookup."
        ),
    ] = Target.cpu_int4,
    compare: Annotated[
        bool,
        typer.Option(
            "--agreement", help="Say how often the bundle and its source's exact weights agree on a text."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout, no progress bar.")
    ] = False,
) -> None:
    """Make the bundle that drafts on a device: graph, weights, tokenizer, chat template."""
    # Half a second of imports that `acespec --help` can do without.
    from acespec_edge.bundle import Bundle
    from acespec_edge.commands.bar import download_bar, fraction_bar
    from acespec_edge.export.agreement import agreement
    from acespec_edge.export.build import export_bundle
    from acespec_edge.export.sources import open_source

    started = time.monotonic()
    with download_bar(source, shown=not as_json) as fetched:
        opened = open_source(source, progress=fetched)
    with fraction_bar("export", shown=not as_json) as done:
        bundle = Bundle.load(export_bundle(opened, out, target.value.removeprefix("cpu-"), done))
    found = agreement(opened, bundle) if compare else None
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
                    **(
                        {}
                        if found is None
                        else {"agreement": round(found.share, 4), "compared": found.tokens}
                    ),
                }
            )
        )
        return
    print(
        f"{bundle.path}: {bundle.name} ({bundle.licence}), {bundle.quant}, {bundle.layers} layers, "
        f"{bundle.vocabulary:,} tokens, tokenizer {bundle.tokenizer_fingerprint[:8]}, {size / 1e6:.0f} MB, "
        f"{seconds:.0f} s"
    )
    if found is not None:
        print(f"agrees with the exact weights on {found.share:.1%} of {found.tokens} tokens")
