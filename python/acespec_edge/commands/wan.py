"""`acespec wan`: an emulated wide-area network between an edge and a cloud on this machine."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
from collections.abc import Callable
from typing import Annotated

import typer

from acespec_edge.wan import Traffic, WanEmulator


def wan(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the edge connects; port 0 takes a free one.")
    ],
    to: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the cloud listens.")],
    rtt: Annotated[str, typer.Option(help="Round trip added, half of it each way.")] = "100ms",
    up: Annotated[str, typer.Option(help="Rate towards the cloud: 50kbit, 1mbit, unlimited.")] = "unlimited",
    down: Annotated[str, typer.Option(help="Rate from the cloud.")] = "unlimited",
    jitter: Annotated[
        str, typer.Option(help="Each packet is up to this much earlier or later, in order.")
    ] = "0ms",
    outage: Annotated[
        str,
        typer.Option(
            metavar="START:DURATION[:cut][,...]",
            help="Nothing passes for DURATION from START after the start; `cut` also breaks connections.",
        ),
    ] = "",
    seed: Annotated[int, typer.Option(help="Fixes the jitter.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object when listening, one at the end.")
    ] = False,
) -> None:
    """Delay and pace TCP connections like a wide-area network, until interrupted. Needs no root."""
    emulator = WanEmulator(listen, to, rtt, up, down, jitter, outage or (), seed)

    def announce(address: str) -> None:
        if as_json:
            print(json.dumps({"listen": address, "to": to, "rtt": rtt, "up": up, "down": down}), flush=True)
        else:
            print(f"WAN on {address} to {to}: RTT {rtt}, up {up}, down {down}; Ctrl-C ends it", flush=True)

    asyncio.run(_serve(emulator, announce))
    _report(emulator.traffic, as_json)


async def _serve(emulator: WanEmulator, announce: Callable[[str], None]) -> None:
    finish = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, finish.set)
    async with emulator:
        announce(emulator.address)
        await finish.wait()


def _report(traffic: Traffic, as_json: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(traffic)))
        return
    ways = f"{traffic.up_bytes:,} bytes up, {traffic.down_bytes:,} down"
    print(f"carried {ways} over {traffic.connections} connections, {traffic.failed_connects} not answered")
