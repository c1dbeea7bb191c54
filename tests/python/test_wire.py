"""The wire codec: golden bytes, round trips, sizes, limits and hostile input."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec_edge import _core

WIRE = Path(__file__).parents[1] / "vectors" / "wire"
DESCRIBED = json.loads((WIRE / "messages.json").read_text(encoding="utf-8"))

TOKEN = st.integers(0, 2**31 - 1)
U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
# Whole numbers of an eighth are exact in single precision, so that a round trip compares equal.
EIGHTHS = st.integers(0, 800).map(lambda n: n / 8)
TEXT = st.text(st.characters(codec="utf-8"), max_size=60)


def build(kind: str, fields: dict[str, Any]) -> Any:
    """The message that an entry of messages.json describes."""
    values = dict(fields)
    for name in ("tokenizer", "session", "resume", "prompt_zstd", "held_digest"):
        if name in values:
            values[name] = bytes.fromhex(values[name])
    for name, kind_of in (
        ("finish", _core.Finish),
        ("code", _core.FaultCode),
        ("mode", _core.Mode),
        ("grammar_kind", _core.Grammar),
    ):
        if name in values:
            values[name] = kind_of[values[name]]
    if "logprobs" in values and kind == "Verdict":
        values["logprobs"] = [_core.TokenLogprob(**entry) for entry in values["logprobs"]]
    if "sparse" in values:
        values["sparse"] = _core.SparseRow(**values["sparse"])
    if "rules" in values:
        values["rules"] = _core.SamplingRules(**values["rules"])
    return getattr(_core, kind)(**values)


def golden(name: str) -> bytes:
    return bytes.fromhex((WIRE / f"{name}.hex").read_text())


@st.composite
def trees(draw: st.DrawFn) -> Any:
    tokens = draw(st.lists(TOKEN, max_size=40))
    first = draw(st.integers(1, 2**32 - 100))
    offsets = [draw(st.integers(0, min(255, first + i - 1))) for i in range(len(tokens))]
    return _core.Draft(
        request=draw(U16),
        round=draw(U16),
        base=draw(U32),
        first_node=first,
        parent_offsets=offsets if draw(st.booleans()) else [],
        tokens=tokens,
        free_run=draw(st.booleans()),
    )


@st.composite
def residual_drafts(draw: st.DrawFn) -> Any:
    tokens = draw(st.lists(TOKEN, max_size=20))
    return _core.Draft(
        request=draw(U16),
        base=draw(U32),
        tokens=tokens,
        q=draw(st.sampled_from([[], draw(st.lists(U16, min_size=len(tokens), max_size=len(tokens)))])),
        resampled=draw(st.integers(-1, 2**31 - 1)),
        more_tail=False,
    )


@st.composite
def logprobs(draw: st.DrawFn) -> Any:
    each = draw(st.integers(0, 20))
    alternatives = st.lists(st.tuples(TOKEN, EIGHTHS), min_size=each, max_size=each)
    return draw(st.lists(st.builds(_core.TokenLogprob, logprob=EIGHTHS, top=alternatives), max_size=8))


TOKENS = st.lists(TOKEN, max_size=10)
EIGHTH_PARTS = st.integers(0, 8).map(lambda n: n / 8)
WEIGHTED = st.tuples(TOKEN, EIGHTH_PARTS)
RULES = st.builds(
    _core.SamplingRules,
    temperature=EIGHTHS,
    top_k=st.integers(-5, 2**31 - 1),
    top_p=EIGHTHS,
    min_p=EIGHTHS,
    seed=st.integers(0, 2**64 - 1),
    repetition_penalty=EIGHTHS,
    presence_penalty=EIGHTHS,
    frequency_penalty=EIGHTHS,
    logit_bias=st.lists(st.tuples(TOKEN, EIGHTHS), max_size=10),
    banned=TOKENS,
    allowed=TOKENS,
    min_tokens=U32,
    carried=U32,
)
MESSAGES = st.one_of(
    trees(),
    residual_drafts(),
    st.builds(_core.Draft, request=U16, base=U32, more_tail=st.just(True)),
    st.builds(
        _core.Hello,
        version=U16,
        tokenizer=st.binary(min_size=32, max_size=32),
        vocabulary=U32,
        drafter=TEXT,
        chunks=st.lists(U32, max_size=20),
        resume=st.sampled_from([b"", bytes(range(16))]),
    ),
    st.builds(
        _core.Welcome,
        version=U16,
        vocabulary=U32,
        max_context=U32,
        max_nodes=U32,
        session=st.binary(min_size=16, max_size=16),
        target=TEXT,
        keep_s=U32,
    ),
    st.builds(
        _core.Open,
        request=U16,
        prompt=st.lists(TOKEN, max_size=60),
        rules=RULES,
        stop_ids=TOKENS,
        max_tokens=U32,
        free_run=st.booleans(),
        logprobs=st.integers(-1, 20),
        mode=st.sampled_from(list(_core.Mode)),
    ),
    st.builds(
        _core.Open,
        prompt_zstd=st.binary(max_size=60),
        held=st.integers(1, 2**32 - 1),
        held_digest=st.binary(min_size=16, max_size=16),
    ),
    st.builds(
        _core.Open,
        grammar_kind=st.sampled_from([_core.Grammar.json_schema, _core.Grammar.regex]),
        grammar=TEXT.filter(len),
    ),
    st.builds(
        _core.Verdict,
        request=U16,
        base=U32,
        sparse=st.builds(
            _core.SparseRow,
            head=st.lists(WEIGHTED, min_size=1, max_size=10),
            tail_mass=EIGHTH_PARTS,
            tail=st.lists(WEIGHTED, max_size=10),
        ),
        logprobs=logprobs(),
    ),
    st.builds(
        _core.Verdict,
        request=U16,
        round=U16,
        base=U32,
        accepted_node=U32,
        tokens=st.lists(TOKEN, min_size=1, max_size=10),
        finish=st.sampled_from(list(_core.Finish)),
        queue_us=U32,
        verify_us=U32,
        logprobs=logprobs(),
        reused=U32,
    ),
    st.builds(_core.Cancel, request=U16),
    st.builds(_core.Close, reason=TEXT),
    st.builds(
        _core.Fault,
        request=U16,
        code=st.sampled_from(list(_core.FaultCode)),
        message=TEXT,
        retry_after_ms=U32,
    ),
)


def test_every_golden_file_is_described() -> None:
    assert {path.stem for path in WIRE.glob("*.hex")} == set(DESCRIBED)


@pytest.mark.parametrize("name", sorted(DESCRIBED))
def test_golden_bytes(name: str) -> None:
    message = build(DESCRIBED[name]["type"], DESCRIBED[name]["fields"])
    assert _core.encode(message).hex() == golden(name).hex()
    assert _core.decode(golden(name)) == message


@settings(max_examples=300, deadline=None)
@given(MESSAGES)
def test_round_trip(message: Any) -> None:
    assert _core.decode(_core.encode(message)) == message


def test_sizes_keep_their_promises() -> None:
    ids = [151_000 + i for i in range(64)]
    chain = _core.Draft(request=1, round=9, base=5000, first_node=700, tokens=ids[:8])
    tree = _core.Draft(
        request=1, round=9, base=5000, first_node=700, tokens=ids, parent_offsets=[0, *range(1, 64)]
    )
    verdict = _core.Verdict(request=1, round=9, base=5000, tokens=ids[:1], queue_us=100, verify_us=80_000)
    assert len(_core.encode(chain)) <= 80
    assert len(_core.encode(tree)) < 350
    assert len(_core.encode(verdict)) <= 60


def test_sizes_of_residual_messages() -> None:
    ids = [151_000 + i for i in range(32)]
    draft = _core.Draft(base=5000, tokens=ids[:8], q=range(8), resampled=151_000)
    row = _core.SparseRow(head=[(i, 0.01) for i in ids], tail_mass=0.1, tail=[(i, 0.001) for i in ids[:4]])
    assert len(_core.encode(draft)) <= 108
    assert len(_core.encode(_core.Verdict(base=5000, sparse=row))) <= 380


def test_messages_are_values() -> None:
    draft = _core.Draft(request=1, base=2, tokens=[3, 4])
    assert draft == _core.Draft(request=1, base=2, tokens=[3, 4])
    assert draft != _core.Draft(request=1, base=2, tokens=[3, 5])
    assert draft != _core.Cancel(request=1)
    assert repr(draft) == (
        "Draft(request=1, round=0, base=2, first_node=1, parent_offsets=[], tokens=[3, 4], free_run=False, "
        "q=[], resampled=-1, more_tail=False, wants_hint=False)"
    )
    draft.tokens = [7]
    assert draft.tokens == [7]
    with pytest.raises(TypeError, match="no field 'token' in a Draft"):
        _core.Draft(token=[1])
    with pytest.raises(_core.UsageError, match="tokenizer has 3 bytes; 32 are needed"):
        _core.Hello(tokenizer=b"abc")


def _open(**rules: Any) -> Any:
    return _core.Open(rules=_core.SamplingRules(**rules))


def _verdict(**fields: Any) -> Any:
    return _core.Verdict(tokens=[1], **fields)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (_core.Draft(tokens=[1, -2]), r"Draft.tokens\[1\] is -2"),
        (_core.Draft(tokens=[1] * 257), "Draft.tokens has 257 entries; at most 256"),
        (_core.Draft(tokens=[1, 2], parent_offsets=[0]), "parent_offsets has 1 entries for 2 tokens"),
        (_core.Draft(tokens=[1, 2], parent_offsets=[0, 2]), r"parent_offsets\[1\] is 2, past the first node"),
        (_core.Draft(first_node=0), "Draft.first_node is 0"),
        (_core.Draft(first_node=2**32 - 1, tokens=[1, 2]), "would pass 2\\^32"),
        (_core.Open(prompt=[1] * 131_073), "Open.prompt has 131073 entries"),
        (_core.Open(prompt=[1], prompt_zstd=b"x"), "Open.prompt and Open.prompt_zstd are both there"),
        (
            _core.Open(prompt_zstd=bytes(3 * 131_072 + 1)),
            "Open.prompt_zstd has 393217 bytes; at most 393216",
        ),
        (_core.Open(held=1), "Open.held_digest has 0 bytes; 16 would be right"),
        (_core.Open(held=1, held_digest=bytes(15)), "Open.held_digest has 15 bytes; 16 would be right"),
        (_core.Open(held_digest=bytes(16)), "Open.held_digest has 16 bytes; 0 would be right"),
        (_core.Hello(resume=bytes(15)), "Hello.resume has 15 bytes; 16 would be right"),
        (_core.Open(stop_ids=[1] * 65), "Open.stop_ids has 65 entries"),
        (_core.Verdict(), "Verdict.tokens is empty"),
        (_core.Draft(tokens=[1, 2], q=[5]), "Draft.q has 1 entries for 2 tokens"),
        (_core.Draft(tokens=[1, 2], q=[5, 6], parent_offsets=[0, 0]), "Draft.q goes with a chain"),
        (_core.Draft(resampled=-2), "Draft.resampled is -2"),
        (_core.Draft(tokens=[1], more_tail=True), "Draft.more_tail asks for samples and nothing else"),
        (_core.Draft(resampled=1, more_tail=True), "Draft.more_tail asks"),
        (_core.Draft(free_run=True, more_tail=True), "Draft.more_tail asks"),
        (_open(logit_bias=[(1, 0.5), (-3, 0.5)]), r"Open.logit_bias\[1\] is -3"),
        (_open(logit_bias=[(i, 0.5) for i in range(4097)]), "Open.logit_bias has 4097 entries"),
        (_open(banned=[-1]), r"Open.banned\[0\] is -1"),
        (_open(allowed=[7] * 4097), "Open.allowed has 4097 entries"),
        (_core.Open(logprobs=21), "Open.logprobs is 21"),
        (_core.Open(logprobs=-2), "Open.logprobs is -2"),
        (_core.Open(grammar="x"), "Open.grammar has 1 bytes for grammar_kind 0"),
        (_core.Open(grammar_kind=_core.Grammar.regex), "Open.grammar has 0 bytes for grammar_kind 2"),
        (
            _core.Open(grammar_kind=_core.Grammar.regex, grammar="x" * 65_537),
            "Open.grammar has 65537 bytes; at most 65536",
        ),
        (_verdict(logprobs=[_core.TokenLogprob()] * 259), "Verdict.logprobs has 259 entries"),
        (
            _verdict(logprobs=[_core.TokenLogprob(top=[(1, 0.0)]), _core.TokenLogprob()]),
            r"Verdict.logprobs\[1\] has 0 alternatives",
        ),
        (_verdict(logprobs=[_core.TokenLogprob(top=[(1, 0.0)] * 21)]), "has 21 alternatives; at most 20"),
        (_verdict(logprobs=[_core.TokenLogprob(logprob=math.nan)]), r"Verdict.logprobs\[0\] is nan"),
        (_verdict(logprobs=[_core.TokenLogprob(top=[(1, -math.inf)])]), r"logprobs\[0\].top\[0\] is -inf"),
        (_verdict(logprobs=[_core.TokenLogprob(top=[(-1, 0.0)])]), r"logprobs\[0\].top\[0\] is -1"),
        (_verdict(sparse=_core.SparseRow(head=[(1, 1.0)])), "Verdict.sparse is for the edge to draw from"),
        (_core.Verdict(sparse=_core.SparseRow()), "Verdict.sparse.head is empty"),
        (_core.Verdict(sparse=_core.SparseRow(head=[(1, 1.5)])), r"Verdict.sparse.head\[0\] is 1.5"),
        (_core.Verdict(sparse=_core.SparseRow(head=[(-1, 0.5)])), r"Verdict.sparse.head\[0\] is -1"),
        (
            _core.Verdict(sparse=_core.SparseRow(head=[(1, 0.5)], tail=[(1, math.nan)])),
            r"Verdict.sparse.tail\[0\] is nan",
        ),
        (
            _core.Verdict(sparse=_core.SparseRow(head=[(1, 0.5)], tail_mass=-0.1)),
            "Verdict.sparse.tail_mass is -0.1",
        ),
        (
            _core.Verdict(sparse=_core.SparseRow(head=[(1, 0.5)] * 4097)),
            "Verdict.sparse.head has 4097 entries; at most 4096",
        ),
        (_core.Fault(message="x" * 4097), "Fault.message has 4097 bytes"),
        (_core.Close(reason="ü" * 2049), "Close.reason has 4098 bytes"),
        (_core.Hello(drafter="x" * 5000), "Hello.drafter has 5000 bytes"),
        (_core.Hello(chunks=[1] * 300_000), "at most 1048576 are allowed"),
    ],
)
def test_what_must_not_be_sent_is_refused(message: Any, says: str) -> None:
    with pytest.raises(_core.UsageError, match=says):
        _core.encode(message)


def test_limits_hold_on_arrival() -> None:
    draft = _core.encode(_core.Draft(tokens=[1] * 20))
    with pytest.raises(_core.PeerError, match=r"Draft.tokens has 20 entries; at most 8"):
        _core.decode(draft, _core.Limits(max_nodes=8))
    with pytest.raises(_core.PeerError, match=f"a message has {len(draft)} bytes; at most 64"):
        _core.decode(draft, _core.Limits(max_bytes=64))
    with pytest.raises(_core.PeerError, match=r"Open.prompt has 3 entries"):
        _core.decode(_core.encode(_core.Open(prompt=[1, 2, 3])), _core.Limits(max_prompt=2))
    with pytest.raises(_core.PeerError, match=r"Close.reason has 5 bytes"):
        _core.decode(_core.encode(_core.Close(reason="hello")), _core.Limits(max_text=4))


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("close", b"done", b"d\xffne", "Close.reason is not UTF-8 at byte 1"),
        ("close", b"done", b"\xed\xa0\x80e", "not UTF-8 at byte 0"),
        ("cancel", b"ACCA", b"ACXX", "unknown identifier"),
        ("draft_wide_ids", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", "Draft.tokens holds the id 4294967295"),
    ],
)
def test_broken_content_is_the_peers_fault(name: str, old: bytes, new: bytes, says: str) -> None:
    data = golden(name)
    assert data.count(old) == 1
    with pytest.raises(_core.PeerError, match=says):
        _core.decode(data.replace(old, new))


@pytest.mark.parametrize("data", [b"", b"\0", b"\0" * 8, b"{}", b"\xff" * 64, b"\x08\0\0\0ACDR"])
def test_noise_is_the_peers_fault(data: bytes) -> None:
    with pytest.raises(_core.PeerError):
        _core.decode(data)


def test_mutations_decode_to_a_valid_message_or_not_at_all() -> None:
    random_ = random.Random(20)
    for name in sorted(DESCRIBED):
        for _ in range(400):
            data = bytearray(golden(name))
            for _ in range(random_.randint(1, 4)):
                data[random_.randrange(len(data))] = random_.randrange(256)
            if random_.random() < 0.3:
                del data[random_.randrange(len(data)) :]
            try:
                message = _core.decode(bytes(data))
            except _core.PeerError:
                continue
            repr(message)
            _core.encode(message)  # what was let in keeps every invariant
