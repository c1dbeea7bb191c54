"""Exports a source to a bundle: graph, weights, tokenizer and manifest, all or nothing."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from acespec_edge.bundle import CHAT_TEMPLATE, FORMAT, MANIFEST, MODEL, QUANTS, TOKENIZER
from acespec_edge.digest import sha256_of
from acespec_edge.errors import UsageError
from acespec_edge.export.architecture import Source
from acespec_edge.export.blocks import CpuOperators, Operators, Precision, StandardOperators
from acespec_edge.export.gpu_operators import GpuOperators
from acespec_edge.export.graph import DecoderGraph
from acespec_edge.export.ops import GPU_OPSET, OPSET, GraphWriter, WeightFile
from acespec_edge.export.spelling import Opset23Spelling, PlainSpelling, Spelling
from acespec_edge.vocabulary import Vocabulary

Progress = Callable[[str, float], None]
"""Told what is being done, and which fraction of the export (0 to 1) is finished."""

WEIGHTS = f"{MODEL}.data"

# The head decides between close candidates, which pays for 8 bits, but not for all tokens; docs/engine.md has
# the measurements.
_PRECISIONS = {
    "int4": Precision(layers=4, tables=8, block=32, coarse=4, coarse_block=128),
    "int8": Precision(layers=8, tables=8, block=32, coarse=4, coarse_block=128),
}
# Bits of the layers' weights in graphs for GPUs.
_GPU_BITS = {"cuda-fp16": 16, "tensorrt-fp16": 16, "tensorrt-int8": 8, "tensorrt-int4": 4}


def export_bundle(
    source: Source, out: str | Path, quant: str = "int4", progress: Progress | None = None
) -> Path:
    """Writes the bundle of `source` into folder `out` and returns it.

    `quant` is one of bundle.QUANTS: for the CPU "int4", "int8" or "fp32" (standard operators only, for exact
    comparisons); one of a GPU's; or "none", a tokenizer without a model. The bundle is built
    in a folder of its own beside `out` and renamed when complete: a failure leaves `out` as it was. An
    earlier bundle in `out` is replaced. Raises UsageError when `out` holds something else, or the source
    cannot be exported.
    """
    target = Path(out)
    if quant not in QUANTS:
        raise UsageError(f"quant: {quant!r} is not supported; it must be one of {', '.join(QUANTS)}")
    _check_target(target)
    source.spec.validate()
    vocabulary = Vocabulary.from_tokenizer_json(source.tokenizer_json)
    if vocabulary.size != source.spec.vocabulary:
        raise UsageError(
            f"vocabulary: the tokenizer has {vocabulary.size} tokens, the model says {source.spec.vocabulary}"
        )
    tell = progress or (lambda what, fraction: None)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        work.chmod(0o755)
        if quant != "none":
            _write_model(source, work, quant, tell)
        _write_texts(source, work)
        tell("checksums", 0.98)
        manifest = _manifest(source, vocabulary, quant)
        manifest["sha256"] = {file.name: sha256_of(file) for file in sorted(work.iterdir())}
        (work / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        _replace(target, work)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    tell("done", 1.0)
    return target


def _write_model(source: Source, folder: Path, quant: str, progress: Progress) -> None:
    weights = WeightFile(folder / WEIGHTS)
    try:
        gpu = _GPU_BITS.get(quant)
        graph = GraphWriter(weights, OPSET if gpu is None else GPU_OPSET)
        operators: Operators = StandardOperators(graph)
        spelling: Spelling = Opset23Spelling(graph)
        if gpu is not None:
            operators, spelling = GpuOperators(graph, gpu), PlainSpelling(graph)
        elif quant != "fp32":
            operators = CpuOperators(graph, _PRECISIONS[quant])
        DecoderGraph(source, graph, operators, spelling).write(progress)
    finally:
        weights.close()
    onnx.save(graph.model(source.name), folder / MODEL)


def _write_texts(source: Source, folder: Path) -> None:
    (folder / TOKENIZER).write_text(source.tokenizer_json, encoding="utf-8")
    if source.chat_template is not None:
        (folder / CHAT_TEMPLATE).write_text(source.chat_template, encoding="utf-8")


def _manifest(source: Source, vocabulary: Vocabulary, quant: str) -> dict[str, Any]:
    spec = source.spec
    return {
        "format": FORMAT,
        "name": source.name,
        "architecture": spec.architecture,
        "layers": spec.layers,
        "hidden": spec.hidden,
        "heads": spec.heads,
        "kv_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "kv_width": spec.kv_width,
        "vocabulary": spec.vocabulary,
        "logits_width": spec.logits_width,
        "max_positions": spec.max_positions,
        "quant": quant,
        "tokenizer_fingerprint": vocabulary.fingerprint.hex(),
        "bos_id": source.bos_id,
        "eos_ids": list(source.eos_ids),
        "source": source.origin,
        "licence": source.licence,
        "windowed": any(spec.windows),
    }


def _check_target(target: Path) -> None:
    """An existing target must be a bundle or an empty folder: nothing else is ever deleted."""
    if not target.exists():
        return
    if not target.is_dir():
        raise UsageError(f"out: {target} is a file; name a folder for the bundle")
    if any(target.iterdir()) and not (target / MANIFEST).is_file():
        raise UsageError(f"out: {target} holds other files; name a new folder for the bundle")


def _replace(target: Path, work: Path) -> None:
    """Renames `work` to `target`; what was there goes only after that."""
    if not target.exists():
        work.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    target.rename(old)  # onto an empty folder
    try:
        work.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
