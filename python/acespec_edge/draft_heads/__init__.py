"""Draft heads that come with the package: a folder of `config.json` and `model.safetensors` for each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from acespec_edge.errors import UsageError

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class DraftHead:
    """A head for the pinned model `target`. `bytes`, `sha256`: of its weights."""

    name: str
    title: str
    target: str
    licence: str
    bytes: int
    sha256: str

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return Path(__file__).resolve().parent / self.name


HEADS = {
    head.name: head
    for head in (
        DraftHead(
            name="smollm2-135m-dlite",
            title="DLite for SmolLM2-135M",
            target="smollm2-135m",
            licence="Apache-2.0",
            bytes=24_698_232,
            sha256="d3098d6c8bab57f9d5ad9feca4a27fea192b8ce54a550bd81286d5e33002c9ac",
        ),
    )
}
"""Every head by name."""


def checked(head: DraftHead) -> Path:
    """The folder of `head`, its weights compared with what they should be. Raises UsageError when a file is
    missing or another one."""
    path = head.folder / WEIGHTS
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as problem:
        raise UsageError(f"{path}: {problem.strerror}; install acespec-edge again") from problem
    if digest != head.sha256:
        raise UsageError(
            f"{path}: not the weights of {head.name} (SHA-256 {digest}, expected {head.sha256}). "
            "Install acespec-edge again"
        )
    return head.folder


def resolve(source: str) -> Path:
    """The folder behind `source`: a name in `HEADS`, or a folder. Raises UsageError when it is neither."""
    if source in HEADS:
        return checked(HEADS[source])
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    raise UsageError(
        f"head: {source!r} is no folder. Give one with a DLite head, or one of {', '.join(HEADS)}"
    )
