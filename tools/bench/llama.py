"""llama.cpp as the engine's rival: one batch of nodes after a fixed context, through llama-cpp-python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp

from acespec_edge.errors import EngineError


def llama_forward(file: str, threads: int, tokens: Sequence[int], context: int) -> Callable[[int], None]:
    """Loads a GGUF file and decodes the first `context` of `tokens`; what it returns decodes so many more of
    them as one batch, with logits for each, and forgets them again."""
    slots = len(tokens)
    model = llama_cpp.Llama(
        file,
        n_ctx=slots,
        n_batch=slots,
        n_ubatch=slots,
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
    )
    handle = model.ctx
    batch = llama_cpp.llama_batch_init(slots, 0, 1)
    forget = _forgetter(handle)

    def decode(first: int, count: int, want_logits: bool) -> None:
        batch.n_tokens = count
        for row in range(count):
            batch.token[row] = tokens[first + row]
            batch.pos[row] = first + row
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = 0
            batch.logits[row] = want_logits
        status = llama_cpp.llama_decode(handle, batch)
        if status:
            raise EngineError(f"llama.cpp: decoding {count} tokens at {first} failed with status {status}")
        llama_cpp.llama_synchronize(handle)

    def forward(nodes: int) -> None:
        decode(context, nodes, want_logits=True)
        forget(context)

    decode(0, context, want_logits=False)
    # The handle lives as long as the model does.
    forward.model = model  # type: ignore[attr-defined]
    return forward


def _forgetter(handle: Any) -> Callable[[int], None]:
    """Drops the keys and values from a position on, in the way of the installed version."""
    if hasattr(llama_cpp, "llama_memory_seq_rm"):
        memory = llama_cpp.llama_get_memory(handle)
        return lambda first: llama_cpp.llama_memory_seq_rm(memory, 0, first, -1)
    return lambda first: llama_cpp.llama_kv_self_seq_rm(handle, 0, first, -1)  # type: ignore[attr-defined, unused-ignore]
