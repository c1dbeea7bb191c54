"""Rotary positions: the frequencies of a model and the order of the rows they turn."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from acespec_edge.export.architecture import Llama3Scaling, ModelSpec


def rotary_frequencies(spec: ModelSpec, *, windowed: bool = False) -> NDArray[np.float32]:
    """Radians per position of each rotated pair i: theta^(-2i / rotary_dim), scaled as the model asks.

    `windowed` asks for those of layers with a window. float32 [rotary_dim / 2].
    """
    own = windowed and spec.window_rope_theta is not None
    theta = spec.window_rope_theta if own else spec.rope_theta
    exponents = np.arange(0, spec.rotary_dim, 2, dtype=np.float32) / np.float32(spec.rotary_dim)
    frequencies: NDArray[np.float32] = 1 / np.power(np.float32(theta), exponents)
    if own:
        return frequencies
    if spec.rope_scaling is not None:
        return _llama3(frequencies, spec.rope_scaling)
    if spec.rope_factors is not None:
        frequencies /= np.asarray(spec.rope_factors, np.float32)
    return frequencies


def half_order(tensor: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Reorders the rows of each head from neighbours (0, 1), (2, 3).. to halves (0, n/2), (1, n/2 + 1).."""
    heads = tensor.reshape(-1, head_dim // 2, 2, *tensor.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(tensor.shape)


def _llama3(frequencies: NDArray[np.float32], scaling: Llama3Scaling) -> NDArray[np.float32]:
    """Llama 3.1's rule, by how many turns of a wave fit into the original context.

    Up to low_freq_factor turns: slowed by `factor`; from high_freq_factor: kept; between: blended.
    """
    wavelengths = 2 * math.pi / frequencies
    cycles = scaling.original_max_positions / wavelengths
    keep = (cycles - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = np.clip(keep, 0, 1)
    scaled: NDArray[np.float32] = (keep + (1 - keep) / np.float32(scaling.factor)) * frequencies
    return scaled.astype(np.float32)
