"""A head on disk: ``config.json`` and ``model.safetensors``, in the layout of the speculators format.

https://github.com/vllm-project/speculators describes the layout; the type is "dlite". There layer ids count
the entries of ``hidden_states``, of which the first is the embedding: layer l is l + 1. ``d2t`` holds, for
each id of the draft vocabulary, what has to be added to get the target's; ``t2d`` which of the target's ids
are in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from acespec_edge.errors import UsageError
from cloud_stub.dlite.config import HeadConfig
from cloud_stub.dlite.identity import Identity
from cloud_stub.dlite.model import DLiteHead
from cloud_stub.verifiers.torch_verifier import TorchVerifier

TYPE: Final = "dlite"
CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"

_LAYOUT: Final = "0.9.0"
"""The version of speculators whose layout this is."""

_LONGEST_CONFIG: Final = 1 << 20
_OWN: Final = ("backbone", "rank", "rnn", "depth", "confidence")
"""Fields that the layout has no name for."""


def save_head(folder: Path, head: DLiteHead, target: Identity, *, dtype: torch.dtype = torch.float16) -> None:
    """Writes the head, each file whole or not at all. The target's own weights are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    # The norms' and the embeddings' ranges are small; 16 bits are ample.
    tensors = {name: value.detach().to(dtype).cpu().contiguous() for name, value in head.trained().items()}
    if head.reduced:
        ids = head.draft_ids.cpu()
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(head.width, dtype=torch.bool).index_fill_(0, ids, True)
    partial = folder / (WEIGHTS + ".partial")
    save_file(tensors, partial, metadata={"format": "pt"})
    os.replace(partial, folder / WEIGHTS)
    partial = folder / (CONFIG + ".partial")
    text = json.dumps(_written(head.config, target, head.hidden), indent=2) + "\n"
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, folder / CONFIG)


def load_head(folder: Path, verifier: TorchVerifier) -> DLiteHead:
    """The head in ``folder``, for ``verifier``, on its device and in its type; ready to be asked.

    Raises UsageError for files that are missing, damaged or of another kind, and for a head of another
    target.
    """
    config, target = read_config(folder)
    here = Identity.of(verifier)
    target.check(here)
    config.check_target(here.layers, here.width)
    model = verifier.model
    tensors = _read(folder / WEIGHTS)
    draft_ids = _draft_ids(folder, tensors, config, here.width)
    head = new_head(config, verifier, draft_ids)
    expected = {name: tuple(value.shape) for name, value in head.trained().items()}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    for name in sorted({*expected} | {*found}):
        if expected.get(name) != found.get(name):
            raise UsageError(
                f"{folder / WEIGHTS}: tensor {name} is {_shape(found.get(name))}, and the {CONFIG} beside it "
                f"makes it {_shape(expected.get(name))}"
            )
    head.load_state_dict({name: value.to(torch.float32) for name, value in tensors.items()})
    return head.to(device=model.device, dtype=model.dtype).eval().requires_grad_(False)


def new_head(config: HeadConfig, verifier: TorchVerifier, draft_ids: torch.Tensor | None = None) -> DLiteHead:
    """An untrained head for ``verifier``, beginning from its last norm."""
    model = verifier.model
    embedding = model.get_input_embeddings().weight
    projection = model.get_output_embeddings().weight
    head = DLiteHead(config, embedding, projection, draft_ids)
    head.adopt_norm(model.base_model.norm.weight)
    return head


def read_config(folder: Path) -> tuple[HeadConfig, Identity]:
    """The shape of the head in ``folder``, and its target. Raises UsageError."""
    path = folder / CONFIG
    try:
        if path.stat().st_size > _LONGEST_CONFIG:
            raise UsageError(f"{path}: over {_LONGEST_CONFIG} bytes; this is no head")
        written = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; a folder with a DLite head would be right") from error
    except ValueError as error:
        raise UsageError(f"{path}: not JSON ({error})") from error
    kind = written.get("speculators_model_type") if isinstance(written, Mapping) else None
    if kind != TYPE:
        raise UsageError(f"{path}: speculators_model_type is {kind!r}: {TYPE!r} would be right")
    try:
        layer = written["transformer_layer_config"]
        given = {name: written[name] for name in _OWN}
        given |= {
            "aux_layers": [index - 1 for index in written["aux_hidden_state_layer_ids"]],
            "draft_vocabulary": written["draft_vocab_size"],
            "block": written["speculators_config"]["proposal_methods"][0]["speculative_tokens"],
            "layers": layer["num_hidden_layers"],
            "heads": layer["num_attention_heads"],
            "head_dim": layer["head_dim"],
            "intermediate": layer["intermediate_size"],
            "rms_eps": layer["rms_norm_eps"],
            "rope_theta": layer["rope_theta"],
        }
        target = Identity.read(written["target"])
    except (KeyError, IndexError, TypeError) as error:
        raise UsageError(f"{path}: not the layout of a DLite head ({error!r})") from error
    return HeadConfig.from_fields(given), target


def _written(config: HeadConfig, target: Identity, hidden: int) -> dict[str, Any]:
    own = {field.name: getattr(config, field.name) for field in fields(config) if field.name in _OWN}
    return {
        "architectures": ["DLiteSpeculator"],
        "speculators_model_type": TYPE,
        "speculators_version": _LAYOUT,
        "speculators_config": {
            "algorithm": TYPE,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.block}],
            "verifier": {"name_or_path": target.name, "architectures": []},
        },
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": config.intermediate,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.heads,
            "head_dim": config.head_dim,
            "rms_norm_eps": config.rms_eps,
            "rope_theta": config.rope_theta,
            "vocab_size": target.width,
        },
        "aux_hidden_state_layer_ids": [layer + 1 for layer in config.aux_layers],
        "draft_vocab_size": config.draft_vocabulary,
        "block_size": config.block + 1,
        "sample_from_anchor": False,
        **own,
        "target": target.written(),
    }


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no mapping
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error


def _draft_ids(
    folder: Path, tensors: dict[str, torch.Tensor], config: HeadConfig, width: int
) -> torch.Tensor | None:
    """Takes ``d2t`` and ``t2d`` out of ``tensors`` and returns the ids that they name."""
    offsets, listed = tensors.pop("d2t", None), tensors.pop("t2d", None)
    if offsets is None and listed is None:
        return None
    if offsets is not None and listed is not None and offsets.dim() == 1 and listed.shape == (width,):
        ids = offsets.long() + torch.arange(len(offsets))
        if len(ids) == config.draft_vocabulary and torch.equal(ids, listed.nonzero()[:, 0]):
            return ids
    raise UsageError(
        f"{folder / WEIGHTS}: d2t and t2d do not name the same {config.draft_vocabulary} of {width} tokens"
    )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else f"of shape {list(shape)}"
