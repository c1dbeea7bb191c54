"""Chat templates: the same text that transformers renders, one BOS, clear refusals."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from acespec_edge.bundle import Bundle
from acespec_edge.chat import encode_chat, render_chat
from acespec_edge.errors import UsageError
from acespec_edge.prompt import prompt_ids
from tests.python.bundle_kit import write_bundle
from tests.python.tokenizer_kit import SPECIAL, byte_level_json

TURNS = """{{ bos_token }}
    {%- for message in messages %}
    {% if loop.index > 99 %}{% break %}{% endif %}
[{{ message.role }}]{{ message.content }}{{ eos_token }}
    {% endfor %}
{% if add_generation_prompt %}
[assistant]
{%- endif %}"""

TOOLS = """{% if tools %}tools:{% for tool in tools %} {{ tool | tojson }}{% endfor %}{% endif %}
{%- for message in messages %}
{%- if message.tool_calls %}{% for call in message.tool_calls %}
{{ call.function.name }} {{ call.function.arguments | tojson(indent=1) }}{% endfor %}
{%- else %}{% generation %}{{ message['content'] | trim }}{% endgeneration %}{% endif %}|
{%- endfor %}{{ mood }}"""

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <brief> & kind.\n"},
    {"role": "user", "content": "Grüße 日本 'quoted'"},
    {"role": "assistant", "content": "The answer is  "},
]
SCHEMA = {"type": "function", "function": {"name": "look_up", "description": "<b>é</b>", "parameters": {}}}


def bundle(folder: Path, template: str | None, *, bos: bool = False, bos_id: int | None = 300) -> Bundle:
    return write_bundle(folder, tokenizer=byte_level_json(bos=bos), chat_template=template, bos_id=bos_id)


def with_bos(folder: Path, template: str, *, added: bool) -> Bundle:
    """A bundle whose BOS is the tokenizer's special token; the tokenizer adds it by itself, or does not."""
    table = bundle(folder, template, bos=added).vocabulary_table
    return bundle(folder, template, bos=added, bos_id=table.id_of(SPECIAL))


def reference(opened: Bundle, messages: list[dict[str, Any]], **options: Any) -> str:
    table = opened.vocabulary_table
    special = {
        "bos_token": table.token_bytes(opened.bos_id or 0).decode(),
        "eos_token": table.token_bytes(opened.eos_ids[0]).decode(),
    }
    rendered, _ = render_jinja_template([messages], chat_template=opened.chat_template, **special, **options)
    return str(rendered[0])


@pytest.mark.parametrize("prompt", [True, False])
def test_renders_as_transformers_does(tmp_path: Path, prompt: bool) -> None:
    opened = bundle(tmp_path, TURNS)
    expected = reference(opened, TALK, add_generation_prompt=prompt)
    assert render_chat(opened, TALK, add_generation_prompt=prompt) == expected


def test_tools_calls_and_variables_render_as_transformers_does(tmp_path: Path) -> None:
    opened = bundle(tmp_path, TOOLS)
    call = {"function": {"name": "look_up", "arguments": {"word": "é<"}}}
    messages = [*TALK, {"role": "assistant", "tool_calls": [call]}]
    expected = reference(opened, messages, tools=[SCHEMA], mood="calm", add_generation_prompt=True)
    assert render_chat(opened, messages, tools=[SCHEMA], variables={"mood": "calm"}) == expected
    # Chat APIs write the arguments as text.
    written = {"function": {"name": "look_up", "arguments": json.dumps({"word": "é<"})}}
    messages[-1] = {"role": "assistant", "content": None, "tool_calls": [written]}
    assert render_chat(opened, messages, tools=[SCHEMA], variables={"mood": "calm"}) == expected
    assert messages[-1]["tool_calls"][0] is written


@pytest.mark.parametrize("template", [TURNS, TOOLS])
def test_the_final_message_can_go_on(tmp_path: Path, template: str) -> None:
    opened = bundle(tmp_path, template)
    options = {"continue_final_message": True, "add_generation_prompt": False}
    text = render_chat(opened, TALK, **options)
    assert text == reference(opened, TALK, **options)
    assert text.rstrip().endswith("The answer is")


@pytest.mark.parametrize(
    ("template", "options"),
    [
        (TURNS, {}),
        (TURNS, {"continue_final_message": True}),
        (TOOLS, {"tools": [SCHEMA]}),
        (TOOLS, {"tools": [SCHEMA], "continue_final_message": True}),
    ],
)
def test_the_ids_are_those_of_the_targets_tokenizer(
    tmp_path: Path, template: str, options: dict[str, Any]
) -> None:
    opened = with_bos(tmp_path, template, added=False)
    target = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"),
        chat_template=template,
        bos_token=SPECIAL,
        eos_token=opened.vocabulary_table.token_bytes(opened.eos_ids[0]).decode(),
    )
    goes_on = "continue_final_message" in options
    expected = target.apply_chat_template(
        TALK, add_generation_prompt=not goes_on, return_dict=False, **options
    )
    assert prompt_ids(opened, TALK, **options) == expected
    assert not goes_on or opened.vocabulary_table.decode(expected).rstrip().endswith("The answer is")


def test_a_text_is_one_user_turn_and_may_have_tools(tmp_path: Path) -> None:
    opened = bundle(tmp_path, TOOLS)
    turn = [{"role": "user", "content": "rain"}]
    assert prompt_ids(opened, "rain", tools=[SCHEMA]) == encode_chat(opened, turn, tools=[SCHEMA])
    assert prompt_ids(opened, "rain", tools=[]) == encode_chat(opened, turn)


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("rain", {"continue_final_message": True}, "needs chat messages"),
        ([1, 2], {"continue_final_message": True}, "needs chat messages"),
        ([1, 2], {"tools": [SCHEMA]}, "tools: only a chat has a place for them"),
        ("rain", {"tools": [SCHEMA], "raw": True}, "tools: only a chat has a place for them"),
        ("rain", {"tools": ["look_up"]}, r"tools\[0\]: 'look_up' must be an object"),
        ("\ud800", {}, "half of a surrogate pair"),
        ([{"role": "user", "content": "\udc00"}], {}, "half of a surrogate pair"),
    ],
)
def test_prompts_that_make_no_sense_are_refused(
    tmp_path: Path, prompt: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        prompt_ids(bundle(tmp_path, TOOLS), prompt, **options)


def test_tools_are_not_dropped_in_silence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tools: the chat template of tiny has no place for them"):
        render_chat(bundle(tmp_path, TURNS), TALK, tools=[SCHEMA])


def test_text_parts_are_joined(tmp_path: Path) -> None:
    opened = bundle(tmp_path, TURNS)
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    joined = render_chat(opened, [{"role": "user", "content": "one two"}])
    assert render_chat(opened, [{"role": "user", "content": parts}]) == joined


def test_the_date_is_today(tmp_path: Path) -> None:
    opened = bundle(tmp_path, "{{ strftime_now('%Y') }}{{ messages[0].role }}")
    assert render_chat(opened, TALK) == f"{datetime.datetime.now():%Y}system"


@pytest.mark.parametrize("written", ["", "{{ bos_token }}", "{{ bos_token }}{{ bos_token }}"])
@pytest.mark.parametrize("added", [True, False])
def test_exactly_one_bos_where_anything_puts_one(tmp_path: Path, written: str, added: bool) -> None:
    opened = with_bos(tmp_path, written + "{{ messages[0].content }}", added=added)
    table = opened.vocabulary_table
    ids = encode_chat(opened, [{"role": "user", "content": "rain"}])
    assert ids == [*([opened.bos_id] if added or written else []), *table.encode("rain")]
    # The same for a text that was rendered elsewhere, and for one that was not.
    rendered = (SPECIAL if written else "") + "rain"
    assert prompt_ids(opened, rendered, raw=True) == ids


def test_no_bos_where_the_tokenizer_adds_none(tmp_path: Path) -> None:
    opened = bundle(tmp_path, "{{ messages[0].content }}")
    message = {"role": "user", "content": f"rain{SPECIAL}"}
    assert encode_chat(opened, [message]) == opened.vocabulary_table.encode(f"rain{SPECIAL}")


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (None, TALK, "no chat template"),
        ("{{ raise_exception('only users speak') }}", TALK, "only users speak"),
        ("{{ messages[0].content.__class__.__mro__ }}", TALK, "unsafe"),
        ("{% set _ = messages.append(1) %}", TALK, "unsafe"),
        ("{% if %}", TALK, "refuses"),
        ("{{ messages[0].content + 1 }}", TALK, "refuses"),
        (TURNS, [], "at least one message"),
        (TURNS, [{"content": "x"}], r"messages\[0\]: .* must be an object with a role"),
        (TURNS, [{"role": "user"}], r"messages\[0\]: keys are \['role'\]"),
        (TURNS, [{"role": "user", "content": 7}], r"messages\[0\].content: 7"),
        (TURNS, [{"role": "user", "content": [{"type": "image_url"}]}], "'image_url' is not supported"),
        (TOOLS, [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}], "not valid JSON"),
        (TOOLS, [{"role": "assistant", "tool_calls": ["look_up"]}], "must be an object with a function"),
    ],
)
def test_refusals_say_what_is_wrong(
    tmp_path: Path, template: str | None, messages: list[dict[str, Any]], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        render_chat(bundle(tmp_path, template), messages)


def test_a_message_that_cannot_go_on_is_refused(tmp_path: Path) -> None:
    silent = bundle(tmp_path, "{{ messages[0].role }}")
    with pytest.raises(UsageError, match="leaves the last message out"):
        render_chat(silent, TALK, continue_final_message=True, add_generation_prompt=False)
    with pytest.raises(UsageError, match="no content to go on from"):
        render_chat(silent, [{"role": "user", "content": ""}], continue_final_message=True,
                    add_generation_prompt=False)  # fmt: skip
    with pytest.raises(UsageError, match="only one can be set"):
        render_chat(silent, TALK, continue_final_message=True)
