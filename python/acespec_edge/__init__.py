"""AceSpec Edge: the device side of speculative decoding across a WAN.

::

    from acespec_edge import EdgeRuntime

    with EdgeRuntime("bundles/qwen-0.5b", cloud="wss://llm.example.com/v1/spec", token_file="token") as edge:
        for piece in edge.stream("Write a haiku about rain.", max_tokens=64):
            print(piece.text, end="", flush=True)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acespec_edge.bundle import Bundle
    from acespec_edge.edge import EdgeRuntime
    from acespec_edge.errors import AcespecError, EngineError, LinkError, PeerError, UsageError
    from acespec_edge.generation import AsyncStream, Stream
    from acespec_edge.result import Piece, Result, Usage
    from acespec_edge.resumption import LinkEvent
    from acespec_edge.stats import Stats

__version__ = "0.1.0"

_HOMES = {
    "AcespecError": "errors",
    "AsyncStream": "generation",
    "Bundle": "bundle",
    "EdgeRuntime": "edge",
    "EngineError": "errors",
    "LinkError": "errors",
    "LinkEvent": "resumption",
    "PeerError": "errors",
    "Piece": "result",
    "Result": "result",
    "Stats": "stats",
    "Stream": "generation",
    "UsageError": "errors",
    "Usage": "result",
}

__all__ = [
    "AcespecError",
    "AsyncStream",
    "Bundle",
    "EdgeRuntime",
    "EngineError",
    "LinkError",
    "LinkEvent",
    "PeerError",
    "Piece",
    "Result",
    "Stats",
    "Stream",
    "Usage",
    "UsageError",
]


def __getattr__(name: str) -> Any:
    """Public names load their module when first used, so that importing one room does not load all."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
