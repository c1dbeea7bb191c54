"""Tokens to bytes, streams to text, fingerprints."""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from acespec_edge.errors import UsageError
from acespec_edge.token_bytes import BYTE_OF
from acespec_edge.vocabulary import StreamDecoder, Vocabulary
from tests.python.tokenizer_kit import PLAIN_ADDED, SPECIAL, byte_level_json, edited, sentencepiece_json

BYTES = Vocabulary.from_tokenizer_json(byte_level_json())
PIECES = Vocabulary.from_tokenizer_json(sentencepiece_json())
BOTH = pytest.mark.parametrize("vocabulary", [BYTES, PIECES], ids=["byte-level", "sentencepiece"])

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def byte_token(vocabulary: Vocabulary, byte: int) -> int:
    return next(token for token in range(vocabulary.size) if vocabulary.token_bytes(token) == bytes([byte]))


def streamed(vocabulary: Vocabulary, pieces: list[list[int]]) -> list[str]:
    decoder = StreamDecoder(vocabulary)
    return [*(decoder.push(piece) for piece in pieces), decoder.finish()]


@given(st.text())
def test_byte_level_text_survives_the_round_trip(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text)) == text.replace(SPECIAL, "")


@given(st.lists(st.lists(st.integers(0, BYTES.size - 1), max_size=4), max_size=12))
def test_byte_level_stream_equals_the_tokenizers_own_decode(pieces: list[list[int]]) -> None:
    ids = [token for piece in pieces for token in piece]
    whole = Tokenizer.from_str(byte_level_json()).decode(ids, skip_special_tokens=True)
    assert BYTES.decode(ids) == whole
    assert "".join(streamed(BYTES, pieces)) == whole


@given(st.lists(st.lists(st.integers(0, PIECES.size - 1), max_size=4), max_size=12))
def test_sentencepiece_stream_equals_the_whole_decode(pieces: list[list[int]]) -> None:
    ids = [token for piece in pieces for token in piece]
    whole = PIECES.decode(ids)
    assert "".join(streamed(PIECES, pieces)) == whole
    if REPLACEMENT not in whole:  # the library replaces a whole run of bytes when one of them is wrong
        assert Tokenizer.from_str(sentencepiece_json()).decode(ids, skip_special_tokens=True) == whole


@BOTH
@given(data=st.data())
def test_no_text_is_ever_taken_back(vocabulary: Vocabulary, data: st.DataObject) -> None:
    """Whatever follows, what was pushed so far is the beginning of the whole text."""
    ids = data.draw(st.lists(st.integers(0, vocabulary.size - 1), max_size=10))
    more = data.draw(st.lists(st.integers(0, vocabulary.size - 1), max_size=10))
    assert vocabulary.decode(ids + more).startswith(StreamDecoder(vocabulary).push(ids))


@BOTH
@given(st.text(st.characters(min_codepoint=0x80, exclude_categories=["Cs"]), min_size=1, max_size=4))
def test_a_character_appears_with_its_last_byte(vocabulary: Vocabulary, text: str) -> None:
    decoder = StreamDecoder(vocabulary)
    for character in text:
        *first, last = (byte_token(vocabulary, byte) for byte in character.encode())
        assert [decoder.push([token]) for token in first] == [""] * len(first)
        assert decoder.push([last]) == character
    assert decoder.finish() == ""


EMOJI = "\N{GRINNING FACE}".encode()
CUTS = [cuts for count in (1, 2, 3) for cuts in itertools.combinations(range(1, len(EMOJI)), count)]


@pytest.mark.parametrize("cuts", CUTS)
def test_u1_a_character_of_two_to_four_tokens_over_any_border(cuts: tuple[int, ...]) -> None:
    parts = [EMOJI[first:last] for first, last in itertools.pairwise([0, *cuts, len(EMOJI)])]
    symbol = {byte: character for character, byte in BYTE_OF.items()}
    entries = ["a", *("".join(symbol[byte] for byte in part) for part in parts), "b"]
    tokenizer = Tokenizer(models.BPE({entry: index for index, entry in enumerate(entries)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    vocabulary = Vocabulary.from_tokenizer_json(tokenizer.to_str())
    ids = list(range(len(entries)))
    for borders in itertools.product([False, True], repeat=len(ids) - 1):
        blocks = [[ids[0]]]
        for token, border in zip(ids[1:], borders, strict=True):
            if border:
                blocks.append([])
            blocks[-1].append(token)
        pieces = streamed(vocabulary, blocks)
        assert "".join(pieces) == vocabulary.decode(ids) == f"a{EMOJI.decode()}b"
        assert not any(REPLACEMENT in piece for piece in pieces)


@BOTH
def test_wrong_bytes_are_replaced_once_certain(vocabulary: Vocabulary) -> None:
    decoder = StreamDecoder(vocabulary)
    lead, follow, letter = (byte_token(vocabulary, byte) for byte in (0xF0, 0x9F, ord("a")))
    assert decoder.push([lead, follow]) == ""
    assert decoder.push([letter]) == REPLACEMENT + "a"
    assert decoder.push([lead]) == ""
    assert decoder.finish() == REPLACEMENT


def test_special_tokens_yield_no_text_and_other_added_tokens_do() -> None:
    special, plain = BYTES.id_of(SPECIAL), BYTES.id_of(PLAIN_ADDED)
    assert special is not None and plain is not None
    assert BYTES.encode(f"a{SPECIAL}{PLAIN_ADDED}")[1:] == [special, plain]
    assert (BYTES.is_special(special), BYTES.is_special(plain)) == (True, False)
    assert BYTES.token_bytes(special) == SPECIAL.encode()
    assert BYTES.decode([special, plain]) == PLAIN_ADDED
    # Half a character before a special token goes on after it.
    lead, follow = (byte_token(BYTES, byte) for byte in "é".encode())
    assert streamed(BYTES, [[lead], [special], [follow]]) == ["", "", "é", ""]


def test_sentencepiece_drops_one_leading_space() -> None:
    ids = PIECES.encode(" ab")
    assert b"".join(PIECES.token_bytes(token) for token in ids) == b"  ab"
    assert PIECES.decode(ids) == " ab"
    space = PIECES.id_of("▁")
    assert space is not None
    assert streamed(PIECES, [[space], [space], ids]) == ["", " ", "  ab", ""]


def test_encode_adds_a_bos_only_when_asked() -> None:
    vocabulary = Vocabulary.from_tokenizer_json(byte_level_json(bos=True))
    assert vocabulary.encode("a", add_special=True) == [vocabulary.id_of(SPECIAL), *vocabulary.encode("a")]


def test_fingerprint_is_the_documented_serialization() -> None:
    def entry(token: int) -> bytes:
        added = BYTES.token_bytes(token).decode(errors="replace") in (SPECIAL, PLAIN_ADDED)
        return struct.pack("<BI", added, len(BYTES.token_bytes(token))) + BYTES.token_bytes(token)

    serialized = b"".join(entry(token) for token in range(BYTES.size))
    assert BYTES.fingerprint == hashlib.sha256(serialized).digest()
    assert BYTES.chunks == [zlib.crc32(serialized)]


def test_fingerprint_ignores_what_file_formats_disagree_on() -> None:
    document = json.loads(byte_level_json())
    for token in document["added_tokens"]:
        token["special"] = True
    other = Vocabulary.from_tokenizer_json(json.dumps(document))
    assert other.fingerprint == BYTES.fingerprint


def test_one_other_token_is_another_fingerprint() -> None:
    document = json.loads(byte_level_json())
    document["model"]["vocab"]["Ġtha"] = document["model"]["vocab"].pop("Ġthe")
    document["model"]["merges"] = []
    other = Vocabulary.from_tokenizer_json(json.dumps(document))
    assert other.fingerprint != BYTES.fingerprint


def test_holes_and_a_longer_vocabulary_differ() -> None:
    document = json.loads(byte_level_json())
    added = document["added_tokens"][-1]
    hole, added["id"] = added["id"], added["id"] + 1000
    document["model"]["vocab"][added["content"]] = added["id"]
    other = Vocabulary.from_tokenizer_json(json.dumps(document))
    assert (other.size, other.token_bytes(hole)) == (added["id"] + 1, b"")
    assert [a == b for a, b in zip(other.chunks, BYTES.chunks, strict=False)] == [False]
    assert len(other.chunks) == 2


def test_truncation_in_the_file_is_not_applied() -> None:
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    vocabulary = Vocabulary.from_tokenizer_json(edited(byte_level_json(), truncation=cut))
    assert vocabulary.decode(vocabulary.encode("remember the town")) == "remember the town"


def test_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(byte_level_json(), encoding="utf-8")
    assert Vocabulary.from_tokenizer_json(file).fingerprint == BYTES.fingerprint
    assert Vocabulary.from_tokenizer_json(str(file)).size == BYTES.size


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "not a usable tokenizer.json"),
        (edited(byte_level_json(), decoder=None), "no decoder"),
        (
            edited(byte_level_json(), decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}),
            "WordPiece",
        ),
        ("/nowhere/tokenizer.json", "cannot read the tokenizer"),
    ],
)
def test_an_unusable_tokenizer_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Vocabulary.from_tokenizer_json(text)


@BOTH
def test_ids_outside_the_vocabulary_are_refused(vocabulary: Vocabulary) -> None:
    for token in (-1, vocabulary.size):
        with pytest.raises(UsageError, match=f"0 to {vocabulary.size - 1}"):
            vocabulary.token_bytes(token)
