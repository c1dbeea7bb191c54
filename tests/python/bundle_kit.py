"""Bundles for tests: everything but a real graph."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from acespec_edge.bundle import Bundle
from acespec_edge.vocabulary import Vocabulary


def write_bundle(folder: Path, *, tokenizer: str, chat_template: str | None = None, **changes: Any) -> Bundle:
    """Writes a bundle whose model.onnx is no graph into `folder`, and opens it. `changes` go into
    acespec.json."""
    vocabulary = Vocabulary.from_tokenizer_json(tokenizer)
    files = {"model.onnx": b"graph", "model.onnx.data": b"weights", "tokenizer.json": tokenizer.encode()}
    if chat_template is not None:
        files["chat_template.jinja"] = chat_template.encode()
    else:
        (folder / "chat_template.jinja").unlink(missing_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    manifest = {
        "format": 1,
        "name": "tiny",
        "architecture": "llama",
        "layers": 2,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "kv_width": 32,
        "vocabulary": vocabulary.size,
        "logits_width": vocabulary.size,
        "max_positions": 256,
        "quant": "fp32",
        "tokenizer_fingerprint": vocabulary.fingerprint.hex(),
        "bos_id": None,
        "eos_ids": [1],
        "source": "test",
        "licence": "Apache-2.0",
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        **changes,
    }
    (folder / "acespec.json").write_text(json.dumps(manifest), encoding="utf-8")
    return Bundle.load(folder)
