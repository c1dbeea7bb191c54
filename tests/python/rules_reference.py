"""The sampling rules written out in NumPy from docs/protocol.md.

What changes logits is done in single precision, one operation at a time, so that every implementation can be
compared bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from acespec_edge import _core

Row = npt.NDArray[np.float32]


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in plain integers."""
    mask = 2**32 - 1
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(b >> 32) ^ counter[1] ^ key[0], b & mask, (a >> 32) ^ counter[3] ^ key[1], a & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter


def noise_word(seed: int, position: int, token: int) -> int:
    tile, within = divmod(token, 256)
    lane, block = divmod(within, 64)
    return philox([position, 64 * tile + block, 0, 0x41636553], [seed & (2**32 - 1), seed >> 32])[lane]


def shaped_row(
    logits: Row,
    vocabulary: int,
    rules: _core.SamplingRules,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    stop_ids: Sequence[int] = (),
    mask: npt.NDArray[np.uint32] | None = None,
) -> Row:
    """float32[vocabulary]: the row after ``prompt`` and ``output``, of which a drafted path is the end."""
    row = logits[:vocabulary].copy()
    own = len(prompt) - rules.carried
    prompt, output = list(prompt[:own]), [*prompt[own:], *output]
    out = np.zeros(vocabulary, np.bool_)
    if rules.allowed:
        out[:] = True
        out[rules.allowed] = False
    out[rules.banned] = True
    if len(output) < rules.min_tokens:
        out[[token for token in stop_ids if token < vocabulary]] = True
    if mask is not None:
        out |= np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")[:vocabulary] == 0
    row[out] = -np.inf
    for token, bias in rules.logit_bias:
        row[token] += np.float32(bias)
    seen = np.zeros(vocabulary, np.bool_)
    seen[[*prompt, *output]] = True
    penalty = np.float32(rules.repetition_penalty)
    row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    counts = np.bincount(np.array(output, np.int64), minlength=vocabulary).astype(np.float32)
    there = counts > 0
    row[there] -= np.float32(rules.frequency_penalty) * counts[there]
    row[there] -= np.float32(rules.presence_penalty)
    return row


def distribution(logits: Row, rules: _core.SamplingRules) -> dict[int, float]:
    """The tokens that the rules of the draw leave, likeliest first, and their log-probability; greedy: under
    the plain softmax."""
    scaled = logits.astype(np.float64) / (1.0 if rules.greedy else rules.temperature)
    order = np.argsort(-scaled, kind="stable")[: int(np.isfinite(scaled).sum())]
    p = np.exp(scaled - scaled.max())
    if not rules.greedy:
        if rules.min_p > 0:
            order = order[p[order] >= rules.min_p]
        if rules.top_k > 0:
            order = order[: rules.top_k]
        if rules.top_p < 1:
            mass = np.cumsum(p[order]) / p[order].sum()
            order = order[: int(np.searchsorted(mass, rules.top_p)) + 1]
    log_p = scaled[order] - scaled.max() - math.log(p[order].sum())
    return dict(zip(order.tolist(), log_p.tolist(), strict=True))


def ranked(
    logits: Row, rules: _core.SamplingRules, position: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The same tokens best first, and their scores."""
    left = distribution(logits, rules)
    tokens, scores = np.array(list(left), np.int64), np.array(list(left.values()))
    if not rules.greedy:
        words = np.array([noise_word(rules.seed, position, token) for token in left], np.float64)
        scores = scores - np.log(-np.log((words + 0.5) / 2**32))
    best = np.argsort(-scores, kind="stable")
    return tokens[best], scores[best]
