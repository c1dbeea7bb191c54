"""A TCP relay whose link can be cut or can swallow everything, as a WAN does."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    """Forwards one port of this machine to another. ``cut``: both ends of the connections that are open see
    them break. ``swallow``: their bytes vanish, and nobody is told. Connections that come later live.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._swallowed: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name="relay", daemon=True)]
        self._threads[0].start()

    def swallow(self) -> None:
        self._swallowed.update(self._sockets)

    def cut(self) -> None:
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        for thread in self._threads:
            thread.join(2.0)
        for end in self._sockets:
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    thread = threading.Thread(
                        target=self._pump, args=(source, sink), name="relay", daemon=True
                    )
                    self._threads.append(thread)
                    thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source not in self._swallowed:
                    sink.sendall(data)
        with contextlib.suppress(OSError):
            if source not in self._swallowed:
                sink.shutdown(socket.SHUT_RDWR)
