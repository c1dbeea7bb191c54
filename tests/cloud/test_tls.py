"""TLS between edge and cloud: what is refused, by whom, and what is said of it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acespec_edge import transport
from acespec_edge.errors import LinkError, UsageError
from acespec_edge.tls import client_context, server_context
from cloud_stub.server import Listener
from tests.cloud.live import TIMEOUT, running
from tests.cloud.pki import Pair, Pki


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def own(pki: Pki) -> Pair:
    """The cloud's own, which is right."""
    return pki.pair("own", "127.0.0.1")


@contextlib.contextmanager
def cloud(pair: Pair, client_ca: Path | None = None) -> Iterator[str]:
    with running(Listener(port=0, tls_cert=pair.cert, tls_key=pair.key, tls_client_ca=client_ca)) as (_, url):
        assert url.startswith("wss://")
        yield url


@contextlib.contextmanager
def one_handshake(context: ssl.SSLContext) -> Iterator[str]:
    """A server that takes one connection and shakes hands."""

    def take() -> None:
        with contextlib.suppress(OSError):
            near, _ = listening.accept()
            near.settimeout(TIMEOUT)
            with near, context.wrap_socket(near, server_side=True) as secured:
                secured.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=take)
        thread.start()
        yield f"wss://127.0.0.1:{listening.getsockname()[1]}/v1/spec"
        thread.join(TIMEOUT)


def refused(url: str, words: str, **options: Any) -> None:
    with pytest.raises(LinkError, match=words):
        transport.connect(url, **options)


def test_a_certificate_of_another_host(pki: Pki) -> None:
    with cloud(pki.pair("other", "llm.example.com")) as url:
        refused(url, r"not valid for '127\.0\.0\.1'", ca=pki.ca)


def test_a_certificate_that_has_expired(pki: Pki) -> None:
    with cloud(pki.pair("old", "127.0.0.1", expired=True)) as url:
        refused(url, "certificate has expired", ca=pki.ca)


def test_an_authority_that_nobody_named(pki: Pki, own: Pair) -> None:
    with cloud(own) as url:
        for options in ({}, {"ca": pki.stranger}):
            refused(url, "issuer certificate; if it is of a private authority.*--ca", **options)
        transport.connect(url, ca=pki.ca).close()


def test_with_and_without_tls_do_not_meet(pki: Pki, own: Pair) -> None:
    with cloud(own) as url:
        refused(url.replace("wss:", "ws:"), "is it a wss:// address")
    with running() as (_, url):
        refused(url.replace("ws:", "wss:"), "is it a ws:// address", ca=pki.ca)


def test_mutual(pki: Pki, own: Pair) -> None:
    edge = pki.pair("edge", "edge@example.com")
    with cloud(own, pki.ca) as url:
        transport.connect(url, ca=pki.ca, client_cert=edge.cert, client_key=edge.key).close()
        refused(url, "if it wants a client certificate, give --client-cert", ca=pki.ca)
        for pair in (
            pki.pair("unknown", "edge@example.com", by="stranger"),
            pki.pair("expired", "edge@example.com", expired=True),
        ):
            refused(
                url, "may not take the client cert", ca=pki.ca, client_cert=pair.cert, client_key=pair.key
            )


@pytest.mark.parametrize(
    ("by", "words"),
    [(None, r"client certificate \(--client-cert\)"), ("stranger", "does not know the authority")],
)
def test_mutual_by_tls_1_2(pki: Pki, own: Pair, by: str | None, words: str) -> None:
    context = server_context(own.cert, own.key, pki.ca)
    assert context is not None
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    shown: dict[str, Any] = {}
    if by is not None:
        pair = pki.pair("shown", "edge@example.com", by=by)
        shown = {"client_cert": pair.cert, "client_key": pair.key}
    with one_handshake(context) as url:
        refused(url, words, ca=pki.ca, **shown)


def test_no_version_before_1_2(pki: Pki, own: Pair) -> None:
    for ours in (client_context(), client_context(pki.ca), server_context(own.cert, own.key)):
        assert ours is not None and ours.minimum_version is ssl.TLSVersion.TLSv1_2
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.load_cert_chain(own.cert, own.key)
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with one_handshake(old) as url:
        refused(url, "no secure connection", ca=pki.ca)


def test_nothing_switches_the_verification_off(pki: Pki) -> None:
    for context in (client_context(), client_context(pki.ca)):
        assert context.check_hostname and context.verify_mode is ssl.CERT_REQUIRED


def test_wrong_files_are_named(pki: Pki, own: Pair, tmp_path: Path) -> None:
    for context, arguments, words in (
        (server_context, (None, None, pki.ca), "tls_client_ca is .*give --tls-cert"),
        (server_context, (own.cert, None, None), "both a certificate and its key"),
        (server_context, (own.cert, own.key, own.key), "tls_client_ca .*a PEM file of certificates"),
        (server_context, (own.cert, own.key, tmp_path), "tls_client_ca .*cannot be used"),
        (client_context, (tmp_path / "none",), "ca .*none.*cannot be used"),
        (client_context, (None, own.cert), "--client-cert and --client-key"),
        (client_context, (None, None, own.key), "--client-cert and --client-key"),
        (client_context, (None, own.cert, tmp_path / "none"), "client_key is .*no such file"),
        (client_context, (None, own.key, own.key), "client_cert .*cannot be used"),
    ):
        with pytest.raises(UsageError, match=words):
            context(*arguments)
    for name in ("ca", "client_cert", "client_key"):
        with pytest.raises(UsageError, match=f"{name} is .*not encrypted"):
            transport.connect("ws://127.0.0.1:1/v1/spec", **{name: own.cert})
