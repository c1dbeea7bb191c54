"""Which execution provider runs a bundle's graph: the best that it is made for and that works here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from acespec_edge.errors import EngineError

if TYPE_CHECKING:
    from acespec_edge.bundle import Bundle

_log: Final = logging.getLogger("acespec.engine")
_Engine = TypeVar("_Engine")

_MOST_ROWS: Final = 64  # of one forward, as the engine has it
_USUAL_ROWS: Final = 8


def best_engine(
    providers: Sequence[str], make: Callable[[str], _Engine], *, name: str
) -> tuple[_Engine, list[str]]:
    """Makes the engine of the first provider that takes it, and says in the log which that is.

    Also returns why each better one was passed over, a line each. The last provider's EngineError is raised,
    with those lines, when none does.
    """
    passed: list[str] = []
    for provider in providers:
        try:
            engine = make(provider)
        except EngineError as error:
            passed.append(f"{provider}: {error}")
            continue
        if passed:
            _log.warning("%s runs on %s; passed over: %s", name, provider, "; ".join(passed))
        else:
            _log.info("%s runs on %s", name, provider)
        return engine, passed
    raise EngineError(f"{name} runs on none of {', '.join(providers)}: {'; '.join(passed)}")


def tensorrt_options(bundle: Bundle, *, slots: int, cache: Path) -> list[tuple[str, str]]:
    """What TensorRT is told, under ONNX Runtime's names: float16, engines and timings kept in folder
    ``cache`` (building takes minutes), and one profile of shapes from one row over the first 64 slots to the
    largest forward, with eight rows over a quarter of the ring as the usual one.
    """
    shapes = {
        which: ",".join(
            f"{name}:{'x'.join(map(str, shape))}" for name, shape in _shapes(bundle, rows, visible)
        )
        for which, rows, visible in (
            ("min", 1, 64),
            ("opt", _USUAL_ROWS, max(64, slots // 4 // 64 * 64)),
            ("max", _MOST_ROWS, slots),
        )
    }
    return [
        ("trt_fp16_enable", "1"),
        ("trt_engine_cache_enable", "1"),
        ("trt_engine_cache_path", str(cache)),
        ("trt_timing_cache_enable", "1"),
        ("trt_timing_cache_path", str(cache)),
        *((f"trt_profile_{which}_shapes", text) for which, text in shapes.items()),
    ]


def _shapes(bundle: Bundle, rows: int, visible: int) -> list[tuple[str, tuple[int, ...]]]:
    row = (visible, bundle.kv_width)
    ring = [(f"past_{part}.{layer}", row) for layer in range(bundle.layers) for part in "kv"]
    fixed: list[tuple[str, tuple[int, ...]]] = [
        ("input_ids", (1, rows)),
        ("position_ids", (1, rows)),
        ("kv_slots", (rows,)),
        ("attention_bias", (rows, visible)),
        ("rows", (rows,)),
    ]
    where = [("slot_positions", (visible,))] if bundle.windowed else []
    return [*fixed, *where, *ring]
