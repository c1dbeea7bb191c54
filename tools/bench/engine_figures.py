"""What an engine costs beside its forwards: start-up, memory, ranking a row, and the rest of a step."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.ort_library import ort_library
from acespec_edge.vocabulary import StreamDecoder
from tools.bench.memory import resident_kib

_CONTEXT = 1024
_BRANCHES = 256
_ROUNDS = 40
_CHAIN = 5
_WIDE_VOCABULARY = 151_936  # Qwen's
_RANKINGS = 200
_PROMPT = "Write a function that reads a CSV file and returns the mean of every numeric column."


def figures(bundle: Bundle, threads: int) -> dict[str, Any]:
    """What report() prints. The memory is right when nothing else of the process had an engine before."""
    before, began, worked = resident_kib(), time.perf_counter(), time.process_time()
    table = bundle.vocabulary_table
    tokenizer_kib = resident_kib() - before
    slots = _CONTEXT + _BRANCHES
    engine = _core.OrtEngine(
        str(bundle.model_file), ort_library(), slots=slots, vocabulary=bundle.vocabulary, threads=threads
    )
    drafter = _core.Drafter(engine, _core.DrafterOptions(context=_CONTEXT))
    drafter.begin(_prompt(bundle), _core.SamplingRules())
    _draft(drafter, 1)
    start = {"wall": time.perf_counter() - began, "cpu": time.process_time() - worked}
    resident = resident_kib() - before
    share = _rest_of_step(bundle, drafter, StreamDecoder(table))
    size = sum(file.stat().st_size for file in bundle.path.iterdir())
    return {
        "start_seconds": {name: round(seconds, 2) for name, seconds in start.items()},
        "resident_mib": round(resident / 1024, 1),
        "tokenizer_mib": round(tokenizer_kib / 1024, 1),
        "bundle_mib": round(size / 2**20, 1),
        "cache_mib": round(slots * engine.info.bytes_per_slot / 2**20, 1),
        "rest_of_step": round(share, 4),
        "rank_ms": {"coupled": _rank_ms(1.0), "greedy": _rank_ms(0.0)},
    }


def report(found: dict[str, Any]) -> str:
    """The figures in words."""
    start, rank = found["start_seconds"], found["rank_ms"]
    return "\n".join([
        f"from the bundle to the first token: {start['wall']} s, {start['cpu']} s of processor time",
        f"memory: {found['resident_mib']} MiB, {found['tokenizer_mib']} of them the tokenizer's; the "
        f"bundle has {found['bundle_mib']}, keys and values {found['cache_mib']}",
        f"tree, cache, sampling, codec and tokenizer: {found['rest_of_step']:.1%} of a step",
        f"the 8 best of {_WIDE_VOCABULARY} logits: {rank['coupled']} ms with coupled noise, "
        f"{rank['greedy']} ms greedily",
    ])  # fmt: skip


def _prompt(bundle: Bundle) -> list[int]:
    return bundle.with_one_bos(bundle.vocabulary_table.encode(_PROMPT, add_special=True))


def _draft(drafter: _core.Drafter, count: int) -> float:
    """Drafts until a chain of `count` is ready; returns the seconds of the forwards."""
    seconds = 0.0
    while drafter.ready < count:
        step = drafter.step(8, True)
        seconds += step.seconds
        if step.exhausted:
            break
    return seconds


def _rest_of_step(bundle: Bundle, drafter: _core.Drafter, text: StreamDecoder) -> float:
    """The part of a sampled request's rounds that is not the engine's forwards. A round drafts a chain,
    grows the tree by a forward, and gets a scripted verdict; both messages pass the codec, and the text is
    decoded."""
    chance = random.Random(5)
    drafter.begin(_prompt(bundle), _core.SamplingRules(temperature=0.8, seed=11))
    _draft(drafter, _CHAIN)  # the prompt's forwards have many rows for few tokens
    forwards, began = 0.0, time.perf_counter()
    for number in range(_ROUNDS):
        forwards += _draft(drafter, _CHAIN)
        chain = _sent(number, drafter.take_chain(_CHAIN).tokens)
        forwards += drafter.step(8, False).seconds
        accepted = chain[: chance.randrange(len(chain) + 1)]
        told = _told(number, [*accepted, chance.randrange(bundle.vocabulary)])
        drafter.apply_verdict(told)
        text.push(told)
    return 1 - forwards / (time.perf_counter() - began)


def _sent(number: int, chain: Sequence[int]) -> list[int]:
    offsets = [0, *[1] * (len(chain) - 1)]
    draft = _core.Draft(request=1, round=number, parent_offsets=offsets, tokens=chain)
    return cast(_core.Draft, _core.decode(_core.encode(draft))).tokens


def _told(number: int, tokens: Sequence[int]) -> list[int]:
    verdict = _core.Verdict(request=1, round=number, accepted_node=len(tokens) - 1, tokens=tokens)
    return cast(_core.Verdict, _core.decode(_core.encode(verdict))).tokens


def _rank_ms(temperature: float) -> float:
    """Median milliseconds of ranking one row of normal logits."""
    logits = 3 * np.random.default_rng(2).standard_normal(_WIDE_VOCABULARY, np.float32)
    sampler = _core.Sampler(_WIDE_VOCABULARY)
    rules = _core.SamplingRules(temperature=temperature, seed=7)
    taken = []
    for position in range(_RANKINGS):
        start = time.perf_counter()
        sampler.rank(logits, rules, position, 8)
        taken.append(time.perf_counter() - start)
    return round(1000 * statistics.median(taken), 3)
