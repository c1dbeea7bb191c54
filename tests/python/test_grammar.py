"""Grammars: masks against every text of small languages, along paths in any order, ends, and refusals."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec_edge import grammar as room
from acespec_edge.errors import EngineError, PeerError, UsageError
from acespec_edge.grammar import Grammar, Words
from acespec_edge.vocabulary import StreamDecoder, Vocabulary
from tests.python.engine_kit import Ring
from tests.python.tokenizer_kit import PLAIN_ADDED, SPECIAL, byte_level_json, sentencepiece_json

BYTES = Vocabulary.from_tokenizer_json(byte_level_json())
PIECES = Vocabulary.from_tokenizer_json(sentencepiece_json())
END = BYTES.id_of(SPECIAL) or 0

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "größe": {"type": "integer", "minimum": 0, "maximum": 250},
        "mood": {"enum": ["été", "日本", None, 7]},
        "tags": {"type": "array", "items": {"type": "object", "properties": {"on": {"type": "boolean"}},
                 "required": ["on"], "additionalProperties": False}, "maxItems": 2},
    },
    "required": ["name", "größe", "mood", "tags"],
    "additionalProperties": False,
}  # fmt: skip


def compiled(
    kind: str, text: str, vocabulary: Vocabulary = BYTES, stop_ids: Sequence[int] = (END,)
) -> Grammar:
    return Grammar.compile(kind, text, vocabulary, stop_ids)


def regex(text: str) -> Grammar:
    return compiled("regex", text)


def schema(schema: object) -> Grammar:
    return compiled("json_schema", json.dumps(schema))


def allowed(mask: Words | None, vocabulary: Vocabulary = BYTES) -> set[int]:
    assert mask is not None
    assert mask.dtype == np.uint32
    assert mask.shape == (-(-vocabulary.size // 32),)
    return {token for token in range(32 * len(mask)) if mask[token // 32] >> (token % 32) & 1}


def spelled(path: Iterable[int], vocabulary: Vocabulary = BYTES) -> bytes:
    return b"".join(vocabulary.token_bytes(token) for token in path)


def expected(language: Sequence[bytes], path: Sequence[int], stop_ids: Sequence[int] = (END,)) -> set[int]:
    """The definition: a token is allowed when a text of the language begins with what it makes."""
    written = spelled(path)
    tokens = {
        token
        for token in range(BYTES.size)
        if token not in stop_ids and not BYTES.is_special(token) and BYTES.token_bytes(token)
        if any(text.startswith(written + BYTES.token_bytes(token)) for text in language)
    }
    return tokens | (set(stop_ids) if written in language else set())


def walk(grammar: Grammar, pick: Callable[[list[int]], int], longest: int = 400) -> list[int]:
    """Tokens that `pick` chooses among those allowed, up to a stop id."""
    tokens: list[int] = []
    while len(tokens) < longest:
        token = pick(sorted(allowed(grammar.mask([]))))
        assert grammar.accepts(token)
        grammar.commit([token])
        tokens.append(token)
        if token == END:
            break
    return tokens


WORDS = ["the", "other", "é", "日本", "", "t"]
LANGUAGES = {
    "(the|other|é|日本|t|){1,2}": ["".join(pair) for pair in itertools.product(WORDS, WORDS)],
    "a/b\\\\c|a/b\n": ["a/b\\c", "a/b\n"],
    "": [""],
    "\U0001f600{2,3}": ["\U0001f600" * 2, "\U0001f600" * 3],
    re.escape(f"{SPECIAL}{PLAIN_ADDED}"): [SPECIAL + PLAIN_ADDED],
    "in the town": ["in the town"],
}


@pytest.mark.parametrize("pattern", LANGUAGES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_mask_allows_what_some_text_goes_on_with(pattern: str, data: st.DataObject) -> None:
    language = [text.encode() for text in LANGUAGES[pattern]]
    grammar = regex(pattern)
    path: list[int] = []
    while True:
        tokens = allowed(grammar.mask(path))
        assert tokens == expected(language, path)
        if not tokens - {END}:
            break
        path.append(data.draw(st.sampled_from(sorted(tokens - {END}))))


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_paths_in_any_order_leave_no_trace(data: st.DataObject) -> None:
    grammar, committed = schema(PERSON), list[int]()
    paths: list[list[int]] = [[]]
    for _ in range(data.draw(st.integers(1, 12))):
        path = data.draw(st.sampled_from(paths))
        mask = grammar.mask(path)
        fresh = schema(PERSON)
        fresh.commit(committed)
        for token in path:
            assert fresh.accepts(token)
            fresh.commit([token])
        assert allowed(mask) == allowed(fresh.mask([]))
        assert {token for token in range(BYTES.size) if fresh.accepts(token)} == allowed(mask)
        assert fresh.allows_end == (END in allowed(mask))
        paths += [[*path, token] for token in data.draw(st.lists(st.sampled_from(sorted(allowed(mask)))))]
        paths = [path for path in paths if END not in path] or [[]]
        if data.draw(st.booleans()):
            step = data.draw(st.sampled_from(paths))
            grammar.commit(step)
            committed += step
            paths = [path[len(step) :] for path in paths if path[: len(step)] == step]


@pytest.mark.parametrize("seed", range(8))
def test_random_output_satisfies_the_schema(seed: int) -> None:
    choice = random.Random(seed).choice
    decoder = StreamDecoder(BYTES)
    text = decoder.push(walk(schema(PERSON), choice)) + decoder.finish()
    person = json.loads(text)
    assert list(person) == ["name", "größe", "mood", "tags"]
    assert isinstance(person["name"], str) and len(person["name"]) <= 6
    assert 0 <= person["größe"] <= 250
    assert person["mood"] in ["été", "日本", None, 7]
    assert len(person["tags"]) <= 2 and all(list(tag) == ["on"] for tag in person["tags"])


@pytest.mark.parametrize("layout", [{"separators": (",", ":")}, {}, {"indent": 4}, {"indent": "\t"}])
def test_every_usual_layout_is_allowed(layout: dict[str, object]) -> None:
    value = {"name": 'q"\\\n\u00e9', "größe": 0, "mood": "日本", "tags": [{"on": True}, {"on": False}]}
    grammar = schema(PERSON)
    for token in BYTES.encode(json.dumps(value, ensure_ascii=False, **layout)):  # type: ignore[arg-type]
        assert token in allowed(grammar.mask([]))
        grammar.commit([token])
    assert allowed(grammar.mask([])) == {END}


def test_blanks_cannot_go_on_for_ever() -> None:
    grammar = schema(PERSON)
    blank = {BYTES.encode(" ")[0], *BYTES.encode("\n"), *BYTES.encode("\t")}
    tokens = walk(grammar, lambda tokens: next(iter(set(tokens) & blank), tokens[0]), longest=60)
    assert spelled(tokens).strip(b"{ \n\t")


@pytest.mark.parametrize("kind", [bool, str, list, dict, int])
def test_a_schema_of_true_or_nothing_takes_any_json(kind: type) -> None:
    value = {bool: True, str: "é", list: [1, [None]], dict: {"a": {"b": 2.5}}, int: -7}[kind]
    for text in ("true", "{}"):
        grammar = compiled("json_schema", text)
        grammar.commit(BYTES.encode(json.dumps(value, ensure_ascii=False)))
        assert grammar.allows_end


def test_stop_ids_are_allowed_exactly_at_an_end() -> None:
    other = BYTES.encode("x")[0]
    grammar = compiled("regex", "ab?|x", stop_ids=[END, other])
    a, b = BYTES.encode("ab")
    assert allowed(grammar.mask([])) == {a}
    assert allowed(grammar.mask([a])) == {b, END, other}
    assert allowed(grammar.mask([a, b])) == {END, other}
    assert not grammar.allows_end and not grammar.accepts(END)
    grammar.commit([a])
    assert grammar.allows_end and grammar.accepts(other)
    grammar.commit([other])
    assert not grammar.allows_end and not grammar.accepts(END) and not grammar.accepts(b)
    assert grammar.mask([]) is None


def test_nothing_is_masked_where_nothing_can_be_committed() -> None:
    grammar = regex("abc")
    a, b, c = BYTES.encode("abc")
    for path in ([b], [a, c], [a, b, c, END], [a, b, c, END, a], [BYTES.size], [-1], [END]):
        assert grammar.mask(path) is None
    assert allowed(grammar.mask([a])) == {b}


def test_a_committed_token_must_be_allowed() -> None:
    grammar = regex("abc")
    a, b, c = BYTES.encode("abc")
    with pytest.raises(PeerError, match=f"output token 1 is {c}, which the grammar does not allow"):
        grammar.commit([a, c])
    assert allowed(grammar.mask([])) == {b}
    for token in (BYTES.size, -1, END):
        with pytest.raises(PeerError, match=f"output token 1 is {token}"):
            grammar.commit([token])
    grammar.commit([b, c, END])
    with pytest.raises(PeerError, match="output token 4"):
        grammar.commit([END])


def test_masks_are_the_callers_own() -> None:
    grammar = regex("[a-c]+")
    first = grammar.mask([])
    assert first is not None
    first[:] = 0
    assert allowed(grammar.mask([]))


def test_texts_are_those_that_the_decoder_shows() -> None:
    """A SentencePiece decoder takes a blank off the front; two ids may stand for one letter."""
    ends = [PIECES.id_of("</s>") or 0]
    grammar = Grammar.compile("regex", "(a|b)c| a", PIECES, ends)
    seen = set()
    waiting: list[list[int]] = [[]]
    while waiting:
        path = waiting.pop()
        for token in allowed(grammar.mask(path), PIECES):
            if token in ends:
                seen.add((PIECES.decode(path), spelled(path, PIECES)))
            else:
                waiting.append([*path, token])
    assert {text for text, _ in seen} == {"ac", "bc", " a"}
    assert {data for _, data in seen} == {b"ac", b" ac", b"bc", b" bc", b"  a"}
    both = {PIECES.id_of("a"), PIECES.id_of("<0x61>")}
    assert both <= allowed(grammar.mask([]), PIECES)
    value = Grammar.compile("json_schema", '{"const": "a"}', PIECES, ends)
    for written, ending in (('"a"', True), (' "a"', True), ('  "a"', False)):
        mask = value.mask([PIECES.id_of(f"<0x{byte:02X}>") or 0 for byte in written.encode()])
        assert (mask is not None and allowed(mask, PIECES) == set(ends)) == ending


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("lark", "start: /a/", "grammar kind is 'lark': it must be one of json_schema, regex"),
        ("regex", "(a", "regex: unclosed group"),
        ("regex", "a\\\\\\", "ends in a backslash that escapes nothing"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", "a$b", "lookarounds not supported"),
        ("regex", "[^\\s\\S]", "regex: .+"),
        ("regex", "a" * 65537, "regex has 65537 bytes: 65536 are the most"),
        ("regex", "\ud800", "half of a surrogate pair at 0"),
        ("json_schema", "{", "not valid JSON"),
        ("json_schema", "[" * 9999, "not valid JSON"),
        ("json_schema", '{"minimum": NaN}', "NaN is no JSON number"),
        ("json_schema", '{"minimum": 1e999}', "not valid JSON"),
        ("json_schema", "[]", "is a JSON list; a schema is an object"),
        ("json_schema", "false", "which nothing satisfies"),
        ("json_schema", '{"type": "strin"}', "Invalid type: strin"),
        ("json_schema", '{"enum": []}', "Unsatisfiable schema"),
        ("json_schema", '{"type": "string", "minLength": 3, "maxLength": 2}', "minLength"),
        ("json_schema", '{"not": {}}', "Unimplemented keys"),
        ("json_schema", '{"$ref": "file:///etc/hostname"}', "does not fetch resources"),
        ("json_schema", '{"const": "\\ud800"}', "json_schema: .+"),
        ("json_schema", '{"multipleOf": 1234567}', "least common multiple .* is over 10000"),
        ("json_schema", '{"allOf": [{"multipleOf": 997}, {"multipleOf": 9.91}]}', "is over 10000"),
        ("json_schema", '{"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}', "oneOf constraints .* supported$"),
    ],
)
def test_refusals_say_why(kind: str, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        compiled(kind, text)
    assert "\n" not in str(refused.value)


def test_stop_ids_are_checked() -> None:
    with pytest.raises(UsageError, match="stop_ids is empty"):
        compiled("regex", "a", stop_ids=[])
    with pytest.raises(UsageError, match=f"stop_ids: {BYTES.size} is not in the vocabulary"):
        compiled("regex", "a", stop_ids=[BYTES.size])


def test_a_vocabulary_that_cannot_write_it() -> None:
    with pytest.raises(UsageError, match="no token of this vocabulary can begin"):
        compiled("regex", "x", stop_ids=BYTES.encode("x"))


def test_hostile_grammars_are_refused_or_served_in_time() -> None:
    started = time.monotonic()
    objects: list[object] = [
        {"anyOf": [{"properties": {f"{name}{i}": {}}} for name in "ab"]} for i in range(24)
    ]
    served = 0
    for kind, text in (
        ("regex", "(((a{1,100}){1,100}){1,100}){1,100}"),
        ("regex", "(.*a.{200}){50}"),
        ("regex", "|".join(f".*w{i}x" for i in range(4000))),
        ("json_schema", json.dumps({"allOf": objects})),
        ("json_schema", json.dumps({"type": "array", "minItems": 10**9, "items": {"minLength": 10**9}})),
        ("json_schema", json.dumps({"properties": {f"p{i}": {"type": "string"} for i in range(1500)}})),
        ("json_schema", json.dumps({"$ref": "#"})),
    ):
        try:
            grammar = compiled(kind, text)
            grammar.mask(sorted(allowed(grammar.mask([])))[:1])
            served += 1
        except (UsageError, EngineError):
            pass
    assert 0 < served < 7
    assert time.monotonic() - started < 20


def test_what_was_kept_of_other_paths_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_MAX_STATES", 300)
    grammar = regex("(.*a.{6}){2}")
    starts: list[None] = []
    original = grammar._start
    grammar._start = lambda: starts.append(None) or original()  # type: ignore[func-returns-value]
    a, b = BYTES.encode("ab")
    grammar.commit([a])
    for path in itertools.product([a, b], repeat=8):
        assert a in allowed(grammar.mask(path))
    assert starts


def test_a_grammar_too_large_to_follow_is_an_engine_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_MAX_STATES", 40)
    grammar = regex("(.*a.{30}){3}")
    a, b = BYTES.encode("ab")
    with pytest.raises(EngineError, match=r"grammar: cannot go on after output token \d+ \(.*states"):
        for index in range(60):
            grammar.mask([])
            grammar.commit([(a, b)[index % 3 % 2]])


def test_masks_on_both_sides_keep_acceptance_high() -> None:
    """The drafter's best tokens under the mask agree with the target's about as often as without a grammar;
    drafting without the mask agrees far less."""
    from acespec_edge import _core

    def models() -> tuple[Ring, Ring]:
        return tuple(  # type: ignore[return-value]
            Ring(_core.FakeEngine(BYTES.size, 1024, seed=5, disagreement=share)) for share in (0.0, 0.2)
        )

    def agreement(
        masks: Callable[[], tuple[Words | None, Words | None]], commit: Callable[[int], None]
    ) -> float:
        target, drafter = models()
        paths: list[list[int]] = [[], []]
        token, agreed, count = 0, 0, 150
        for _ in range(count):
            best = []
            for side, (model, mask) in enumerate(zip((target, drafter), masks(), strict=True)):
                row, paths[side] = model.chain(paths[side], [token])
                best.append(int(np.argmax(row[-1] if mask is None else shaped(row[-1], mask))))
            token = best[0]
            commit(token)
            agreed += best[0] == best[1]
        return agreed / count

    def shaped(row: np.ndarray, mask: Words) -> np.ndarray:
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(row)]
        return np.where(bits == 1, row, -np.inf)

    free = agreement(lambda: (None, None), lambda token: None)
    listing = {"type": "array", "items": {"type": "string"}, "minItems": 10**6}
    both, one = schema(listing), schema(listing)
    guided = agreement(lambda: (both.mask([]), both.mask([])), lambda token: both.commit([token]))
    blind = agreement(lambda: (one.mask([]), None), lambda token: one.commit([token]))
    assert guided > free - 0.15
    assert guided > blind + 0.1
