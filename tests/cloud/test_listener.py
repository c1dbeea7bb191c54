"""Where the server listens: what is refused before a model is loaded, what accepted sockets are like, TLS."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from acespec_edge import _core, transport
from acespec_edge.errors import LinkError, UsageError
from acespec_edge.keyring import Keyring
from acespec_edge.listening import is_loopback
from cloud_stub.server import CloudServer, Listener
from tests.cloud.live import LOCAL, LOGITS, PROMPT, TIMEOUT, Edge, running
from tests.cloud.rig import plain_greedy


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA, tmp_path: Path) -> Listener:
    """A listener with a certificate of the private authority."""
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    for blob in issued.cert_chain_pems:
        blob.write_to_path(tmp_path / "cert.pem", append=True)
    return Listener(port=0, tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem")


def test_listening_beyond_this_machine_needs_a_token(tmp_path: Path) -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.8.0.1", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "192.168.0.2", "::", "llm.example.com")] == [False] * 4
    with pytest.raises(UsageError, match=r"0\.0\.0\.0.*token"):
        Listener(host="0.0.0.0")
    assert Listener(host="0.0.0.0", keys=Keyring.of("t")).port == 8443
    with pytest.raises(UsageError, match="certificate and its key"):
        Listener(tls_cert=tmp_path / "cert.pem")
    with pytest.raises(UsageError, match=r"tls_cert .*no such file"):
        Listener(tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem")


def test_a_taken_port_is_named() -> None:
    with Listener(port=0).bind() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"127\.0\.0\.1:{port}"):
            Listener(port=port).bind()


def test_a_certificate_that_cannot_be_used_is_refused_at_once(tls: Listener, tmp_path: Path) -> None:
    assert tls.tls_cert is not None and tls.tls_key is not None
    other = tmp_path / "other.pem"
    for wrong in (b"not a key", trustme.CA().issue_cert("127.0.0.1").private_key_pem.bytes()):
        other.write_bytes(wrong)
        with pytest.raises(UsageError, match=r"cert\.pem.*other\.pem.*its own key"):
            Listener(tls_cert=tls.tls_cert, tls_key=other)
    locked = serialization.load_pem_private_key(tls.tls_key.read_bytes(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(b"secret"),
    )
    other.write_bytes(locked)
    with pytest.raises(UsageError, match="without a password"):
        Listener(tls_cert=tls.tls_cert, tls_key=other)


def test_tls_with_a_private_authority(tls: Listener, authority: trustme.CA, tmp_path: Path) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    trustme.CA().cert_pem.write_to_path(tmp_path / "stranger.pem")
    with running(tls) as (service, address):
        assert address.startswith("wss://")
        link = transport.connect(address, ca=tmp_path / "ca.pem")
        for message in (
            _core.Hello(tokenizer=service.target.fingerprint, vocabulary=16, drafter="bare"),
            _core.Open(request=1, prompt=PROMPT, max_tokens=1),
        ):
            link.send(_core.encode(message))
            answer = link.receive(TIMEOUT)
            assert answer is not None
        assert _core.decode(answer.data).tokens == plain_greedy(LOGITS, PROMPT, 1)
        link.close()
        with pytest.raises(LinkError, match="no secure connection"):
            transport.connect(address, ca=tmp_path / "stranger.pem")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(tmp_path / "ca.pem")
        with pytest.warns(DeprecationWarning):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(ssl.SSLError):
            Edge(address, service, ssl=old)


def test_accepted_sockets_send_at_once_and_give_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[CloudServer] = []
    startup = CloudServer.startup

    async def seen(self: CloudServer, sockets: list[socket.socket] | None = None) -> None:
        servers.append(self)
        await startup(self, sockets)

    monkeypatch.setattr(CloudServer, "startup", seen)
    with running(LOCAL) as (service, address), Edge(address, service).greet():
        (connection,) = servers[0].server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
