"""Two network namespaces joined by a path that really loses packets. Needs root, and leaves nothing behind:
namespaces and devices end with the file descriptors that hold them."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

Found = TypeVar("Found")

EDGE, MOVED, CLOUD = "10.77.0.1", "10.77.0.3", "10.77.0.2"
_DEVICE: Final = "acespec0"
_CLONE_NEWNET: Final = 0x40000000
_TUNSETIFF: Final = 0x400454CA
_TUN_WITHOUT_HEADER: Final = 0x1001
_LARGEST: Final = 65536
_TIMEOUT: Final = 20.0


def unavailable() -> str | None:
    """Why there can be no namespaces here; None when there can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with contextlib.closing(Namespace(EDGE)):
            return None
    except (OSError, subprocess.SubprocessError) as error:
        return f"network namespaces cannot be had: {error}"


class Namespace:
    """A network namespace with one device, whose packets are read from and written to ``device``."""

    def __init__(self, address: str) -> None:
        self._open = contextlib.ExitStack()
        try:
            _on_a_thread(self._make)
            self.configure("link", "set", "lo", "up")
            self.configure("addr", "add", f"{address}/24", "dev", _DEVICE)
            self.configure("link", "set", _DEVICE, "up")
        except BaseException:
            self.close()
            raise

    def inside(self, work: Callable[[], Found]) -> Found:
        """What ``work`` returns on a thread in the namespace: sockets that it makes stay there."""

        def enter() -> Found:
            _call("setns", self._namespace, _CLONE_NEWNET)
            return work()

        return _on_a_thread(enter)

    def configure(self, *arguments: str) -> None:
        """Runs `ip` inside."""
        self.inside(
            lambda: subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=_TIMEOUT)
        )

    def close(self) -> None:
        self._open.close()

    def _make(self) -> None:
        _call("unshare", _CLONE_NEWNET)
        self._namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self._open.callback(os.close, self._namespace)
        self.device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        self._open.callback(os.close, self.device)
        fcntl.ioctl(self.device, _TUNSETIFF, struct.pack("16sH", _DEVICE.encode(), _TUN_WITHOUT_HEADER))


class LossyPath:
    """Carries packets between two namespaces: some are lost, all are late. A context manager."""

    def __init__(self, edge: Namespace, cloud: Namespace, *, loss: float, delay: float, seed: int) -> None:
        self._ways = {edge.device: cloud.device, cloud.device: edge.device}
        self._loss = loss
        self._delay = delay
        self._random = random.Random(seed)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lossy-path", daemon=True)
        self.silent = False
        """Whether everything is lost."""
        self.lost = 0

    def __enter__(self) -> LossyPath:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(_TIMEOUT)

    def _run(self) -> None:
        late: list[tuple[float, int, int, bytes]] = []
        count = 0
        while not self._ended.is_set():
            readable, _, _ = select.select(list(self._ways), [], [], 0.002 if late else 0.02)
            now = time.monotonic()
            for device in readable:
                with contextlib.suppress(OSError):
                    packet = os.read(device, _LARGEST)
                    count += 1
                    if self.silent or self._random.random() < self._loss:
                        self.lost += 1
                    else:
                        heapq.heappush(late, (now + self._delay, count, self._ways[device], packet))
            while late and late[0][0] <= now:
                _, _, device, packet = heapq.heappop(late)
                with contextlib.suppress(OSError):
                    os.write(device, packet)


@contextlib.contextmanager
def joined(
    *, loss: float = 0.0, delay: float = 0.01, seed: int = 1
) -> Iterator[tuple[Namespace, Namespace, LossyPath]]:
    """The edge's namespace, the cloud's, and the path between them."""
    with (
        contextlib.closing(Namespace(EDGE)) as edge,
        contextlib.closing(Namespace(CLOUD)) as cloud,
        LossyPath(edge, cloud, loss=loss, delay=delay, seed=seed) as path,
    ):
        yield edge, cloud, path


def _call(name: str, *arguments: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _on_a_thread(work: Callable[[], Found]) -> Found:
    outcome: list[Found] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="in-namespace", daemon=True)
    thread.start()
    thread.join(_TIMEOUT)
    if failure:
        raise failure[0]
    return outcome[0]
