"""Where a head's training begins: at layers of its target, or at another head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from acespec_edge import draft_heads
from acespec_edge.errors import UsageError
from cloud_stub.dlite.checkpoint import load_head
from cloud_stub.dlite.model import DLiteHead
from cloud_stub.verifiers.torch_verifier import TorchVerifier


def adopt_layers(head: DLiteHead, model: Any, numbers: Sequence[int]) -> None:
    """Copies the target's layers ``numbers`` (from 0), in that order, into those of the head's backbone,
    which are built alike. Keys and values that heads of the target share are given to each; biases are left
    out.

    Raises UsageError when there are not as many as the head has layers, or their shapes are others.
    """
    stack = model.base_model.layers
    wanted = len(head.backbone.layers)
    if len(numbers) != wanted or not all(0 <= number < len(stack) for number in numbers):
        raise UsageError(
            f"train.start is {list(numbers)}: {wanted} of the target's layers, 0 to {len(stack) - 1}, "
            "would be right"
        )
    if getattr(stack[0].self_attn.q_proj, "weight", None) is None:
        raise UsageError(
            "train.start: the target's matrices have been put in another order, for speed; "
            'collect.dtype "bfloat16" leaves them as they are'
        )
    for number, ours in zip(numbers, head.backbone.layers, strict=True):
        layer: Any = ours
        theirs = stack[number]
        shared = layer.key.weight.shape[0] // theirs.self_attn.k_proj.weight.shape[0]
        width = head.config.head_dim
        pairs = {
            "attn_norm": theirs.input_layernorm.weight,
            "query": theirs.self_attn.q_proj.weight,
            "key": _repeated(theirs.self_attn.k_proj.weight, width, shared),
            "value": _repeated(theirs.self_attn.v_proj.weight, width, shared),
            "out": theirs.self_attn.o_proj.weight,
            "mlp_norm": theirs.post_attention_layernorm.weight,
            "gate": theirs.mlp.gate_proj.weight,
            "up": theirs.mlp.up_proj.weight,
            "down": theirs.mlp.down_proj.weight,
        }
        with torch.no_grad():
            for name, weight in pairs.items():
                mine = getattr(layer, name).weight
                if mine.shape != weight.shape:
                    raise UsageError(
                        f"train.start: {name} of the head is {list(mine.shape)}, of the target's layer "
                        f"{number} {list(weight.shape)}; equal heads, head_dim and intermediate are right"
                    )
                mine.copy_(weight)


def adopt_head(head: DLiteHead, source: str, verifier: TorchVerifier) -> None:
    """Copies the weights of the head ``source``, a name or a folder, which may have another draft vocabulary:
    they say what the target's output matrix is given, whichever of its rows are used.

    Raises UsageError when there is no such head of this target, or its shape is another.
    """
    weights = load_head(draft_heads.resolve(source), verifier).trained()
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    ours = {name: tuple(value.shape) for name, value in head.trained().items()}
    for name in sorted({*ours} | {*shapes}):
        if ours.get(name) != shapes.get(name):
            raise UsageError(
                f"train.start is {source!r}: {name} is {shapes.get(name, 'absent')} there, "
                f"{ours.get(name, 'absent')} by model; a head of the same shape would be right"
            )
    head.load_state_dict(weights)


def _repeated(weight: torch.Tensor, width: int, times: int) -> torch.Tensor:
    """Rows of each head, ``width`` of them, ``times`` over."""
    heads = weight.view(-1, width, weight.shape[1])
    return heads.repeat_interleave(max(1, times), 0).flatten(0, 1)
