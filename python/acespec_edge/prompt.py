"""What a caller gives as a prompt, as token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from acespec_edge.bundle import Bundle
from acespec_edge.errors import UsageError

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]


def prompt_ids(
    bundle: Bundle,
    prompt: Prompt,
    *,
    raw: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    continue_final_message: bool = False,
) -> list[int]:
    """Token ids of a prompt: a string is one user turn when the bundle has a chat template (unless ``raw``),
    else plain text; messages go through the template; ids are taken as they are.

    ``tools`` and ``continue_final_message``: as render_chat has them, for chat alone. Raises UsageError for
    an empty prompt, text that is no Unicode, ids outside the vocabulary, or what the template refuses.
    """
    if not prompt:
        raise UsageError("prompt is empty: give a text, chat messages or token ids")
    vocabulary = bundle.vocabulary_table
    messages: Sequence[Message] | None = None
    if isinstance(prompt, str):
        if bundle.chat_template is not None and not raw:
            messages = [{"role": "user", "content": prompt}]
    elif all(isinstance(part, Mapping) for part in prompt):
        messages = cast("Sequence[Message]", prompt)
    if continue_final_message and (messages is None or isinstance(prompt, str)):
        raise UsageError("continue_final_message: needs chat messages, whose last one goes on")
    if tools and messages is None:
        raise UsageError("tools: only a chat has a place for them; give chat messages")
    if messages is not None:
        from acespec_edge.chat import encode_chat

        ids = encode_chat(
            bundle,
            messages,
            tools=tools,
            add_generation_prompt=not continue_final_message,
            continue_final_message=continue_final_message,
        )
    elif isinstance(prompt, str):
        ids = bundle.with_one_bos(vocabulary.encode(prompt, add_special=True))
    else:
        ids = [_checked_id(part, index, vocabulary.size) for index, part in enumerate(prompt)]
    if not ids:
        raise UsageError("prompt is empty: the tokenizer makes no token of it")
    return ids


def _checked_id(part: object, index: int, size: int) -> int:
    if not isinstance(part, int) or isinstance(part, bool):
        raise UsageError(f"prompt[{index}] is {part!r}: a prompt is a text, chat messages, or token ids")
    if not 0 <= part < size:
        raise UsageError(f"prompt[{index}] is {part}: token ids of this bundle are 0 to {size - 1}")
    return part
