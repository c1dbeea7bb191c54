"""Small tokenizers of the two kinds that bundles carry."""

from __future__ import annotations

import json
from functools import cache

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SPECIAL = "<|end|>"
PLAIN_ADDED = "<tool_call>"


@cache
def byte_level_json(*, bos: bool = False) -> str:
    """A byte-level BPE tokenizer.json: all 256 bytes, some merges, a special token and an added one that is
    none."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(
        ["the other day it rained in the town, don't you remember? 日本 été 😀"] * 3, trainer
    )
    tokenizer.add_tokens([AddedToken(SPECIAL, special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken(PLAIN_ADDED, special=False, normalized=False)])
    if bos:
        token = (SPECIAL, tokenizer.token_to_id(SPECIAL))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{SPECIAL} $A", special_tokens=[token]
        )
    return tokenizer.to_str()


@cache
def sentencepiece_json() -> str:
    """A SentencePiece style tokenizer.json: byte fallback, and a space written as U+2581."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "b",
        "c",
        "▁a",
        "▁ab",
    ]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("▁a", "b")]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer.to_str()


def edited(text: str, **changes: object) -> str:
    """The tokenizer.json `text` with other values for some of its top-level keys."""
    return json.dumps({**json.loads(text), **changes})
