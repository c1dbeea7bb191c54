"""Block quantisation of weight matrices to 4 or 8 bits, in the layout of ONNX Runtime's `MatMulNBits`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acespec_edge.errors import UsageError

# Blocks handled at a time: the working set of the search stays in the caches.
_CHUNK_BLOCKS = 8192
# Fractions of a block's range that the first guess of a 4-bit scale covers: clipping an extreme often pays.
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)


@dataclass(frozen=True)
class BlockWeights:
    """A matrix [rows, columns] as blocks along its rows: value = scale * (code - zero point).

    packed       uint8 [rows, blocks, block * bits / 8], low nibble first when bits is 4
    scales       float32 [rows, blocks]
    zero_points  uint8 [rows, ceil(blocks * bits / 8)], packed like the codes
    """

    rows: int
    columns: int
    bits: int
    block: int
    packed: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zero_points: NDArray[np.uint8]

    def dequantize(self) -> NDArray[np.float32]:
        """The matrix the runtime computes with, float32 [rows, columns]."""
        blocks = self.scales.shape[1]
        codes = _unpack(self.packed.reshape(self.rows, -1), self.bits, blocks * self.block)
        zeros = _unpack(self.zero_points, self.bits, blocks)
        centred = codes.reshape(self.rows, blocks, self.block).astype(np.float32) - zeros[:, :, None]
        return np.ascontiguousarray(
            (centred * self.scales[:, :, None]).reshape(self.rows, -1)[:, : self.columns]
        )


def quantize_blocks(matrix: NDArray[np.float32], bits: int, block: int) -> BlockWeights:
    """Quantises float32 [rows, columns] to `bits` (4 or 8) in blocks of `block` (16, 32, 64..) columns.

    Asymmetric: every block has a scale and an integer zero point. For 4 bits both are searched for the least
    squared error, each candidate's scale refined in closed form (for fixed codes c the best scale is
    sum(w c) / sum(c c)); for 8 bits the plain range is as good. Raises UsageError for other bits or blocks,
    or values that are not finite.
    """
    if bits not in (4, 8):
        raise UsageError(f"bits: {bits} is not supported; it must be 4 or 8")
    if block < 16 or block & (block - 1):
        raise UsageError(f"block: {block} is not supported; it must be a power of two of at least 16")
    rows, columns = matrix.shape
    blocks = -(-columns // block)
    if columns % block:
        matrix = np.pad(matrix, ((0, 0), (0, blocks * block - columns)))
    flat = np.ascontiguousarray(matrix, dtype=np.float32).reshape(rows * blocks, block)
    codes = np.empty(flat.shape, np.uint8)
    scales = np.empty(rows * blocks, np.float32)
    zeros = np.empty(rows * blocks, np.uint8)
    search = _search if bits == 4 else _range
    for start in range(0, len(flat), _CHUNK_BLOCKS):
        part = slice(start, start + _CHUNK_BLOCKS)
        if not np.isfinite(flat[part]).all():
            raise UsageError("weights: a matrix holds values that are not finite; the source file is damaged")
        codes[part], scales[part], zeros[part] = search(flat[part], (1 << bits) - 1)
    return BlockWeights(
        rows=rows,
        columns=columns,
        bits=bits,
        block=block,
        packed=_pack(codes.reshape(rows, -1), bits).reshape(rows, blocks, block * bits // 8),
        scales=scales.reshape(rows, blocks),
        zero_points=_pack(zeros.reshape(rows, blocks), bits),
    )


_Quantized = tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]


def _range(w: NDArray[np.float32], top: int) -> _Quantized:
    """Codes 0..top over each block's own range, which always includes zero."""
    low = np.minimum(w.min(axis=1), 0)
    scale = (np.maximum(w.max(axis=1), 0) - low) / np.float32(top)
    safe = np.where(scale > 0, scale, np.float32(1))
    zero = np.clip(np.rint(-low / safe), 0, top)
    codes = np.clip(np.rint(w / safe[:, None]) + zero[:, None], 0, top)
    return codes.astype(np.uint8), safe.astype(np.float32), zero.astype(np.uint8)


def _search(w: NDArray[np.float32], top: int) -> _Quantized:
    """The best of a small grid of scales and zero points per block, by squared error."""
    low = np.minimum(w.min(axis=1), 0)
    full = (np.maximum(w.max(axis=1), 0) - low) / np.float32(top)
    full = np.where(full > 0, full, np.float32(1))
    # The squared error at the refined scale is sum(w w) - gain, so the largest gain wins.
    best_gain = np.full(len(w), -1, np.float32)
    best_scale, best_zero = full.copy(), np.zeros(len(w), np.float32)
    best_codes = np.zeros(w.shape, np.float32)
    for shrink in _SHRINKS:
        guess = full * np.float32(shrink)
        scaled = w / guess[:, None]
        # A shrunken range is centred on the block's own: both extremes are clipped alike.
        middle = np.rint((-low - (full - guess) * np.float32(top / 2)) / guess)
        for shift in (-1, 0, 1):
            zero = np.clip(middle + shift, 0, top)
            centred = np.clip(np.rint(scaled), -zero[:, None], top - zero[:, None])
            cross = np.einsum("ij,ij->i", w, centred)
            norm = np.einsum("ij,ij->i", centred, centred)
            gain = np.divide(cross * cross, norm, out=np.zeros_like(cross), where=norm > 0)
            better = gain > best_gain
            best_gain[better] = gain[better]
            scale = np.divide(cross, norm, out=guess.copy(), where=norm > 0)
            best_scale[better], best_zero[better] = scale[better], zero[better]
            best_codes[better] = centred[better]
    codes = best_codes + best_zero[:, None]
    return codes.astype(np.uint8), best_scale.astype(np.float32), best_zero.astype(np.uint8)


def _pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Packs the last axis of [rows, n] codes, low nibble first when bits is 4."""
    if bits == 8:
        return codes
    if codes.shape[1] % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)))
    return np.ascontiguousarray(codes[:, 0::2] | (codes[:, 1::2] << 4))


def _unpack(packed: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint8]:
    """The first `count` codes of every packed row."""
    if bits == 8:
        return packed[:, :count]
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(len(packed), -1)[:, :count]


def quantize_symmetric(
    matrix: NDArray[np.float32], bits: int, block: int
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantises float32 [rows, columns] to `bits` (4 or 8) without zero points: value = scale * code.

    Returns codes int8 [rows, columns] and scales float32 [rows, ceil(columns / block)]. Codes are at most
    2^(bits - 1) - 1 in size; of a few scales the one of least squared error is taken, refined in closed form.
    Raises UsageError for other bits or values that are not finite.
    """
    if bits not in (4, 8):
        raise UsageError(f"bits: {bits} is not supported; it must be 4 or 8")
    if not np.isfinite(matrix).all():
        raise UsageError("weights: a matrix holds values that are not finite; the source file is damaged")
    rows, columns = matrix.shape
    blocks, top = -(-columns // block), (1 << (bits - 1)) - 1
    padded = np.pad(matrix, ((0, 0), (0, blocks * block - columns)))
    w = np.ascontiguousarray(padded, dtype=np.float32).reshape(rows * blocks, block)
    full = np.abs(w).max(axis=1) / np.float32(top)
    full = np.where(full > 0, full, np.float32(1))
    best_gain, best_scale = np.full(len(w), -1, np.float32), full.copy()
    best_codes = np.zeros(w.shape, np.float32)
    for shrink in _SHRINKS if bits == 4 else (1.0,):
        codes = np.clip(np.rint(w / (full * np.float32(shrink))[:, None]), -top, top)
        cross, norm = np.einsum("ij,ij->i", w, codes), np.einsum("ij,ij->i", codes, codes)
        gain = np.divide(cross * cross, norm, out=np.zeros_like(cross), where=norm > 0)
        better = gain > best_gain
        best_gain[better], best_codes[better] = gain[better], codes[better]
        best_scale[better] = np.divide(cross, norm, out=full.copy(), where=norm > 0)[better]
    codes = best_codes.reshape(rows, -1)[:, :columns].astype(np.int8)
    return codes, best_scale.reshape(rows, blocks)
