"""Linear layers on the CPU, with the weights in oneDNN's own order."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

_TYPICAL_ROWS: Final = 8
"""Rows that the order of the weights is chosen for: a verification's."""

_LEAST_ROWS: Final = 4
"""Fewer rows are filled up: oneDNN has slower kernels for one and two, and for one row another order of
summation.
"""


class PackedLinear(nn.Module):
    """``x @ weight.T + bias`` in float32, for inference. Stateless after construction, so as thread-safe as
    PyTorch's own.

    The BLAS behind ``nn.Linear`` takes twice the time for two rows that it takes for one. Here up to eight
    rows cost about what one costs, the reading of the weights. A row's result does not depend on the rows
    beside it, bit for bit.
    """

    weight: torch.Tensor | None
    """The plain matrix [out, in], where something else reads it too."""

    def __init__(self, linear: nn.Linear, *, keep_weight: bool) -> None:
        super().__init__()
        self.weight = linear.weight if keep_weight else None
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _TYPICAL_ROWS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: [..., in]."""
        rows = x.reshape(-1, x.shape[-1])
        count = rows.shape[0]
        if count < _LEAST_ROWS:
            rows = nn.functional.pad(rows, (0, 0, 0, _LEAST_ROWS - count))
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        return out[:count].reshape(*x.shape[:-1], out.shape[-1])


def pack(model: Any) -> None:
    """Replaces the linear layers of a model in float32 on the CPU; others, and builds of PyTorch without
    oneDNN, are left as they are. The output layer keeps its matrix, which may be the embedding's too.
    """
    if model.dtype != torch.float32 or model.device.type != "cpu" or not _available():
        return
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child, keep_weight=child is head))


def _available() -> bool:
    operators = ("_reorder_linear_weight", "_linear_pointwise")
    present: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return present and all(hasattr(torch.ops.mkldnn, name) for name in operators)
