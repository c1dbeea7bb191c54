"""Opens a model to export, whatever it is stored as."""

from __future__ import annotations

from pathlib import Path

from acespec_edge import model_registry, models
from acespec_edge.export.architecture import Source
from acespec_edge.export.gguf_source import GgufSource
from acespec_edge.export.hf_source import HfSource


def open_source(source: str | Path, *, progress: models.Progress | None = None) -> Source:
    """Opens a name from the registry, a model folder, a .gguf file, or a Hugging Face id (fetched when
    needed).

    `progress` hears of a download. Raises UsageError for what is none of these or cannot be reproduced
    exactly, LinkError when a download fails, PeerError when it delivers other bytes than expected.
    """
    path = models.resolve(str(source), progress=progress)
    opened: Source = HfSource(path) if path.is_dir() else GgufSource(path)
    pinned = model_registry.MODELS.get(str(source))
    if pinned is not None:
        opened.name, opened.licence = pinned.title, pinned.licence
        opened.origin = f"{pinned.name}, sha256 {pinned.sha256}"
    elif not Path(source).expanduser().exists():
        opened.name, opened.origin = str(source).rpartition("/")[2], f"{source}, revision {path.name}"
    return opened
