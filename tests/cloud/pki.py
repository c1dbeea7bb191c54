"""A private authority, a stranger's, and certificates of both as files."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import trustme

_BEGAN = datetime.datetime(2019, 1, 1)
_ENDED = datetime.datetime(2020, 1, 1)


@dataclass(frozen=True)
class Pair:
    """PEM files of a certificate chain and its key."""

    cert: Path
    key: Path


class Pki:
    """Files in ``folder``: ``ca`` and ``stranger`` are the authorities."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authorities = {name: trustme.CA() for name in ("ca", "stranger")}
        for name, authority in self._authorities.items():
            authority.cert_pem.write_to_path(folder / f"{name}.pem")
        self.ca = folder / "ca.pem"
        self.stranger = folder / "stranger.pem"

    def pair(self, name: str, of: str, *, by: str = "ca", expired: bool = False) -> Pair:
        """A certificate ``of`` a host name, an address or a mailbox, issued ``by`` an authority."""
        dates = {"not_before": _BEGAN, "not_after": _ENDED} if expired else {}
        issued = self._authorities[by].issue_cert(of, **dates)
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        issued.private_key_pem.write_to_path(pair.key)
        for blob in issued.cert_chain_pems:
            blob.write_to_path(pair.cert, append=True)
        return pair
