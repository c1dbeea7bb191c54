"""A cache of states from the target's answers as they are made: to prompts that are given, invented, or that
it writes itself.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from cloud_stub.dlite.identity import Identity
from cloud_stub.verifiers.hidden_states import HiddenStates
from cloud_stub.verifiers.torch_verifier import TorchVerifier
from tools.bench.data import Prompt
from tools.train_dlite.decoding import Row, decode_together
from tools.train_dlite.given import Asked, mixed_prompts
from tools.train_dlite.settings import CollectSettings
from tools.train_dlite.states import LARGEST, STATES, Entry, Index, write_index
from tools.train_dlite.texts import Text, Tokens, read_texts, repaired

TEXTS: Final = "texts.jsonl"

_TOGETHER: Final = 4
"""Batches whose prompts are put in order of length, so that little of a batch is padding."""

_LONGEST_QUESTION: Final = 48
"""Tokens of a prompt that the target writes."""

_LONGEST_START: Final = 24
"""Tokens of a given prompt that it goes on from, at most."""


def collect(
    verifier: TorchVerifier,
    speaker: Tokens,
    layers: Sequence[int],
    settings: CollectSettings,
    out: Path,
    advance: Callable[[int], None],
    given: Sequence[Prompt] = (),
) -> Index:
    """Writes a cache of ``settings.tokens`` tokens of answers or a few more, as ``fill`` would with no
    history; ``advance`` hears how many have come. ``given``: prompts beside the invented ones. An interrupted
    run with the same ones goes on behind its last whole batch.

    One forward gives a token to each text of a batch, and leaves the states that it was chosen from: they
    cost no forward of their own.
    """
    out.mkdir(parents=True, exist_ok=True)
    target = Identity.of(verifier)
    texts = list(read_texts(repaired(out / TEXTS))) if (out / TEXTS).exists() else []
    del texts[len(texts) // settings.batch * settings.batch :]
    batches = _batches(verifier, speaker, settings, given, len(texts) // settings.batch)
    kept = sum(len(text.response) for text in texts)
    advance(kept)
    with (out / TEXTS).open("w", encoding="utf-8") as told, (out / STATES).open("ab") as states:
        told.write(_lines(texts))
        # States of a batch whose texts were not noted go.
        states.truncate(2 * (len(layers) + 1) * target.hidden * sum(len(text.response) + 1 for text in texts))
        while kept < settings.tokens:
            found, rows = _answered(verifier, speaker, layers, next(batches), settings, len(texts))
            rows.tofile(states)
            states.flush()
            os.fsync(states.fileno())
            told.write(_lines(found))
            told.flush()
            texts += found
            count = sum(len(text.response) for text in found)
            kept += count
            advance(count)
    index = _index(texts, target, layers)
    write_index(out, index, [[*text.prompt, *text.response] for text in texts])
    return index


@dataclass(frozen=True, slots=True)
class _Question:
    """A prompt as tokens. ``again``: it has been asked before."""

    id: str
    kind: str
    ids: list[int]
    again: bool = False


def _batches(
    verifier: TorchVerifier, speaker: Tokens, settings: CollectSettings, given: Sequence[Prompt], first: int
) -> Iterator[list[_Question]]:
    """Batches of prompts from number ``first`` on."""
    mixed = mixed_prompts(given, settings.given, settings.seed)
    for window in itertools.count():
        asked = list(itertools.islice(mixed, settings.batch * _TOGETHER))
        if (window + 1) * _TOGETHER <= first:
            continue
        questions = _with_own(verifier, speaker, settings, given, asked, window)
        questions.sort(key=lambda question: len(question.ids))
        for place in range(_TOGETHER):
            if window * _TOGETHER + place >= first:
                yield questions[place * settings.batch : (place + 1) * settings.batch]


def _with_own(
    verifier: TorchVerifier,
    speaker: Tokens,
    settings: CollectSettings,
    given: Sequence[Prompt],
    asked: Sequence[Asked],
    window: int,
) -> list[_Question]:
    """The prompts as tokens, a share of the invented chats replaced by what the target asks itself."""
    chats = [
        number
        for number, row in enumerate(asked)
        if row.prompt.kind == "chat" and row.prompt.id.startswith("invented")
    ]
    replaced = chats[: round(settings.own * len(chats))]
    seed = settings.seed + 1_000_003 * (window + 1)
    own = dict(zip(replaced, _questions(verifier, speaker, given, len(replaced), seed), strict=True))
    questions = []
    for number, row in enumerate(asked):
        prompt = row.prompt
        if own.get(number):
            questions.append(_Question(prompt.id.replace("invented", "own"), "chat", own[number]))
        else:
            questions.append(_Question(prompt.id, prompt.kind, speaker.ids(prompt.text), row.again))
    return questions


def _questions(
    verifier: TorchVerifier, speaker: Tokens, given: Sequence[Prompt], count: int, seed: int
) -> list[list[int]]:
    """Prompts that the target writes when it is given what stands before a user's words: what it takes for a
    likely question, and so a sample of what it was tuned on. Three of four begin as a given prompt does, if
    any are given. Empty ones where it has nothing to ask, or where nothing stands there.
    """
    one, other = speaker.ids("a"), speaker.ids("b")
    same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=True))))
    if not same or not count:
        return [[] for _ in range(count)]
    rng = random.Random(seed)
    starts = [one[:same]] * count
    for place in range(count if given else 0):
        if place % 4:
            ids = speaker.ids(rng.choice(given).text)
            words = len(ids) - len(one) + 1
            starts[place] = ids[: same + rng.randint(1, min(_LONGEST_START, max(1, words // 2)))]
    rows = [Row(start, 1.0, _LONGEST_QUESTION) for start in starts]
    written = decode_together(verifier, rows, speaker.eos_ids, seed)
    return [
        [*start, *ids[:-1], *one[same + 1 :]] if len(ids) > 3 and ids[-1] in speaker.eos_ids else []
        for start, ids in zip(starts, written, strict=True)
    ]


def _answered(
    verifier: TorchVerifier,
    speaker: Tokens,
    layers: Sequence[int],
    asked: Sequence[_Question],
    settings: CollectSettings,
    number: int,
) -> tuple[list[Text], npt.NDArray[np.float16]]:
    """Answers, and their states in the order of a cache. ``number``: of the first text."""
    greedy = round(settings.greedy * 100)
    rows = [
        # 61 has no factor in common with 100: the share is met evenly.
        Row(
            question.ids,
            0.0 if not question.again and (number + place) * 61 % 100 < greedy else settings.temperature,
            settings.max_tokens,
        )
        for place, question in enumerate(asked)
    ]
    passed: list[list[torch.Tensor]] = [[] for _ in rows]
    hooks = HiddenStates(verifier.model, layers)
    last: list[torch.Tensor] = []
    norm = verifier.model.base_model.norm.register_forward_hook(
        lambda module, inputs, output: last.append(output[:, -1])
    )

    def keep(numbers: list[int]) -> None:
        states = torch.cat([hooks.take(1)[:, :, 0], last.pop()[None]]).float()
        states = states.clamp(-LARGEST, LARGEST).half().cpu().transpose(0, 1).contiguous()
        for place, row in enumerate(numbers):
            passed[row].append(states[place])

    try:
        answers = decode_together(verifier, rows, speaker.eos_ids, settings.seed + number, keep)
    finally:
        hooks.remove()
        norm.remove()
    texts = [
        Text(question.id, question.kind, question.ids, answer)
        for question, answer in zip(asked, answers, strict=True)
    ]
    nothing = torch.zeros_like(passed[0][0])
    # The last token was never forwarded; nothing is asked of its states.
    parts = [
        state
        for states, answer in zip(passed, answers, strict=True)
        for state in (*states[: len(answer)], nothing)
    ]
    stacked: npt.NDArray[np.float16] = torch.stack(parts).numpy()
    return texts, stacked


def _index(texts: Sequence[Text], target: Identity, layers: Sequence[int]) -> Index:
    entries: list[Entry] = []
    tokens = row = 0
    for text in texts:
        length, answer = len(text.prompt) + len(text.response), len(text.prompt)
        entries.append(Entry(text.id, text.kind, length, answer, answer - 1, tokens, row))
        tokens, row = tokens + length, row + length - answer + 1
    written: dict[str, Any] = target.written()
    return Index(written, list(layers), 0, 0, entries)


def _lines(texts: Sequence[Text]) -> str:
    return "".join(json.dumps(asdict(text)) + "\n" for text in texts)
