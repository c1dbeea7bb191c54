"""The tokenizer inside a GGUF file, rebuilt as a tokenizer.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from acespec_edge.errors import UsageError

# Tokens that end a turn or a text in the common chat formats. Files name one end token; a model may produce
# any of these, so each that the vocabulary marks as a control token stops a generation.
_END_TOKENS = (
    "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|endoftext|>", "<|end|>",
    "<end_of_turn>", "</s>",
)  # fmt: skip

# Words as Qwen 2 and Llama 3 cut them; they differ in how many digits form one piece.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class _Kind(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _Splitter:
    """What a named pre-tokenizer of byte-level BPE does before the merges."""

    split: Callable[[], pre_tokenizers.PreTokenizer]
    compose: bool = False  # NFC first
    whole_words: bool = False  # a piece that is a token is that token, whatever the merges say
    adds_bos: bool = False  # unless the file says otherwise


def _regex_words(digits: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(_WORDS % digits), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip


def _gpt2_words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm_words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2_words()])


_LLAMA3 = _Splitter(lambda: _regex_words(r"\p{N}{1,3}"), whole_words=True, adds_bos=True)
_SPLITTERS = {
    "gpt-2": _Splitter(_gpt2_words),
    "default": _Splitter(_gpt2_words),
    "smollm": _Splitter(_smollm_words),
    "qwen2": _Splitter(lambda: _regex_words(r"\p{N}"), compose=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}


@dataclass(frozen=True)
class GgufTokenizer:
    """What `read_tokenizer` found. `size` is one more than the highest id in use; `eos_ids` may be empty."""

    json: str
    size: int
    bos_id: int | None
    eos_ids: list[int]


def read_tokenizer(metadata: Mapping[str, Any], where: str) -> GgufTokenizer:
    """Builds the tokenizer that `metadata` of the GGUF file `where` describes.

    Entries marked unused are left out, so the vocabulary is that of the model's own tokenizer. Raises
    UsageError for a tokenizer model or a pre-tokenizer that cannot be reproduced exactly.
    """
    tokens = _required(metadata, "tokens", where)
    kinds = _required(metadata, "token_type", where)
    if len(kinds) != len(tokens):
        raise UsageError(f"{where}: {len(tokens)} tokens but {len(kinds)} token types")
    vocabulary = {token: index for index, token in enumerate(tokens) if kinds[index] != _Kind.UNUSED}
    if not vocabulary:
        raise UsageError(f"{where}: tokenizer.ggml.tokens has no token in use")
    model = _required(metadata, "model", where)
    if model == "gpt2":
        tokenizer, adds_bos = _byte_level(metadata, vocabulary, where)
    elif model == "llama":
        tokenizer, adds_bos = _sentencepiece(metadata, vocabulary, tokens, kinds, where)
    else:
        raise UsageError(
            f"{where}: tokenizer model {model!r} is not supported; it must be gpt2 (byte-level BPE) or llama "
            "(SentencePiece BPE)"
        )
    added = {_Kind.CONTROL, _Kind.USER_DEFINED} | ({_Kind.UNKNOWN} if model == "llama" else set())
    tokenizer.add_tokens([
        AddedToken(token, special=kinds[index] != _Kind.USER_DEFINED, normalized=False)
        for token, index in vocabulary.items()
        if kinds[index] in added
    ])  # fmt: skip
    bos = _token_id(metadata, "bos_token_id", tokens, where)
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", adds_bos):
        first = tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first} $B", special_tokens=[(first, bos)]
        )
    named = [_token_id(metadata, f"{name}_token_id", tokens, where) for name in ("eos", "eot", "eom")]
    known = [vocabulary[end] for end in _END_TOKENS if end in vocabulary]
    ends = [*named, *(index for index in known if kinds[index] == _Kind.CONTROL)]
    eos_ids = list(dict.fromkeys(index for index in ends if index is not None))
    return GgufTokenizer(tokenizer.to_str(), max(vocabulary.values()) + 1, bos, eos_ids)


def _byte_level(
    metadata: Mapping[str, Any], vocabulary: dict[str, int], where: str
) -> tuple[Tokenizer, bool]:
    name = metadata.get("tokenizer.ggml.pre")
    if name not in _SPLITTERS:
        known = ", ".join(sorted(_SPLITTERS))
        raise UsageError(
            f"{where}: pre-tokenizer (tokenizer.ggml.pre) {name!r} is not supported; it must be one of "
            f"{known}. Export from the model's safetensors folder instead, it carries its own tokenizer"
        )
    splitter = _SPLITTERS[name]
    merges = [_pair(merge, where) for merge in _required(metadata, "merges", where)]
    try:
        model = models.BPE(vocabulary, merges, ignore_merges=splitter.whole_words)
    except Exception as problem:  # the tokenizers library raises bare Exception
        raise UsageError(f"{where}: the tokenizer's merges do not fit its tokens ({problem})") from problem
    tokenizer = Tokenizer(model)
    if splitter.compose:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitter.split()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, splitter.adds_bos


def _sentencepiece(
    metadata: Mapping[str, Any], vocabulary: dict[str, int], tokens: list[str], kinds: list[int], where: str
) -> tuple[Tokenizer, bool]:
    scores = _required(metadata, "scores", where)
    if len(scores) != len(tokens):
        raise UsageError(f"{where}: {len(tokens)} tokens but {len(scores)} scores")
    plain = {token: index for token, index in vocabulary.items() if kinds[index] == _Kind.NORMAL}
    unknown = next((token for token, index in vocabulary.items() if kinds[index] == _Kind.UNKNOWN), None)
    has_bytes = any(kind == _Kind.BYTE for kind in kinds)
    merges = _merges_from_scores(plain, scores)
    model = models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes)
    tokenizer = Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    undo: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("▁"))
        undo.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(undo)
    return tokenizer, True


def _merges_from_scores(plain: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two, the highest scored token first.

    SentencePiece always joins the neighbours whose union scores highest, which is what BPE does with this
    list; the scores of a trained model are all different.
    """
    found = [
        (-scores[index], index, left, token[cut:])
        for token, index in plain.items()
        for cut in range(1, len(token))
        if (left := token[:cut]) in plain and token[cut:] in plain
    ]
    return [(left, right) for _, _, left, right in sorted(found)]


def _pair(merge: str, where: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not space or not left or not right or " " in right:
        raise UsageError(f"{where}: merge {merge!r} must be two tokens with one space between")
    return left, right


def _required(metadata: Mapping[str, Any], name: str, where: str) -> Any:
    try:
        return metadata[f"tokenizer.ggml.{name}"]
    except KeyError:
        raise UsageError(
            f"{where}: the file has no tokenizer.ggml.{name}, so its tokenizer is unknown"
        ) from None


def _token_id(metadata: Mapping[str, Any], name: str, tokens: list[str], where: str) -> int | None:
    found = metadata.get(f"tokenizer.ggml.{name}")
    if found is not None and not 0 <= found < len(tokens):
        raise UsageError(f"{where}: tokenizer.ggml.{name} is {found}, it must be 0 to {len(tokens) - 1}")
    return found
