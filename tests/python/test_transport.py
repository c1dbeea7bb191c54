"""The WebSocket link against real sockets on this machine."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from acespec_edge.address import read_token
from acespec_edge.errors import LinkError, UsageError
from acespec_edge.transport import MAX_MESSAGE, Link, connect, local_connector
from tests.clock import LIMIT, wait_until
from tools.bench.fault_path import Fault, FaultPath

pytestmark = pytest.mark.usefixtures("threads_end")

Handler = Callable[[ServerConnection], None]


@contextlib.contextmanager
def listening(
    handler: Handler, *, token: str | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """A server that hands every connection to ``handler``; yields its address."""

    def check(connection: ServerConnection, request: Request) -> Response | None:
        if token is not None and request.headers.get("Authorization") != f"Bearer {token}":
            return connection.respond(HTTPStatus.UNAUTHORIZED, "token please\n")
        return None

    with serve(handler, "127.0.0.1", 0, ssl=tls, compression=None, process_request=check) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        port = server.socket.getsockname()[1]
        yield f"{'ws' if tls is None else 'wss'}://127.0.0.1:{port}/v1/spec"
        server.shutdown()
        thread.join(2.0)


def echo(connection: ServerConnection) -> None:
    for message in connection:
        connection.send(message)


def test_messages_travel_whole_and_are_counted() -> None:
    with listening(echo) as url, contextlib.closing(connect(url)) as link:
        for frame in (b"a", b"", b"x" * 100_000):
            link.send(frame)
            received = link.receive(5.0)
            assert received is not None
            assert received.data == frame
        assert link.bytes_up == link.bytes_down == 100_001
        assert link.receive(0.0) is None
        assert link.receive(0.01) is None


def test_arrival_is_stamped_while_nobody_reads() -> None:
    with listening(echo) as url, contextlib.closing(connect(url)) as link:
        sent = time.monotonic()
        link.send(b"a")
        wait_until(lambda: not link._inbox.empty())  # type: ignore[attr-defined]
        there = time.monotonic()
        received = link.receive(0.0)
        assert received is not None
        assert sent < received.at < there


def test_what_arrived_before_the_end_is_handed_out_first() -> None:
    def two_and_gone(connection: ServerConnection) -> None:
        connection.send(b"1")
        connection.send(b"2")

    with listening(two_and_gone) as url, contextlib.closing(connect(url)) as link:
        wait_until(lambda: not link._reader.is_alive())  # type: ignore[attr-defined]
        assert [received.data for received in (link.receive(1.0), link.receive(1.0)) if received] == [
            b"1",
            b"2",
        ]
        for _ in range(2):
            with pytest.raises(LinkError, match=r"lost the connection to 127\.0\.0\.1"):
                link.receive(1.0)
        with pytest.raises(LinkError, match="lost the connection"):
            link.send(b"x")


def test_text_and_oversized_messages_end_the_link() -> None:
    for message in ("text", b"x" * (MAX_MESSAGE + 1)):
        with (
            listening(lambda connection, message=message: connection.send(message)) as url,  # type: ignore[misc]
            contextlib.closing(connect(url)) as link,
            pytest.raises(LinkError),
        ):
            link.receive(5.0)


def test_closing_twice_is_fine() -> None:
    with listening(echo) as url:
        link = connect(url)
        link.close()
        link.close()


def test_the_token_is_shown_and_a_wrong_one_refused() -> None:
    with listening(echo, token="s3cret") as url:
        connect(url, token="s3cret").close()
        for wrong in (None, "other"):
            with pytest.raises(LinkError, match=r"401.*token"):
                connect(url, token=wrong)


def test_token_from_file_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("abc\n", encoding="utf-8")
    monkeypatch.delenv("ACESPEC_TOKEN", raising=False)
    assert read_token(None) is None
    assert read_token(file) == "abc"
    monkeypatch.setenv("ACESPEC_TOKEN", "from-environment")
    assert read_token(None) == "from-environment"
    assert read_token(file) == "abc"
    for content in ("", "two\nlines", "with space", "schlüssel"):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(UsageError, match="token"):
            read_token(file)
    with pytest.raises(UsageError, match="missing"):
        read_token(tmp_path / "missing")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}",
        shell=True,
        check=True,
        capture_output=True,
    )
    return cert, key


@contextlib.contextmanager
def listening_securely(certificate: tuple[Path, Path]) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with listening(echo, tls=context) as url:
        yield url


def test_tls_with_a_private_authority(certificate: tuple[Path, Path]) -> None:
    with listening_securely(certificate) as url:
        link: Link = connect(url, ca=certificate[0])
        link.send(b"a")
        received = link.receive(5.0)
        assert received is not None and received.data == b"a"
        link.close()


def test_tls_is_always_verified(certificate: tuple[Path, Path]) -> None:
    with listening_securely(certificate) as url, pytest.raises(LinkError, match="no secure connection"):
        connect(url)


@pytest.mark.parametrize(
    "url",
    ["", "llm.example.com", "https://x/v1/spec", "ws://", "ws://h:99999/", "ws://h:x/", "ws://a..b/"],
)
def test_bad_addresses(url: str) -> None:
    with pytest.raises(UsageError, match="cloud is"):
        connect(url)


def test_an_address_with_a_password_is_not_even_shown() -> None:
    for url in ("wss://me:s3cret@llm.example.com/v1/spec", "wss://s3cret@x/", "wss://a..b:s3cret@/"):
        with pytest.raises(UsageError, match="may hold none, a token file does") as caught:
            connect(url)
        assert "s3cret" not in str(caught.value)


def test_without_the_cloud_package_local_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acespec_edge.transport.entry_points", lambda **selection: ())
    with pytest.raises(UsageError, match="pip install"):
        local_connector("model")


def test_w2_a_peer_that_falls_silent_is_lost_and_left_at_once() -> None:
    """Nothing is broken, no answer comes: the link breaks itself, and closing it waits for nobody."""
    with (
        listening(echo) as url,
        FaultPath(int(url.split(":")[2].partition("/")[0]), [Fault("hole", 3000)]) as path,
        contextlib.closing(connect(f"ws://127.0.0.1:{path.port}/v1/spec", least_bound=0.1)) as link,
    ):
        link.send(b"a" * 1000)
        assert link.receive(LIMIT) is not None
        link.send(b"b" * 1000)
        with pytest.raises(LinkError, match=r"lost the connection to 127\.0\.0\.1:\d+: no sign of life for"):
            while True:
                link.receive(0.1)
        with pytest.raises(LinkError, match="no sign of life"):
            link.send(b"c")


def test_a_peer_that_says_nothing_but_answers_pings_is_there() -> None:
    silent = threading.Event()
    with (
        listening(lambda connection: silent.wait(LIMIT) and None) as url,
        contextlib.closing(connect(url, least_bound=0.1)) as link,
    ):
        began = time.monotonic()
        while time.monotonic() - began < 1.5:
            assert link.receive(0.1) is None
        silent.set()
