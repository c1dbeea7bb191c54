"""The network of one cell: a link of the same make for every contender, so that what one keeps open does not
take from another's.

`python -m tools.bench.paradigms.links`, a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from acespec_edge.wan import WanEmulator
from tools.bench import command
from tools.bench.paradigms.grid import Cell
from tools.bench.processes import server

_START_TIMEOUT: Final = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Carries until it is terminated; prints `ready` and a JSON list of HOST:PORT, one for each --to."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.paradigms.links", description="Equal links, one for each destination."
    )
    parser.add_argument("--rtt-ms", type=float, required=True, metavar="MS", help="round trip")
    parser.add_argument("--up", type=float, required=True, metavar="BPS", help="rate towards the cloud")
    parser.add_argument("--down", type=float, required=True, metavar="BPS", help="rate from the cloud")
    parser.add_argument("to", nargs="+", metavar="HOST:PORT", help="where each link leads")
    options = parser.parse_args(arguments)
    cell = Cell(options.rtt_ms, options.up, options.down)
    return command.run(lambda: asyncio.run(_carry(cell, options.to)))


async def _carry(cell: Cell, destinations: Sequence[str]) -> int:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with contextlib.AsyncExitStack() as stack:
        emulators = [
            await stack.enter_async_context(
                WanEmulator("127.0.0.1:0", to, rtt=cell.rtt_ms / 1e3, up=cell.up_bps, down=cell.down_bps)
            )
            for to in destinations
        ]
        print("ready", json.dumps([emulator.address for emulator in emulators]), flush=True)
        await ended.wait()
    return 0


@contextlib.contextmanager
def links(cell: Cell, destinations: Sequence[str], log: Path) -> Iterator[list[str]]:
    """Such a process; gives the near end of each link."""
    program = [sys.executable, "-m", "tools.bench.paradigms.links", f"--rtt-ms={cell.rtt_ms!r}"]
    program += [f"--up={cell.up_bps!r}", f"--down={cell.down_bps!r}", *destinations]
    with server(program, r"^ready (.*)", log, timeout=_START_TIMEOUT) as found:
        yield json.loads(found)


if __name__ == "__main__":
    sys.exit(main())
