"""From the name of a model to a verifier that is ready to serve."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from acespec_edge import models
from acespec_edge.errors import UsageError
from acespec_edge.export.sources import open_source
from acespec_edge.vocabulary import Vocabulary
from cloud_stub.verifiers.from_source import build_model
from cloud_stub.verifiers.packed_linear import pack
from cloud_stub.verifiers.torch_verifier import TorchVerifier

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_verifier(
    source: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    max_context: int | None = None,
    progress: models.Progress | None = None,
) -> TorchVerifier:
    """Loads a name from the registry, a model folder, a .gguf file (dequantised) or a Hugging Face id.

    ``device``: "cpu" or "cuda"; cuda where there is one unless told otherwise. ``dtype``: a key of
    ``DTYPES``; float32 on the CPU, bfloat16 on cuda. ``threads``: of the CPU. Weights come from
    safetensors or GGUF only, and no code of the model's is run. Raises UsageError for options that cannot
    be, LinkError when a download fails.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device is 'cuda', but PyTorch sees no CUDA device here: use 'cpu'")
    if device not in ("cpu", "cuda"):
        raise UsageError(f"device is {device!r}: 'cpu' or 'cuda' would be right")
    dtype = dtype or ("float32" if device == "cpu" else "bfloat16")
    if dtype not in DTYPES:
        raise UsageError(f"dtype is {dtype!r}: one of {', '.join(DTYPES)} would be right")
    if threads is not None:
        if threads < 1:
            raise UsageError(f"threads is {threads}: at least 1 would be right")
        torch.set_num_threads(threads)
    source = os.path.expanduser(source)
    path = models.resolve(source, progress=progress)
    if path.is_dir():
        name = path.resolve().name if Path(source).exists() else source.rpartition("/")[2]
        model, vocabulary = _load_folder(path, DTYPES[dtype])
    else:
        opened = open_source(source, progress=progress)
        name = opened.name
        model = build_model(opened, DTYPES[dtype])
        vocabulary = Vocabulary.from_tokenizer_json(opened.tokenizer_json)
    model = model.to(device)
    pack(model)
    verifier = TorchVerifier(model, vocabulary, name=name, max_context=max_context)
    verifier.warm_up()
    return verifier


def _load_folder(folder: Path, dtype: torch.dtype) -> tuple[Any, Vocabulary]:
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise UsageError(
            f"{folder}: there is no tokenizer.json; a folder with a fast tokenizer would be right"
        )
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder}: not a model that can be served ({error})") from error
    return model, Vocabulary.from_tokenizer_json(tokenizer)
