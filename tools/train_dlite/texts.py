"""Answers of the target itself, which is what its head will have to guess."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import GenerationConfig

from acespec_edge.errors import UsageError
from cloud_stub.verifiers.base import drawable
from cloud_stub.verifiers.torch_verifier import TorchVerifier
from tools.bench.data import Prompt
from tools.train_dlite.settings import GenerateSettings


class Tokens(Protocol):
    """Turns prompts into tokens; ``eos_ids`` end an answer."""

    @property
    def eos_ids(self) -> list[int]: ...

    def ids(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and its answer, as token ids. The answer is the part that an assistant wrote: what is trained
    on.
    """

    id: str
    kind: str
    prompt: list[int]
    response: list[int]


def generate(
    verifier: TorchVerifier,
    speaker: Tokens,
    prompts: Sequence[Prompt],
    settings: GenerateSettings,
    out: Path,
    advance: Callable[[str], None],
) -> int:
    """Writes an answer to each prompt as JSON lines; returns how many there are then.

    Answers that ``out`` has already are kept: an interrupted run goes on, and ends with the very file of an
    unbroken one. Raises UsageError for prompts with one id, or a file that is none of this kind.
    """
    ids = [prompt.id for prompt in prompts]
    if len({*ids}) < len(ids):
        raise UsageError("prompts: two have one id")
    out.parent.mkdir(parents=True, exist_ok=True)
    done = {text.id for text in read_texts(repaired(out))} if out.exists() else set()
    with out.open("a", encoding="utf-8") as file:
        for first in range(0, len(prompts), settings.batch):
            batch = prompts[first : first + settings.batch]
            if not {prompt.id for prompt in batch} <= done:
                given = [speaker.ids(prompt.text) for prompt in batch]
                answers = _answers(verifier, given, speaker.eos_ids, settings, settings.seed + first)
                rows = [
                    json.dumps(asdict(Text(prompt.id, prompt.kind, asked, answer))) + "\n"
                    for prompt, asked, answer in zip(batch, given, answers, strict=True)
                    if prompt.id not in done
                ]
                file.write("".join(rows))
                file.flush()
            for prompt in batch:
                advance(prompt.id)
    return len({*ids} | done)


def read_texts(path: Path) -> Iterator[Text]:
    """The texts of a file. Raises UsageError naming the file and the line that is malformed."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; texts as `generate` writes them are right") from error
    for number, line in enumerate(lines, 1):
        try:
            text = Text(**json.loads(line))
            lists = (text.prompt, text.response)
            if not all(isinstance(ids, list) and all(type(token) is int for token in ids) for ids in lists):
                raise ValueError("prompt and response are lists of token ids")
        except (TypeError, ValueError) as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
        yield text


def repaired(path: Path) -> Path:
    """Cuts off a last line that was not finished."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        partial = path.with_name(path.name + ".partial")
        partial.write_bytes(data[:whole])
        os.replace(partial, path)
    return path


@torch.inference_mode()
def _answers(
    verifier: TorchVerifier,
    prompts: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
    settings: GenerateSettings,
    seed: int,
) -> list[list[int]]:
    """One answer each, with the token that ends it, which is to be guessed like any other."""
    model = verifier.model
    device, longest = model.device, max(map(len, prompts))
    filler = eos_ids[0] if eos_ids else 0
    padded = [[filler] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    sampled = settings.temperature > 0
    options: dict[str, Any] = {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": 0}
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=settings.max_tokens,
        do_sample=sampled,
        eos_token_id=list(eos_ids) or None,
        pad_token_id=filler,
        suppress_tokens=list(range(drawable(verifier), verifier.logits_width)) or None,
        **(options if sampled else {}),
    )
    torch.manual_seed(seed)
    written = model.generate(
        input_ids=torch.tensor(padded, device=device),
        attention_mask=torch.tensor(mask, device=device),
        generation_config=config,
    )
    return [_up_to(row[longest:].tolist(), eos_ids) for row in written]


def _up_to(tokens: Iterable[int], ends: Sequence[int]) -> list[int]:
    """The tokens up to and with the first of ``ends``."""
    kept: list[int] = []
    for token in tokens:
        kept.append(token)
        if token in ends:
            break
    return kept
