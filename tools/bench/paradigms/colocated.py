"""Speculative decoding with the drafter beside the target: only text crosses the network.

`python -m tools.bench.paradigms.colocated` is the service; it shares the cloud's core with the target, and
the two take turns: it drafts a chain of the best length, waits, and explores nothing meanwhile. Lines of text
over TCP, a connection a question:

    up      one JSON object: prompt (ids), tokens, temperature, seed
    down    the ids of a piece, separated by spaces; at the end "." and the figures as JSON, or "!" and why

The line of figures is the bench's own and is not counted as traffic.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from acespec_edge.drafting import Drafter, load_drafter
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import AcespecError, LinkError, PeerError
from tools.bench import command
from tools.bench.pairs import PAIRS, bundle_of
from tools.bench.paradigms.runners import forget
from tools.bench.paradigms.runs import Question, Run, watched

_SILENCE: Final = 300.0
_CONNECT_TIMEOUT: Final = 10.0
_LONGEST_LINE: Final = 1 << 20
_CONTEXT: Final = 2048
_CACHE_MB: Final = 32


class Lines:
    """Lines over a connected socket, which it owns. One thread at a time."""

    def __init__(self, connected: socket.socket, silence: float = _SILENCE) -> None:
        connected.settimeout(silence)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._reader = connected.makefile("rb")

    def send(self, line: str) -> int:
        """Sends a line and returns its bytes. Raises LinkError."""
        data = line.encode() + b"\n"
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise LinkError(f"lost the other side: {error}") from error
        return len(data)

    def receive(self) -> str:
        """The next line, without its end. Raises LinkError when the other side is gone or silent, PeerError
        for a line over 1 MiB or one that is no text."""
        try:
            data = self._reader.readline(_LONGEST_LINE + 1)
        except OSError as error:
            raise LinkError(f"lost the other side: {error}") from error
        if len(data) > _LONGEST_LINE:
            raise PeerError(f"a line of more than {_LONGEST_LINE} bytes arrived")
        if not data.endswith(b"\n"):
            raise LinkError("the other side hung up")
        try:
            return data[:-1].decode()
        except UnicodeDecodeError as error:
            raise PeerError(f"a line is no text: {error}") from error

    def close(self) -> None:
        """Ends the connection."""
        self._reader.close()
        self._socket.close()


class ColocatedRunner:
    """Asks the service at `address` (HOST:PORT)."""

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._clock = clock

    def run(self, question: Question, temperature: float) -> Run:
        """See Runner. Raises LinkError with the service's reason when it fails."""
        asked = {"prompt": question.ids, "tokens": question.tokens}
        asked |= {"temperature": temperature, "seed": question.seed}
        started = self._clock()
        try:
            connected = socket.create_connection(self._address, _CONNECT_TIMEOUT)
        except OSError as error:
            raise LinkError(f"cannot reach the drafter in the cloud: {error}") from error
        lines = Lines(connected)
        figures: dict[str, Any] = {}
        try:
            up = lines.send(json.dumps(asked, separators=(",", ":")))
            ids, shown = watched(_pieces(lines, figures), started, self._clock)
        finally:
            lines.close()
        return Run(ids, shown, up, **figures)

    def close(self) -> None:
        """Nothing is kept open."""


def _pieces(lines: Lines, figures: dict[str, Any]) -> Iterator[list[int]]:
    """The pieces of an answer; `figures` takes what there is to tell of it, in the names of Run."""
    down = 0
    while True:
        line = lines.receive()
        if line.startswith("!"):
            raise LinkError(f"the drafter in the cloud: {line[1:]}")
        try:
            if line.startswith("."):
                figures.update(_figures(json.loads(line[1:])), bytes_down=down)
                return
            piece = [int(word) for word in line.split()]
        except (ValueError, TypeError, KeyError) as error:
            raise PeerError(f"the drafter in the cloud sent {line[:80]!r}: {error}") from error
        down += len(line) + 1
        yield piece


def _figures(told: Any) -> dict[str, Any]:
    return {
        "rounds": int(told["rounds"]),
        "accepted": float(told["accepted"]),
        "hit_rate": float(told["hit_rate"]),
        "drafter_forwards": int(told["forwards"]),
    }


def answer(edge: EdgeRuntime, drafter: Drafter, lines: Lines) -> None:
    """Reads a question, streams its answer. Raises LinkError when whoever asks is gone."""
    try:
        asked = json.loads(lines.receive())
        prompt = [int(token) for token in asked["prompt"]]
        forget(drafter, prompt, edge.bundle.vocabulary)
        stream = edge.stream(
            prompt,
            max_tokens=int(asked["tokens"]),
            temperature=float(asked["temperature"]),
            seed=int(asked["seed"]),
        )
    except (ValueError, TypeError, KeyError, AcespecError) as error:
        lines.send(f"!{type(error).__name__}: {error}")
        return
    with stream:
        try:
            for piece in stream:
                if piece.token_ids:
                    lines.send(" ".join(map(str, piece.token_ids)))
        except AcespecError as error:
            lines.send(f"!{error}")
            return
    stats = stream.result.stats
    figures = {"rounds": stats.rounds, "accepted": stats.accepted_mean}
    figures |= {"hit_rate": stats.hit_rate, "forwards": stats.forwards}
    lines.send("." + json.dumps(figures))


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is terminated; prints `ready HOST:PORT` when it can be asked."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.paradigms.colocated", description="The drafter beside the target."
    )
    command.add_pair(parser)
    parser.add_argument("--cloud", required=True, metavar="URL", help="the target's ws:// address")
    options = parser.parse_args(arguments)
    return command.run(lambda: _serve(options.pair, options.cloud))


def _serve(pair: str, cloud: str) -> int:
    from acespec_edge.policy import POLICIES

    bundle = bundle_of(PAIRS[pair])
    drafter = load_drafter(bundle, context=_CONTEXT, cache_mb=_CACHE_MB, threads=1)
    policy = dataclasses.replace(POLICIES["chain"], name="colocated", explore="none")
    with (
        EdgeRuntime(bundle, cloud, drafter=drafter, context=_CONTEXT, policy=policy) as edge,
        socket.create_server(("127.0.0.1", 0)) as listening,
    ):
        host, port = listening.getsockname()[:2]
        print(f"ready {host}:{port}", flush=True)
        while True:
            connected, _ = listening.accept()
            lines = Lines(connected)
            try:
                answer(edge, drafter, lines)
            except LinkError as error:
                print(f"gave up: {error}", file=sys.stderr, flush=True)
            finally:
                lines.close()


if __name__ == "__main__":
    sys.exit(main())
