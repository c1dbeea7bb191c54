"""The secrets that a server lets in, and what each of them may take."""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from acespec_edge.errors import UsageError

MAX_KEYS: Final = 1000
_MAX_BYTES: Final = 1 << 20
_MAX_LIMIT: Final = (1 << 31) - 1

_log: Final = logging.getLogger("acespec.keys")


@dataclass(frozen=True, slots=True)
class Key:
    """Whom one secret stands for. ``digest``: SHA-256 of the secret, which itself is not kept. ``limits``:
    by name; what is not there has none."""

    name: str
    digest: bytes = field(repr=False)
    limits: Mapping[str, int] = field(default_factory=dict)


class Keyring:
    """Keys, found by what an Authorization header bears. Thread-safe; find() takes O(keys), and its time
    tells nothing of which secrets come close.

    One that was read from a file is read again when the file has changed; a file that has become wrong is
    logged, and the keys before it stay.
    """

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = tuple(keys)
        self._source: tuple[Path, str, frozenset[str]] | None = None
        self._state: tuple[int, int, int] | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, *secrets: str) -> Keyring:
        """Secrets without limits."""
        return cls([Key(f"key {number}", digest(secret)) for number, secret in enumerate(secrets, 1)])

    @classmethod
    def read(cls, path: Path, option: str, limits: Sequence[str]) -> Keyring:
        """The keys in a file that ``option`` names: a line is a secret, then ``name=NAME`` and any of
        ``limits`` as ``limit=NUMBER``; blank lines and those that begin with # are left out.

        Raises UsageError for a file that cannot be read, holds no key or more than MAX_KEYS, or has a line
        that is wrong. No message has a secret in it.
        """
        allowed = frozenset(limits)
        state = _state_of(path)
        ring = cls(_parse(path, option, allowed))
        ring._source, ring._state = (path, option, allowed), state
        return ring

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, authorization: str) -> Key | None:
        """The key whose secret ``Bearer SECRET`` shows."""
        self._refresh()
        scheme, _, given = authorization.partition(" ")
        shown = digest(given.strip())
        # All are compared, so that the time does not tell which one it was.
        found = [key for key in self._keys if hmac.compare_digest(shown, key.digest)]
        return found[0] if found and scheme.lower() == "bearer" else None

    def _refresh(self) -> None:
        if self._source is None:
            return
        path, option, limits = self._source
        with self._lock:
            state = _state_of(path)
            if state is None or state == self._state:
                return
            self._state = state
            try:
                self._keys = tuple(_parse(path, option, limits))
            except UsageError as error:
                _log.warning("the keys stay as they were: %s", error)
            else:
                _log.info("%s has changed: %d keys", path, len(self._keys))


def digest(secret: str) -> bytes:
    """What is kept of a secret. Secrets are drawn at random, so that nothing slower is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def first_secret(path: Path, option: str) -> str:
    """The first secret of a file of keys, for a client of its own server. Raises UsageError."""
    for _, secret, _ in _lines(path, option):
        return secret
    raise UsageError(f"{option} {str(path)!r} holds no key: at least one is right")


def _lines(path: Path, option: str) -> Iterator[tuple[int, str, list[str]]]:
    """Number, secret and what stands behind it, of each line that has a secret."""
    where = f"{option} {str(path)!r}"
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{where} cannot be read: {reason}") from error
    if len(text) > _MAX_BYTES:
        raise UsageError(f"{where} has more than {_MAX_BYTES:,} characters: a line for each key is right")
    for number, line in enumerate(text.splitlines(), 1):
        secret, *words = line.split() or ["#"]
        if secret.startswith("#"):
            continue
        if not secret.isascii() or not secret.isprintable():
            raise UsageError(
                f"{where}: line {number} has characters that no key has: printable ASCII is right"
            )
        yield number, secret, words


def _parse(path: Path, option: str, limits: frozenset[str]) -> list[Key]:
    where = f"{option} {str(path)!r}"
    keys: dict[bytes, Key] = {}
    for number, secret, words in _lines(path, option):
        key = _key(f"{where}: line {number}", f"line {number}", digest(secret), words, limits)
        if key.digest in keys:
            raise UsageError(f"{where}: line {number} has the key of another line: each must stand once")
        keys[key.digest] = key
    if not 0 < len(keys) <= MAX_KEYS:
        raise UsageError(f"{where} holds {len(keys)} keys: 1 to {MAX_KEYS} are right")
    return list(keys.values())


def _key(where: str, name: str, digested: bytes, words: list[str], limits: frozenset[str]) -> Key:
    found: dict[str, int] = {}
    for word in words:
        field_name, _, value = word.partition("=")
        if field_name == "name" and value:
            name = value
        elif field_name not in limits:
            # What stands there is not shown: it may be the rest of a secret.
            known = ", ".join(f"{limit}=NUMBER" for limit in sorted(limits))
            raise UsageError(f"{where}: behind the key only name=NAME, {known} are right")
        elif not value.isascii() or not value.isdecimal() or not 0 < int(value[:11]) <= _MAX_LIMIT:
            raise UsageError(f"{where}: {field_name} is {value[:20]!r}: it must be 1 to {_MAX_LIMIT}")
        else:
            found[field_name] = int(value)
    return Key(name, digested, found)
