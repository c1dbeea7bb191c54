"""`acespec top`: what a running gateway is doing, live."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from acespec_edge.errors import LinkError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from acespec_edge.scrape import Sample

_MARKS: Final = " ▁▂▃▄▅▆▇█"
_HISTORY: Final = 48


def top(
    url: Annotated[
        str, typer.Option(metavar="URL", help="Address of the gateway.")
    ] = "http://127.0.0.1:8080",
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The gateway's API keys; the first one is used.")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.2, max=60.0, help="Seconds between two looks.")] = 1.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object, rates over one interval, and no live view.")
    ] = False,
) -> None:
    """Show round trip, goodput, K, B, hit rate and tokens/s of a running gateway; Ctrl-C ends it."""
    try:
        import prometheus_client  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'acespec-edge[gateway]'") from error
    from acespec_edge.scrape import sample, scrape

    key = None if api_key_file is None else _first_key(api_key_file)
    before = scrape(url, key)
    if as_json or not sys.stdout.isatty():
        time.sleep(interval)
        found = sample(scrape(url, key), before)
        print(json.dumps(found.to_dict()) if as_json else "\n".join(_lines(found)))
        return
    with contextlib.suppress(KeyboardInterrupt):
        _watch(url, key, interval)


def _watch(url: str, key: str | None, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from acespec_edge.scrape import Scrape, sample, scrape

    before: Scrape | None = None
    shown: Sample | None = None
    pace: deque[float] = deque(maxlen=_HISTORY)
    with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
        while True:
            problem = ""
            try:
                now = scrape(url, key)
            except LinkError as error:
                # It may come back; until then the last figures stand.
                problem, before = str(error), None
            else:
                shown, before = sample(now, before), now
                pace.append(shown.tokens_per_second)
            live.update(_screen(shown, pace, url, problem), refresh=True)
            time.sleep(interval)


def _screen(shown: Sample | None, pace: deque[float], url: str, problem: str) -> RenderableType:
    from rich.text import Text

    lines = [f"acespec top   {url}   Ctrl-C ends", ""]
    if shown is not None:
        lines += _lines(shown)
        lines += ["", f"pace        {_spark(pace)}  {max(pace, default=0.0):.1f} at most"]
    if problem:
        lines += ["", problem]
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def _lines(shown: Sample) -> list[str]:
    """One fact a line, 80 columns at most."""
    state = "generating" if shown.running else "idle"
    chosen = ", ".join(f"{name} {count}" for name, count in sorted(shown.choices.items())) or "nothing yet"
    lines = [
        f"model       {shown.model[:40]}, {state}, {shown.requests_inside} requests inside",
        f"tokens/s    {shown.tokens_per_second:.1f} now, {_figure(shown.target_tokens_per_second, '.1f')} "
        f"the target alone, {_figure(shown.expected_tokens_per_second, '.1f')} expected of the run",
        f"round trip  {_figure(shown.rtt_ms, '.0f')} ms (+-{_figure(shown.rtt_deviation_ms, '.0f')}), "
        f"verification {_figure(shown.verify_ms, '.0f')} ms, forward {_figure(shown.forward_ms, '.1f')} ms",
        f"goodput     {_figure(shown.up_kbit_per_second, ',.0f')} kbit/s up, "
        f"{_figure(shown.down_kbit_per_second, ',.0f')} kbit/s down",
        f"K           {_figure(shown.chain_length, '.0f')} tokens of a chain; "
        f"{_figure(shown.sent_nodes, '.1f')} nodes a draft",
        f"B           {_figure(shown.tree_budget, '.0f')} nodes until a verdict",
        f"hit rate    {_figure(shown.hit_rate, '.2f')}, {_figure(shown.tokens_per_round, '.1f')} "
        f"tokens a round, acceptance {_figure(shown.acceptance, '.2f')}",
        f"chosen      {chosen}",
        f"in all      {shown.tokens:,} tokens, {shown.requests} requests, {shown.failed} failed, "
        f"{shown.connections} connections",
    ]
    return [line[:80] for line in lines]


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _spark(pace: deque[float]) -> str:
    most = max(pace, default=0.0)
    if most <= 0:
        return _MARKS[1] * len(pace)
    return "".join(_MARKS[1 + round((len(_MARKS) - 2) * value / most)] for value in pace)


def _first_key(path: Path) -> str:
    from acespec_edge.keyring import first_secret

    return first_secret(path, "api_key_file")
