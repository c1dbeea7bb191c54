"""Chat messages into the tokens that a model was trained on, by the template of its bundle."""

from __future__ import annotations

import datetime
import json
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from acespec_edge.errors import UsageError

if TYPE_CHECKING:
    from acespec_edge.bundle import Bundle

Message = Mapping[str, Any]
"""One turn: `role`, and `content` (a text or a list of text parts) or `tool_calls`, as chat APIs have it."""


def render_chat(
    bundle: Bundle,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The conversation as text.

    It ends where the model is to answer (`add_generation_prompt`), or inside the last message, which the
    model then goes on writing (`continue_final_message`; the two exclude each other). `tools` are JSON
    schemas of functions, `variables` whatever else the template asks for. The template is data from outside
    and runs in a sandbox. Raises UsageError when the bundle has no template, a message is malformed, or the
    template refuses the messages or has no place for tools.
    """
    if bundle.chat_template is None:
        raise UsageError(f"bundle {bundle.name} has no chat template: give the prompt as text or token ids")
    if add_generation_prompt and continue_final_message:
        raise UsageError(
            "add_generation_prompt and continue_final_message: only one can be set, a new turn and "
            "the last one cannot both go on"
        )
    turns = [_plain_turn(message, index) for index, message in enumerate(messages)]
    if not turns:
        raise UsageError("messages: is empty, at least one message is needed")
    marker = ""
    if continue_final_message:
        if not turns[-1].get("content"):
            raise UsageError("continue_final_message: the last message has no content to go on from")
        marker = f"[{secrets.token_hex(16)}]"
        turns[-1]["content"] += marker + " "
    try:
        _check_tools(bundle, tools or ())
        text = _compiled(bundle.chat_template).render(
            **(variables or {}),
            messages=turns,
            tools=list(tools) if tools else None,
            add_generation_prompt=add_generation_prompt,
            bos_token=_token_text(bundle, bundle.bos_id),
            eos_token=_token_text(bundle, bundle.eos_ids[0] if bundle.eos_ids else None),
        )
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as problem:
        # Whatever a template does with messages it was not written for.
        raise UsageError(f"the chat template of {bundle.name} refuses these messages: {problem}") from problem
    if not continue_final_message:
        return text
    kept, found, after = text.rpartition(marker)
    if not found:
        raise UsageError(
            f"continue_final_message: the chat template of {bundle.name} leaves the last message out"
        )
    # A template that trims messages took the blank behind the marker, and would take those before it as well.
    return kept if after.startswith(" ") else kept.rstrip()


def encode_chat(bundle: Bundle, messages: Sequence[Message], **options: Any) -> list[int]:
    """Token ids of `render_chat` with the same `options`, special tokens recognised.

    Exactly one BOS where the tokenizer or the template puts any.
    """
    return bundle.with_one_bos(bundle.vocabulary_table.encode(render_chat(bundle, messages, **options)))


def _check_tools(bundle: Bundle, tools: Sequence[Mapping[str, Any]]) -> None:
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise UsageError(f"tools[{index}]: {tool!r} must be an object, the JSON schema of a function")
    # A template that never looks at them would drop them in silence.
    if tools and "tools" not in _variables(bundle.chat_template or ""):
        raise UsageError(f"tools: the chat template of {bundle.name} has no place for them")


def _plain_turn(message: Message, index: int) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UsageError(f"messages[{index}]: {message!r} must be an object with a role")
    if "content" not in message and "tool_calls" not in message:
        raise UsageError(
            f"messages[{index}]: keys are {sorted(message)}; role and content (or tool_calls) are needed"
        )
    turn = dict(message)
    content = turn.get("content")
    if isinstance(content, list):
        turn["content"] = "".join(_part_text(part, index) for part in content)
    elif content is not None and not isinstance(content, str):
        raise UsageError(f"messages[{index}].content: {content!r} must be a text or a list of text parts")
    if turn.get("tool_calls"):
        turn["tool_calls"] = [_plain_call(call, index) for call in turn["tool_calls"]]
    return turn


def _part_text(part: Any, index: int) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else part
    raise UsageError(f"messages[{index}].content: a part of type {kind!r} is not supported, only text is")


def _plain_call(call: Any, index: int) -> dict[str, Any]:
    # Chat APIs carry a call's arguments as a JSON text; templates expect the object.
    if not isinstance(call, Mapping) or not isinstance(call.get("function", call), Mapping):
        raise UsageError(f"messages[{index}].tool_calls: {call!r} must be an object with a function")
    function = dict(call.get("function", call))
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"])
        except ValueError as problem:
            raise UsageError(
                f"messages[{index}].tool_calls: arguments are not valid JSON ({problem})"
            ) from problem
    return {**call, "function": function} if "function" in call else function


def _token_text(bundle: Bundle, token: int | None) -> str:
    return "" if token is None else bundle.vocabulary_table.token_bytes(token).decode(errors="replace")


class _GenerationBlocks(Extension):
    """Lets `{% generation %}` blocks through: templates use them to mark what a model is trained on."""

    tags = {"generation"}  # noqa: RUF012 the base class reads it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


@lru_cache(maxsize=8)
def _variables(source: str) -> frozenset[str]:
    return frozenset(meta.find_undeclared_variables(_environment().parse(source)))


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    # The settings and helpers that published templates are written against.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlocks]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which a model was never trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
