"""Calls of functions: found in the text, whatever blocks it comes in, and told as OpenAI's API tells them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec_edge.bundle import Bundle
from acespec_edge.gateway.tool_calls import ToolCall, ToolCallReader, writes_calls
from tests.python.edge_kit import runtime
from tests.python.fake_bundle import EOS, make_bundle, tokenizer_json
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import no_thread_left
from tests.python.gateway_kit import Live, events, serving

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
PARTS = [
    CALL,
    '<tool_call>{"name": "g", "arguments": {"s": "a </tool_call> b"}}</tool_call>',
    '<tool_call>{"name": "h"}</tool_call>',
    "<tool_call>{broken}</tool_call>",
    '<tool_call>{"name": 5}</tool_call>',
    *("<tool_call>", "</tool_call>", "<tool", "hello", " ", "\n", "<", '{"name": "f"', '"'),
]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)


def read(text: str, cuts: list[int] | None = None, most: int | None = None) -> tuple[str, list[ToolCall]]:
    reader = ToolCallReader(most)
    borders = [0, *sorted(cut % (len(text) + 1) for cut in cuts or []), len(text)]
    parts: list[str | ToolCall] = []
    for begin, end in itertools.pairwise(borders):
        parts += reader.push(text[begin:end])
    parts += reader.finish()
    assert "" not in parts
    text = "".join(part for part in parts if isinstance(part, str))
    return text, [part for part in parts if isinstance(part, ToolCall)]


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, json.dumps(arguments))


@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        ("plain", "plain", []),
        ("  \nplain ", "  \nplain ", []),
        (CALL, "", [call("f", x=1)]),
        (f"I look.\n\n{CALL}\n{CALL}\n", "I look.", [call("f", x=1)] * 2),
        (f"{CALL} and then", " and then", [call("f", x=1)]),
        (PARTS[1], "", [call("g", s="a </tool_call> b")]),
        (PARTS[2], "", [call("h")]),
        (f"a {PARTS[3]} b", f"a {PARTS[3]} b", []),
        (f"{PARTS[3]}{CALL}", PARTS[3], [call("f", x=1)]),
        (CALL.removesuffix("\n</tool_call>"), "", [call("f", x=1)]),
        ('a <tool_call>{"name": "f"', 'a <tool_call>{"name": "f"', []),
        ("a <tool_cal", "a <tool_cal", []),
        ('<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', "", [ToolCall("f", "{}")]),
    ],
)
def test_calls_and_what_only_looks_like_them(text: str, shown: str, calls: list[ToolCall]) -> None:
    assert read(text) == (shown, calls)


@given(TEXTS, st.lists(st.integers(0, 400), max_size=12))
def test_the_blocks_change_nothing(text: str, cuts: list[int]) -> None:
    assert read(text, cuts) == read(text)


@given(TEXTS)
def test_a_text_without_calls_is_unchanged(text: str) -> None:
    shown, calls = read(text)
    if not calls:
        assert shown == text


def test_no_more_than_asked_for() -> None:
    assert read(CALL * 3, most=1) == ("", [call("f", x=1)])


def test_only_known_templates_write_calls(tmp_path: Path) -> None:
    def made(template: str | None) -> Bundle:
        return make_bundle(tmp_path, chat_template=template)

    assert writes_calls(made("{{ tools }} <tool_call>{...}</tool_call>"))
    assert not writes_calls(made("{{ tools }} <tool_call><function=f></function></tool_call>"))
    assert not writes_calls(made("{{ tools }}"))
    (tmp_path / "chat_template.jinja").unlink()
    assert not writes_calls(made(None))
    tokenizer = json.loads(tokenizer_json())
    tokenizer["added_tokens"][0]["content"] = "<tool_call>"
    special = made("{{ tools }} <tool_call></tool_call>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    assert not writes_calls(special)


SPELLING = {"<tool_call>": 50, "</tool_call>": 51, '{"name": "': 52, '", "arguments": {}}': 53}
"""Ids that the tokenizer below writes these texts as."""
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool.function.name }}{% endfor %}"
    "<tool_call></tool_call>{% endif %}{{ messages[-1].content }}"
)
TOOLS = [{"type": "function", "function": {"name": "ab", "parameters": {"type": "object"}}}]


@pytest.fixture(autouse=True, scope="module")
def threads_end() -> Iterator[None]:
    with no_thread_left():
        yield


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A model that writes "i ", a call of "h", and "i"; its prompt is "hi", behind tools when it has some."""
    bundle = make_bundle(tmp_path_factory.mktemp("tools"), chat_template=TEMPLATE)
    tokenizer = json.loads(tokenizer_json())
    tokens = {token: text for text, token in tokenizer["model"]["vocab"].items()}
    tokens |= {token: text.replace(" ", "\u0120") for text, token in SPELLING.items()}
    tokenizer["model"]["vocab"] = {text: token for token, text in tokens.items()}
    (bundle.path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    script = [8, 36, 50, 52, 7, 53, 51, EOS]

    def choose(sequence: Any) -> int:
        start = max(place for place, token in enumerate(sequence) if token == 8 and sequence[place - 1] == 7)
        written = len(sequence) - start - 1
        return script[written] if written < len(script) else EOS

    with serving(runtime(bundle, choose, choose, cloud=FakeCloud(choose))) as live:
        yield live


def test_a_call_in_an_answer(live: Live) -> None:
    choice = live.chat(tools=TOOLS).json()["choices"][0]
    (told,) = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": "i", "refusal": None}
    assert choice["finish_reason"] == "tool_calls"
    assert re.fullmatch("call_[0-9a-f]{24}", told.pop("id"))
    assert told == {"type": "function", "function": {"name": "h", "arguments": "{}"}}


def test_a_call_in_a_stream(live: Live) -> None:
    *chunks, done = events(live.chat(tools=TOOLS, stream=True))
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    deltas = [choice["delta"] for choice in choices]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "i"
    (told,) = (delta["tool_calls"] for delta in deltas if "tool_calls" in delta)
    assert re.fullmatch("call_[0-9a-f]{24}", told[0].pop("id"))
    assert told == [{"index": 0, "type": "function", "function": {"name": "h", "arguments": "{}"}}]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["tool_calls"]


def test_every_choice_has_its_own_calls(live: Live) -> None:
    for choice in live.chat(tools=TOOLS, n=2, parallel_tool_calls=False).json()["choices"]:
        assert len(choice["message"]["tool_calls"]) == 1
    chunks = events(live.chat(tools=TOOLS, n=2, stream=True))[:-1]
    told = [chunk["choices"][0] for chunk in chunks if "tool_calls" in chunk["choices"][0]["delta"]]
    assert [(choice["index"], choice["delta"]["tool_calls"][0]["index"]) for choice in told] == [
        (0, 0),
        (1, 0),
    ]


def test_without_tools_the_text_is_left_alone(live: Live) -> None:
    written = 'i <tool_call>{"name": "h", "arguments": {}}</tool_call>'
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = live.chat(**fields).json()["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": written, "refusal": None}
        assert choice["finish_reason"] == "stop"


def test_a_call_that_is_cut_off_is_a_length(live: Live) -> None:
    choice = live.chat(tools=TOOLS, max_tokens=4).json()["choices"][0]
    assert choice["message"]["content"] == 'i <tool_call>{"name": "'
    assert choice["finish_reason"] == "length"


def test_calls_go_back_through_the_template(live: Live) -> None:
    called = {"id": "c", "type": "function", "function": {"name": "h", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c", "content": "hi"},
    ]
    answer = live.http.post("/chat/completions", json={"messages": messages, "tools": TOOLS})
    assert answer.status_code == 200, answer.text
