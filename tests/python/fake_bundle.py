"""A bundle of 64 entries, without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from acespec_edge.bundle import Bundle

EOS = 63
EMOJI = "\N{GRINNING FACE}".encode()
_LETTERS = [*"abcdefghijklmnopqrstuvwxyz", *"0123456789", " ", ".", ",", "!", "?", "-", "\n"]
_WORDS = ["th", "he", "in", "er", "an", "re", "on", "at", "en", "nd"]


def byte_symbol(byte: int) -> str:
    """How byte-level vocabularies write a byte: printable Latin-1 as itself, the rest from U+0100 up."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in kept]
    return chr(byte) if byte in kept else chr(256 + others.index(byte))


def symbols(data: bytes) -> str:
    return "".join(byte_symbol(byte) for byte in data)


EMOJI_IDS = [len(_LETTERS) + len(_WORDS) + index for index in range(4)]
ENTRIES = [*_LETTERS, *_WORDS]
"""Texts of the first ids; after them the four bytes of one emoji, fillers, and EOS as id 63."""


def tokenizer_json() -> str:
    """A byte-level tokenizer of 64 entries."""
    vocabulary = {symbols(text.encode()): index for index, text in enumerate(ENTRIES)}
    vocabulary |= {byte_symbol(byte): EMOJI_IDS[0] + index for index, byte in enumerate(EMOJI)}
    for index in range(len(vocabulary), EOS):
        vocabulary[f"Z{index}"] = index
    added = {"id": EOS, "content": "<eos>", "special": True, "single_word": False}
    added |= {"lstrip": False, "rstrip": False, "normalized": False}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [added],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        }
    )


def make_bundle(folder: Path, *, eos_ids: Sequence[int] = (EOS,), chat_template: str | None = None) -> Bundle:
    """A bundle of that tokenizer, without a model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    return Bundle(
        path=folder,
        format=1,
        name="fake-64",
        architecture="llama",
        layers=1,
        hidden=8,
        heads=1,
        kv_heads=1,
        head_dim=8,
        kv_width=8,
        vocabulary=64,
        logits_width=64,
        max_positions=4096,
        quant="fp32",
        tokenizer_fingerprint="",
        bos_id=None,
        eos_ids=list(eos_ids),
        source="tests",
        licence="none",
        sha256={},
    )


def with_eos(bundle: Bundle, *ids: int) -> Bundle:
    """The same bundle with other stop ids."""
    return replace(bundle, eos_ids=list(ids))
