"""The tokenizer of a bundle: text to ids, ids to exact bytes, a fingerprint both sides can compare."""

from __future__ import annotations

import codecs
import hashlib
import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from acespec_edge.errors import UsageError
from acespec_edge.token_bytes import ByteRules

CHUNK_IDS = 1024  # ids under one entry of `Vocabulary.chunks`

_PLAIN, _ADDED, _HOLE = 0, 1, 2


class Vocabulary:
    """An immutable tokenizer. Safe to share between threads.

    `size` is one more than the highest id. Ids without a token (holes) may exist below it.
    """

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes | None], rules: ByteRules,
                 added: frozenset[int], special: frozenset[int]) -> None:  # fmt: skip
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._rules = rules
        self._added = added
        self._special = special

    @classmethod
    def from_tokenizer_json(cls, source: str | Path) -> Vocabulary:
        """Reads a `tokenizer.json`: a path to one, or its text. Raises UsageError when it cannot be used
        exactly."""
        text, where = _read(source)
        try:
            document = json.loads(text)
            tokenizer = Tokenizer.from_str(text)
        except Exception as problem:  # the tokenizers library raises bare Exception
            raise UsageError(f"{where}: not a usable tokenizer.json ({problem})") from problem
        tokenizer.no_truncation()
        tokenizer.no_padding()
        rules = ByteRules.from_decoder(document.get("decoder"), where)
        added = {entry["id"]: entry["content"] for entry in document.get("added_tokens") or []}
        special = frozenset(entry["id"] for entry in document.get("added_tokens") or [] if entry["special"])
        model = tokenizer.get_vocab(with_added_tokens=False)
        tokens: list[bytes | None] = [None] * (1 + max([*model.values(), *added], default=-1))
        for content, token in model.items():
            tokens[token] = rules.bytes_of(content)
        for token, content in added.items():
            tokens[token] = content.encode()
        if not tokens:
            raise UsageError(f"{where}: the tokenizer has no tokens")
        return cls(tokenizer, tokens, rules, frozenset(added), special)

    @property
    def size(self) -> int:
        """One more than the highest id."""
        return len(self._tokens)

    @property
    def leading_spaces(self) -> int:
        """How many spaces, where there are any, `decode` takes off the front of a text."""
        return self._rules.leading_spaces

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` stands for; of an added token, its text in UTF-8; of a hole, nothing."""
        return self._tokens[self._checked(token)] or b""

    def is_special(self, token: int) -> bool:
        """Whether `token` steers the model and is no part of the text."""
        return self._checked(token) in self._special

    def id_of(self, content: str) -> int | None:
        """The id of the token that the tokenizer writes as `content`, or None."""
        found = self._tokenizer.token_to_id(content)
        return None if found is None else int(found)

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """Token ids of `text`, special tokens in it recognised.

        `add_special` adds what the tokenizer puts around a text by itself (a BOS, where the model wants one).
        Raises UsageError for a text with half a surrogate pair, which has no bytes.
        """
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special).ids)
        except TypeError as problem:
            raise UsageError("text: must be Unicode; it holds half of a surrogate pair") from problem

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids` without special tokens; bytes that are no UTF-8 become U+FFFD."""
        text = b"".join(self._visible(token) for token in ids).decode(errors="replace")
        return self._rules.strip(text, self.leading_spaces)[0]

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 over every id: its flag (0 plain, 1 added, 2 hole), length (u32 little-endian) and bytes.

        "Added" means matched in the text before anything is split. Whether such a token counts as special is
        left out on purpose: file formats disagree on it for one and the same tokenizer.
        """
        return hashlib.sha256(self._serialized(0, self.size)).digest()

    @cached_property
    def chunks(self) -> list[int]:
        """CRC-32 of the fingerprint's input for each run of CHUNK_IDS ids: where two tokenizers differ."""
        return [
            zlib.crc32(self._serialized(first, min(first + CHUNK_IDS, self.size)))
            for first in range(0, self.size, CHUNK_IDS)
        ]

    def _visible(self, token: int) -> bytes:
        return b"" if self.is_special(token) else self.token_bytes(token)

    def _checked(self, token: int) -> int:
        if not 0 <= token < len(self._tokens):
            raise UsageError(
                f"token: {token} is not in the vocabulary, it must be 0 to {len(self._tokens) - 1}"
            )
        return token

    def _entry(self, token: int) -> tuple[int, bytes]:
        content = self._tokens[token] if token < len(self._tokens) else None
        if content is None:
            return _HOLE, b""
        return (_ADDED if token in self._added else _PLAIN), content

    def _serialized(self, first: int, last: int) -> bytes:
        parts = []
        for token in range(first, last):
            flag, content = self._entry(token)
            parts.append(struct.pack("<BI", flag, len(content)))
            parts.append(content)
        return b"".join(parts)


class StreamDecoder:
    """Turns a stream of token ids into text that never has to be taken back. One stream each, one thread at a
    time.

    All pushes and `finish` together give `Vocabulary.decode` of all ids.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strippable = vocabulary.leading_spaces

    def push(self, ids: Sequence[int]) -> str:
        """The text that `ids` complete. Bytes of an unfinished character wait for the next push."""
        return self._emit(b"".join(self._vocabulary._visible(token) for token in ids), final=False)

    def finish(self) -> str:
        """What is left at the end: U+FFFD for a character that never completed, else nothing."""
        return self._emit(b"", final=True)

    def _emit(self, data: bytes, final: bool) -> str:
        text = self._utf8.decode(data, final)
        text, self._strippable = ByteRules.strip(text, self._strippable)
        return text


def _read(source: str | Path) -> tuple[str, str]:
    if isinstance(source, str) and source.lstrip()[:1] == "{":
        return source, "tokenizer"
    try:
        return Path(source).read_text(encoding="utf-8"), str(source)
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"{source}: cannot read the tokenizer ({problem})") from problem
