"""Which bytes a tokenizer's token strings stand for, by the decoder that its tokenizer.json declares."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from acespec_edge.errors import UsageError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    # Byte-level BPE writes each byte as one visible character: printable Latin-1 as itself, the others, in
    # order, from U+0100 upwards.
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in visible}
    hidden = (byte for byte in range(256) if byte not in visible)
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(hidden)})
    return alphabet


BYTE_OF = _byte_alphabet()
"""The character that stands for a byte in byte-level tokens -> that byte; a bijection onto 0..255."""


@dataclass(frozen=True)
class ByteRules:
    """How token strings become bytes, for byte-level BPE or SentencePiece style tokenizers."""

    byte_level: bool
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    leading_spaces: int = 0  # spaces that the decoder takes off the front of a whole text

    @classmethod
    def from_decoder(cls, decoder: dict[str, Any] | None, where: str) -> ByteRules:
        """Reads the `decoder` section of a tokenizer.json. Raises UsageError for one that is not exact on
        bytes."""
        if decoder is None:
            raise UsageError(
                f"{where}: the tokenizer has no decoder; ByteLevel or a SentencePiece style is needed"
            )
        steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        if [step["type"] for step in steps] == ["ByteLevel"]:
            return cls(byte_level=True)
        fallback, replacements, spaces = False, [], 0
        for step in steps:
            kind = step["type"]
            if kind == "Replace" and "String" in step["pattern"]:
                replacements.append((step["pattern"]["String"], step["content"]))
            elif kind == "ByteFallback":
                fallback = True
            elif kind == "Metaspace":
                replacements.append((step["replacement"], " "))
                spaces = int(step.get("prepend_scheme", "always") != "never")
            elif kind == "Strip" and step["content"] == " " and step["stop"] == 0:
                spaces = step["start"]
            elif kind != "Fuse":
                raise UsageError(
                    f"{where}: decoder {kind} is not supported; ByteLevel or a SentencePiece style (Replace, "
                    "ByteFallback, Fuse, Strip, Metaspace) is needed"
                )
        return cls(False, fallback, tuple(replacements), spaces)

    def bytes_of(self, content: str) -> bytes:
        """The bytes of the token written as `content`."""
        if self.byte_level:
            try:
                return bytes(BYTE_OF[character] for character in content)
            except KeyError:  # a string outside the alphabet stands for itself
                return content.encode()
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(content)):
            return bytes([int(match[1], 16)])
        for pattern, replacement in self.replacements:
            content = content.replace(pattern, replacement)
        return content.encode()

    @staticmethod
    def strip(text: str, spaces: int) -> tuple[str, int]:
        """Takes up to `spaces` spaces off the front; also what may still be taken off a text that follows."""
        if not spaces or not text:
            return text, spaces
        kept = text.lstrip(" ")
        taken = min(len(text) - len(kept), spaces)
        return text[taken:], 0 if kept or taken == spaces else spaces - taken
