"""Texts that begin alike, and prompts in fewer bytes: against the obvious way, and against hostile bytes."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec_edge import _core
from acespec_edge.errors import PeerError
from acespec_edge.prefix import common_prefix, digest_of, takes_over, text_of
from acespec_edge.prompt_codec import compress, expand

WIRE = Path(__file__).parents[1] / "vectors" / "wire"
FEW = st.lists(st.integers(0, 2), max_size=40)
IDS = st.lists(st.integers(0, 2**24 - 1), min_size=1, max_size=20)
PROMPT = [(7 * place) % 50 + 49_000 for place in range(400)]


def frame_of(plain: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(plain)


@settings(deadline=None)
@given(FEW, FEW)
def test_the_common_prefix_is_what_a_loop_finds(one: list[int], other: list[int]) -> None:
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    assert common_prefix(text_of(one), text_of(other)) == shared


def test_a_digest_is_blake2b_of_32_bit_ids() -> None:
    assert digest_of(text_of([1, 258, 65535])).hex() == "a64bc4ebd67532b159f21d93345c95ee"
    assert digest_of(text_of([1, 258])) != digest_of(text_of([1, 258, 0]))


def test_who_has_less_to_lose_than_to_use_takes_a_text_over() -> None:
    assert takes_over(5, 10) and takes_over(10, 10) and not takes_over(4, 10)


@settings(deadline=None)
@given(IDS, st.integers(1, 60))
def test_what_is_compressed_comes_back_and_is_shorter(ids: list[int], times: int) -> None:
    prompt = ids * times
    frame = compress(prompt)
    if frame is None:
        assert times < 20, "repetition pays"
        return
    assert expand(frame, len(prompt)) == prompt
    assert len(frame) < len(prompt) * (2 if max(prompt) < 1 << 16 else 3)


def test_what_would_not_be_shorter_or_does_not_fit_stays_packed() -> None:
    assert compress([]) is None
    assert compress([1, 2, 3]) is None
    assert compress([2**24] * 1000) is None
    assert compress(np.random.default_rng(0).integers(0, 1 << 16, 500).tolist()) is None


def test_the_golden_frame_is_read() -> None:
    message = _core.decode(bytes.fromhex((WIRE / "open_zstd.hex").read_text()))
    assert expand(message.prompt_zstd, 1000) == PROMPT
    described = json.loads((WIRE / "messages.json").read_text(encoding="utf-8"))["open_zstd"]
    assert described["fields"]["prompt_zstd"] == message.prompt_zstd.hex()


GOOD = compress(PROMPT) or b""
DIFFERENT = bytes([*GOOD[:-3], GOOD[-3] ^ 0x55, *GOOD[-2:]])


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"", "not a Zstandard frame"),
        (b"\x00" * 40, "not a Zstandard frame"),
        (GOOD[:5], "not a Zstandard frame"),
        (GOOD[:-1], "cannot be read"),
        (GOOD + b"\x00", "cannot be read"),
        (GOOD + GOOD, "cannot be read"),
        (frame_of(b"abcd"), "says it holds 4 bytes"),
        (frame_of(b""), "says it holds 0 bytes"),
        (frame_of(bytes(3 * 401)), "says it holds 1203 bytes: 3 for each of 1 to 400 ids"),
        (frame_of(bytes(300), write_content_size=False), "says it holds no size"),
        (b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc", "cannot be read"),
    ],
)
def test_what_is_no_prompt_is_refused(frame: bytes, words: str) -> None:
    with pytest.raises(PeerError, match=words):
        expand(frame, 400)


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    bomb = frame_of(bytes(3 << 28))
    assert len(bomb) < 1 << 17
    tracemalloc.start()
    try:
        with pytest.raises(PeerError, match="says it holds 805306368 bytes"):
            expand(bomb, 131_072)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_frame_that_holds_more_than_it_says_is_refused() -> None:
    small, large = frame_of(bytes(range(60))), frame_of(bytes(range(63)))
    lying = large.replace(bytes([63]), bytes([60]), 1)
    assert zstandard.frame_content_size(lying) == zstandard.frame_content_size(small) == 60
    with pytest.raises(PeerError):
        expand(lying, 400)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=80), st.integers(0, 40))
def test_any_bytes_are_read_or_refused(tail: bytes, kept: int) -> None:
    try:
        ids = expand(GOOD[:kept] + tail, 400)
    except PeerError:
        return
    assert len(ids) <= 400 and all(0 <= token < 1 << 24 for token in ids)
