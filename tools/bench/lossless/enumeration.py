"""The target alone, exactly: the probability of every output under the rules, written down plainly."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt

from acespec_edge import _core
from tools.bench.lossless.chi_square import Probabilities

Rows = npt.NDArray[np.float64]
Outputs = npt.NDArray[np.int64]
"""One output a row."""

LogitsOf = Callable[[Sequence[int]], npt.NDArray[np.float32]]


def enumerate_outputs(
    target: LogitsOf,
    prompt: Sequence[int],
    rules: _core.SamplingRules,
    *,
    size: int,
    length: int,
    stop_ids: Collection[int] = (),
) -> Probabilities:
    """The probability of every output of ``length`` tokens: one axis a token, each of ``size + 1`` entries,
    the last of which stands for no token, because a stop id came before.
    """
    prefixes, weights = np.zeros((1, 0), np.int64), np.ones(1)
    for _ in range(length):
        ended = np.isin(prefixes, [*stop_ids, size]).any(axis=1)
        following = np.zeros((len(prefixes), size + 1))
        following[ended, size] = 1.0
        open_ones = prefixes[~ended]
        if len(open_ones):
            rows = np.array([target([*prompt, *output])[:size] for output in open_ones.tolist()], np.float64)
            following[~ended, :size] = distributions(rows, rules, prompt, open_ones, stop_ids)
        parents, tokens = following.nonzero()
        weights = weights[parents] * following[parents, tokens]
        prefixes = np.column_stack([prefixes[parents], tokens])
    joint = np.zeros((size + 1,) * length)
    joint[tuple(prefixes.T)] = weights
    return joint


def distributions(
    rows: Rows,
    rules: _core.SamplingRules,
    prompt: Sequence[int],
    outputs: Outputs,
    stop_ids: Collection[int] = (),
) -> Rows:
    """What each row of logits, behind its output, becomes a distribution of: [N, V] of probabilities."""
    own = len(prompt) - rules.carried
    carried = np.tile(np.array(prompt[own:], np.int64), (len(outputs), 1))
    shaped = _shaped(rows, rules, prompt[:own], np.column_stack([carried, outputs]), stop_ids)
    if rules.greedy:
        certain: Rows = np.eye(rows.shape[1])[shaped.argmax(axis=1)]
        return certain
    p = np.exp((shaped - shaped.max(axis=1, keepdims=True)) / rules.temperature)
    p[p < rules.min_p] = 0.0  # the likeliest has 1
    order = np.argsort(-p, axis=1, kind="stable")
    head = np.take_along_axis(p, order, axis=1)
    if rules.top_k:
        head[:, rules.top_k :] = 0.0
    before = head.cumsum(axis=1) - head
    head[before >= rules.top_p * head.sum(axis=1, keepdims=True)] = 0.0
    np.put_along_axis(p, order, head, axis=1)
    distribution: Rows = p / p.sum(axis=1, keepdims=True)
    return distribution


def _shaped(
    rows: Rows, rules: _core.SamplingRules, prompt: Sequence[int], outputs: Outputs, stop_ids: Collection[int]
) -> Rows:
    size = rows.shape[1]
    row_of = np.arange(len(rows))[:, None]
    counts = np.zeros_like(rows)
    np.add.at(counts, (row_of, outputs), 1.0)
    barred = np.isin(np.arange(size), rules.banned)
    if rules.allowed:
        barred |= ~np.isin(np.arange(size), rules.allowed)
    if outputs.shape[1] < rules.min_tokens:
        barred |= np.isin(np.arange(size), list(stop_ids))
    shaped = np.where(barred, -np.inf, rows)
    for token, bias in rules.logit_bias:
        shaped[:, token] += bias
    seen = (counts > 0) | np.isin(np.arange(size), prompt)
    penalty = rules.repetition_penalty
    shaped = np.where(seen, np.where(shaped > 0, shaped / penalty, shaped * penalty), shaped)
    return shaped - rules.frequency_penalty * counts - rules.presence_penalty * (counts > 0)
