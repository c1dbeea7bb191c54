"""TLS contexts of both sides: version 1.2 or newer, certificates always verified, mutual where asked for."""

from __future__ import annotations

import ssl
from pathlib import Path

from acespec_edge.errors import UsageError

_NO_PASSWORD = ""
"""Given for a key's, so that OpenSSL does not ask the terminal for that of an encrypted one."""

_HINTS = {
    "CERTIFICATE_REQUIRED": "it wants a client certificate: give --client-cert and --client-key",
    "UNKNOWN_CA": "it does not know the authority of this client certificate",
    "CERTIFICATE_EXPIRED": "this client certificate has expired",
    "BAD_CERTIFICATE": "it does not take this client certificate",
    "CERTIFICATE_UNKNOWN": "it does not take this client certificate",
    "WRONG_VERSION_NUMBER": "it speaks no TLS at this port: is it a ws:// address?",
    "PROTOCOL_VERSION": "it takes no TLS version that is spoken here (1.2 and 1.3 are)",
    "HANDSHAKE_FAILURE": "no cipher suits both sides, or it wants a client certificate (--client-cert)",
}
"""What OpenSSL's reasons mean, by the end of their names."""


def server_context(
    cert: Path | None, key: Path | None, client_ca: Path | None = None
) -> ssl.SSLContext | None:
    """What a server listens with; None without files. ``cert``: PEM file of the certificate chain, ``key``:
    of its key, without a password. ``client_ca``: PEM file of the authorities one of which every client must
    show a certificate of.

    Raises UsageError for half a pair, authorities without a pair, and files that cannot be used.
    """
    if cert is None and key is None:
        if client_ca is not None:
            raise UsageError(
                f"tls_client_ca is {str(client_ca)!r}, but without TLS no client shows a certificate: give "
                "--tls-cert and --tls-key too"
            )
        return None
    if cert is None or key is None:
        raise UsageError("TLS needs both a certificate and its key: give --tls-cert and --tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_pair(context, "tls_cert", cert, "tls_key", key)
    if client_ca is not None:
        _load_authorities(context, "tls_client_ca", client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def client_context(
    ca: Path | None = None, cert: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """What an edge connects with: the server's certificate and name are verified, there is no switch for it.

    ``ca``: PEM file of a private authority, instead of the system's. ``cert`` and ``key``: PEM files of this
    edge's own certificate, where the cloud asks for one. Raises UsageError for half a pair and for files that
    cannot be used.
    """
    context = ssl.create_default_context() if ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca is not None:
        _load_authorities(context, "ca", ca)
    if (cert is None) != (key is None):
        raise UsageError(
            "a client certificate needs its key, and the other way round: give --client-cert and --client-key"
        )
    if cert is not None and key is not None:
        _load_pair(context, "client_cert", cert, "client_key", key)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def why(error: ssl.SSLError) -> str:
    """What a failed handshake means to the one who has to fix it."""
    verify = str(getattr(error, "verify_message", "") or "")
    if "issuer certificate" in verify or "self-signed" in verify:
        return f"{verify}; if it is of a private authority, give its certificate with --ca"
    if verify:
        return verify
    reason = error.reason or ""
    return next((f"{hint} ({reason})" for end, hint in _HINTS.items() if reason.endswith(end)), str(error))


def _load_pair(context: ssl.SSLContext, cert_name: str, cert: Path, key_name: str, key: Path) -> None:
    for name, path in ((cert_name, cert), (key_name, key)):
        if not path.is_file():
            raise UsageError(f"{name} is {str(path)!r}: there is no such file")
    try:
        context.load_cert_chain(cert, key, password=_NO_PASSWORD)
    except OSError as error:
        raise UsageError(
            f"{cert_name} {str(cert)!r} and {key_name} {str(key)!r} cannot be used: {error}; "
            "a PEM chain and its own key without a password would be right"
        ) from error


def _load_authorities(context: ssl.SSLContext, name: str, path: Path) -> None:
    try:
        context.load_verify_locations(cafile=str(path))
    except OSError as error:
        raise UsageError(
            f"{name} {str(path)!r} cannot be used: {error}; a PEM file of certificates is right"
        ) from error
