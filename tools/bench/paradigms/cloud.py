"""The cloud of a comparison, as one process: the service, the service with DSSD's rows, the split target, the
service with a draft head.

`python -m tools.bench.paradigms.cloud`; all share one model, and all but the last one worker: contenders take
turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

from acespec_edge.errors import LinkError
from cloud_stub.cli import parse_pacing
from cloud_stub.continuation import SelfDrafting
from cloud_stub.scheduler import Pacing
from cloud_stub.server import CloudServer, Listener
from cloud_stub.service import Service, ServiceOptions
from tools.bench import command
from tools.bench.paradigms.padded import PaddedService
from tools.bench.paradigms.split import SplitServer

_START_TIMEOUT: Final = 30.0
_STOP_TIMEOUT: Final = 15.0
_IDLE_TIMEOUT: Final = 24 * 3600.0
"""A connection waits through the turns of all other paradigms."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is terminated; prints `ready` and a JSON object of addresses when it can be reached."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.paradigms.cloud", description="The cloud of a comparison."
    )
    parser.add_argument("--model", required=True, metavar="SOURCE", help="the target")
    parser.add_argument(
        "--emulate-verify-ms", default="0,0", metavar="BASE,PER_NODE", help="shortest forward"
    )
    parser.add_argument("--dlite", type=Path, metavar="DIR", help="the head")
    options = parser.parse_args(arguments)
    return command.run(lambda: _serve(options.model, parse_pacing(options.emulate_verify_ms), options.dlite))


def _serve(model: str, pacing: Pacing, dlite: Path | None) -> int:
    from cloud_stub.verifiers.loading import load_verifier

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    verifier = load_verifier(model, device="cpu", dtype="float32", threads=1)
    drafting = None
    if dlite is not None:
        from cloud_stub.dlite.head_runtime import HeadRuntime

        drafting = SelfDrafting(HeadRuntime.load(dlite, verifier))
    with serving(verifier, pacing, drafting) as addresses:
        print("ready", json.dumps(addresses), flush=True)
        ended.wait()
    return 0


@contextlib.contextmanager
def serving(verifier: Any, pacing: Pacing, drafting: SelfDrafting | None = None) -> Iterator[dict[str, str]]:
    """Serves a TorchVerifier on free ports of this machine until the block ends.

    Gives HOST:PORT of `spec` (the service), `padded` (with dense rows), `split`, and with `drafting` of
    `headed`.
    """
    options = ServiceOptions(pacing=pacing, idle_timeout=_IDLE_TIMEOUT)
    service = Service(verifier, options)
    with contextlib.ExitStack() as stack:
        stack.callback(service.close)
        split = SplitServer(service, verifier)
        stack.callback(split.close)
        addresses = {
            "spec": stack.enter_context(_server(service)),
            "padded": stack.enter_context(_server(cast("Service", PaddedService(service)))),
            "split": split.address,
        }
        if drafting is not None:
            headed = Service(verifier, options, drafting)
            stack.callback(headed.close)
            addresses["headed"] = stack.enter_context(_server(headed))
        yield addresses


@contextlib.contextmanager
def _server(service: Service) -> Iterator[str]:
    ready: queue.SimpleQueue[str] = queue.SimpleQueue()
    server = CloudServer(service, Listener(port=0), on_ready=ready.put)
    thread = threading.Thread(target=server.run, name="cloud-server", daemon=True)
    thread.start()
    try:
        try:
            address = ready.get(timeout=_START_TIMEOUT)
        except queue.Empty:
            raise LinkError(f"the cloud did not listen within {_START_TIMEOUT:g} s") from None
        yield address.partition("//")[2].partition("/")[0]
    finally:
        server.should_exit = True
        thread.join(_STOP_TIMEOUT)


if __name__ == "__main__":
    sys.exit(main())
