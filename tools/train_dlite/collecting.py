"""A cache of states without anybody's prompts: the target answers prompts that are invented, or that it
writes itself, and its states are kept as they pass by.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from cloud_stub.dlite.identity import Identity
from cloud_stub.verifiers.hidden_states import HiddenStates
from cloud_stub.verifiers.torch_verifier import TorchVerifier
from tools.train_dlite.decoding import Row, decode_together
from tools.train_dlite.invented import invented_prompts
from tools.train_dlite.settings import CollectSettings
from tools.train_dlite.states import LARGEST, STATES, Entry, Index, write_index
from tools.train_dlite.texts import Text, Tokens, read_texts, repaired

TEXTS: Final = "texts.jsonl"

_TOGETHER: Final = 4
"""Batches whose prompts are put in order of length, so that little of a batch is padding."""

_LONGEST_QUESTION: Final = 48
"""Tokens of a prompt that the target writes."""


def collect(
    verifier: TorchVerifier,
    speaker: Tokens,
    layers: Sequence[int],
    settings: CollectSettings,
    out: Path,
    advance: Callable[[int], None],
) -> Index:
    """Writes a cache of ``settings.tokens`` tokens of answers or a few more, as ``fill`` would with no
    history; ``advance`` hears how many have come. An interrupted run goes on behind its last whole batch.

    One forward gives a token to each text of a batch, and leaves the states that it was chosen from: they
    cost no forward of their own.
    """
    out.mkdir(parents=True, exist_ok=True)
    target = Identity.of(verifier)
    texts = list(read_texts(repaired(out / TEXTS))) if (out / TEXTS).exists() else []
    del texts[len(texts) // settings.batch * settings.batch :]
    batches = _batches(verifier, speaker, settings, len(texts) // settings.batch)
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


_Asked = tuple[str, str, list[int]]
"""Id, kind and tokens of a prompt."""


def _batches(
    verifier: TorchVerifier, speaker: Tokens, settings: CollectSettings, first: int
) -> Iterator[list[_Asked]]:
    """Batches of prompts from number ``first`` on."""
    invented = invented_prompts(settings.seed)
    for window in itertools.count():
        prompts = list(itertools.islice(invented, settings.batch * _TOGETHER))
        if (window + 1) * _TOGETHER <= first:
            continue
        asked = [(prompt.id, prompt.kind, speaker.ids(prompt.text)) for prompt in prompts]
        chats = [number for number, (_, kind, _) in enumerate(asked) if kind == "chat"]
        own = chats[: round(settings.own * len(chats))]
        seed = settings.seed + 1_000_003 * (window + 1)
        for number, ids in zip(own, _questions(verifier, speaker, len(own), seed), strict=True):
            if ids:
                asked[number] = (asked[number][0].replace("invented", "own"), "chat", ids)
        asked.sort(key=lambda row: len(row[2]))
        for place in range(_TOGETHER):
            if window * _TOGETHER + place >= first:
                yield asked[place * settings.batch : (place + 1) * settings.batch]


def _questions(verifier: TorchVerifier, speaker: Tokens, count: int, seed: int) -> list[list[int]]:
    """Prompts that the target writes when it is given what stands before a user's words: what it takes for a
    likely question, and so a sample of what it was tuned on. Empty ones where it has nothing to ask, or where
    nothing stands there.
    """
    one, other = speaker.ids("a"), speaker.ids("b")
    same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=True))))
    if not same or not count:
        return [[] for _ in range(count)]
    rows = [Row(one[:same], 1.0, _LONGEST_QUESTION)] * count
    written = decode_together(verifier, rows, speaker.eos_ids, seed)
    return [
        [*one[:same], *ids[:-1], *one[same + 1 :]] if len(ids) > 3 and ids[-1] in speaker.eos_ids else []
        for ids in written
    ]


def _answered(
    verifier: TorchVerifier,
    speaker: Tokens,
    layers: Sequence[int],
    asked: Sequence[_Asked],
    settings: CollectSettings,
    number: int,
) -> tuple[list[Text], npt.NDArray[np.float16]]:
    """Answers, and their states in the order of a cache. ``number``: of the first text."""
    greedy = round(settings.greedy * 100)
    rows = [
        # 61 has no factor in common with 100: the share is met evenly.
        Row(ids, 0.0 if (number + place) * 61 % 100 < greedy else settings.temperature, settings.max_tokens)
        for place, (_, _, ids) in enumerate(asked)
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
    texts = [Text(name, kind, ids, answer) for (name, kind, ids), answer in zip(asked, answers, strict=True)]
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
