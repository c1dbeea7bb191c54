"""Tokenizers out of GGUF metadata: how each named pre-tokenizer cuts, SentencePiece order, special tokens."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec_edge.errors import UsageError
from acespec_edge.export.gguf_tokenizer import read_tokenizer
from acespec_edge.token_bytes import BYTE_OF
from acespec_edge.vocabulary import Vocabulary
from tests.python.model_kit import tokenizer_fields
from tests.python.tokenizer_kit import byte_level_json

CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}


def byte_level_fields(pre: str, *words: str, **more: Any) -> dict[str, Any]:
    """A tokenizer of all bytes that can build each of `words` from the left, one merge per byte."""
    tokens = [CHARACTER_OF[byte] for byte in range(256)]
    merges = []
    for word in words:
        characters = [CHARACTER_OF[byte] for byte in word.encode()]
        for length in range(2, len(characters) + 1):
            left, right = "".join(characters[: length - 1]), characters[length - 1]
            if left + right not in tokens:
                tokens.append(left + right)
                merges.append(f"{left} {right}")
    fields = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [1] * len(tokens),
        "merges": merges,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (fields | more).items()}


def cut(pre: str, text: str, *words: str) -> list[str]:
    vocabulary = Vocabulary.from_tokenizer_json(read_tokenizer(byte_level_fields(pre, *words), "m.gguf").json)
    return [vocabulary.token_bytes(token).decode(errors="replace") for token in vocabulary.encode(text)]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", [" 12345"]),
        ("default", [" 12345"]),
        ("smollm", [" ", "1", "2", "3", "4", "5"]),
        ("qwen2", [" ", "1", "2", "3", "4", "5"]),
        ("llama-bpe", [" ", "123", "45"]),
    ],
)
def test_digits(pre: str, pieces: list[str]) -> None:
    assert cut(pre, " 12345", " 12345", "12345", "45") == pieces


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "I'LL", ["I", "'", "LL"]),  # contractions in small letters only
        ("qwen2", "I'LL", ["I", "'LL"]),
        ("llama-bpe", "I'LL", ["I", "'LL"]),
        ("gpt-2", "a  b", ["a", " ", " b"]),
        ("qwen2", "a  b", ["a", " ", " b"]),
        ("gpt-2", "(ab", ["(", "ab"]),
        ("qwen2", "(ab", ["(ab"]),  # one sign may lead a word
        ("smollm", "(ab", ["(", "ab"]),
        ("gpt-2", ");\n\n", [");", "\n\n"]),
        ("qwen2", ");\n\n", [");\n\n"]),  # line ends belong to the signs before them
        ("llama-bpe", ");\n\n", [");\n\n"]),
    ],
)
def test_words_and_signs(pre: str, text: str, pieces: list[str]) -> None:
    words = ["I", "'LL", "LL", "a", "  b", " b", "(ab", "ab", ");\n\n", "\n\n", "I'LL", "a  b"]
    assert cut(pre, text, *words) == pieces


def test_only_qwen2_composes_characters() -> None:
    for pre, text in (("qwen2", "é"), ("llama-bpe", "e\u0301"), ("smollm", "e\u0301")):
        vocabulary = Vocabulary.from_tokenizer_json(read_tokenizer(byte_level_fields(pre), "m.gguf").json)
        assert vocabulary.decode(vocabulary.encode("e\u0301")) == text


def test_llama3_takes_whole_words_without_merges() -> None:
    fields = byte_level_fields("llama-bpe")
    fields["tokenizer.ggml.tokens"].append("word")
    fields["tokenizer.ggml.token_type"].append(1)
    vocabulary = Vocabulary.from_tokenizer_json(read_tokenizer(fields, "m.gguf").json)
    assert vocabulary.encode("word") == [256]


def test_the_vocabulary_is_that_of_the_models_own_tokenizer() -> None:
    """Padding is dropped, and the fingerprint is that of the original tokenizer.json."""
    own = Vocabulary.from_tokenizer_json(byte_level_json())
    found = read_tokenizer(tokenizer_fields(padding=20), "m.gguf")
    rebuilt = Vocabulary.from_tokenizer_json(found.json)
    assert (found.size, rebuilt.size) == (own.size, own.size)
    assert rebuilt.fingerprint == own.fingerprint
    text = "don't you remember<|end|> 日本 <tool_call>😀"
    assert rebuilt.encode(text) == own.encode(text)
    assert [rebuilt.is_special(token) for token in range(own.size)] == [
        own.is_special(i) for i in range(own.size)
    ]


def test_unused_ids_inside_the_vocabulary_become_holes() -> None:
    fields = byte_level_fields("gpt-2", "ab", "cd")
    fields["tokenizer.ggml.tokens"].insert(256, "[gap]")
    fields["tokenizer.ggml.token_type"].insert(256, 5)
    vocabulary = Vocabulary.from_tokenizer_json(read_tokenizer(fields, "m.gguf").json)
    assert vocabulary.token_bytes(256) == b""
    assert vocabulary.encode("abcd") == [257, 258]
    assert vocabulary.decode(vocabulary.encode("[gap]")) == "[gap]"


@pytest.mark.parametrize(
    ("pre", "flag", "expected"),
    [("qwen2", None, False), ("qwen2", True, True), ("llama-bpe", None, True), ("llama-bpe", False, False)],
)
def test_bos_is_added_where_the_file_or_its_family_says_so(
    pre: str, flag: bool | None, expected: bool
) -> None:
    fields = byte_level_fields(pre, bos_token_id=256)
    fields["tokenizer.ggml.tokens"].append("<|begin|>")
    fields["tokenizer.ggml.token_type"].append(3)
    if flag is not None:
        fields["tokenizer.ggml.add_bos_token"] = flag
    found = read_tokenizer(fields, "m.gguf")
    vocabulary = Vocabulary.from_tokenizer_json(found.json)
    assert found.bos_id == 256
    assert vocabulary.encode("a", add_special=True) == [*([256] if expected else []), ord("a")]


def test_end_tokens_are_the_named_ones_and_the_known_control_tokens() -> None:
    fields = byte_level_fields("gpt-2", eos_token_id=258, eot_token_id=257)
    fields["tokenizer.ggml.tokens"] += ["<|endoftext|>", "<|im_end|>", "<|stop|>", "</s>"]
    fields["tokenizer.ggml.token_type"] += [3, 3, 3, 1]
    assert read_tokenizer(fields, "m.gguf").eos_ids == [258, 257, 256]


PIECES = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "c",
          "ab", "▁a", "bc", "▁ab", "abc", "▁b", "aa", "aaa", "▁a▁"]  # fmt: skip
FIRST_PLAIN = 258
SCORES = dict(
    zip(PIECES[FIRST_PLAIN:], [-9, -9, -9, -9, -3, -1, -2, -4, -0.5, -2.5, -5, -6, -7], strict=True)
)


def sentencepiece_fields(**more: Any) -> dict[str, Any]:
    kinds = [2, 3, *[6] * 256, *[1] * len(SCORES)]
    fields = {"model": "llama", "tokens": PIECES, "token_type": kinds, "bos_token_id": 1,
              "scores": [0.0] * FIRST_PLAIN + list(map(float, SCORES.values()))}  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in (fields | more).items()}


def joined_by_score(text: str) -> list[str]:
    """SentencePiece BPE as it is defined: join the neighbours that score highest, the leftmost first."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [(-SCORES[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in SCORES]
        if not pairs:
            return parts
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(st.text("abc ", min_size=1, max_size=12))
def test_sentencepiece_joins_the_best_pair_first(text: str) -> None:
    vocabulary = Vocabulary.from_tokenizer_json(read_tokenizer(sentencepiece_fields(), "m.gguf").json)
    assert vocabulary.encode(text) == [PIECES.index(part) for part in joined_by_score(text)]
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_sentencepiece_falls_back_to_bytes_and_adds_its_bos() -> None:
    vocabulary = Vocabulary.from_tokenizer_json(read_tokenizer(sentencepiece_fields(), "m.gguf").json)
    assert vocabulary.encode("é", add_special=True) == [1, PIECES.index("▁"), 2 + 0xC3, 2 + 0xA9]
    assert vocabulary.is_special(0) and vocabulary.is_special(1)
    bare = read_tokenizer(sentencepiece_fields(add_space_prefix=False, add_bos_token=False), "m.gguf")
    vocabulary = Vocabulary.from_tokenizer_json(bare.json)
    assert vocabulary.encode("a", add_special=True) == [PIECES.index("a")]
    assert vocabulary.decode(vocabulary.encode(" a")) == " a"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "t5"}, "tokenizer model 't5' is not supported; it must be gpt2"),
        (
            {"pre": "jais"},
            r"pre-tokenizer \(tokenizer.ggml.pre\) 'jais' is not supported; it must be one of default",
        ),
        ({"pre": None}, "pre-tokenizer .* None is not supported"),
        ({"tokens": None}, "the file has no tokenizer.ggml.tokens"),
        ({"merges": None}, "the file has no tokenizer.ggml.merges"),
        ({"merges": ["ab"]}, "merge 'ab' must be two tokens with one space between"),
        ({"merges": ["a nowhere"]}, "merges do not fit its tokens"),
        ({"token_type": [1]}, "256 tokens but 1 token types"),
        ({"token_type": [5] * 256}, "no token in use"),
        ({"eos_token_id": 999}, "tokenizer.ggml.eos_token_id is 999, it must be 0 to 255"),
        ({"model": "llama"}, "the file has no tokenizer.ggml.scores"),
        ({"model": "llama", "scores": [0.0]}, "256 tokens but 1 scores"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(changes: dict[str, Any], words: str) -> None:
    fields = byte_level_fields("gpt-2") | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(UsageError, match=r"m\.gguf: .*" + words):
        read_tokenizer({key: value for key, value in fields.items() if value is not None}, "m.gguf")


def test_the_result_is_plain_json() -> None:
    assert json.loads(read_tokenizer(byte_level_fields("smollm"), "m.gguf").json)["model"]["type"] == "BPE"
