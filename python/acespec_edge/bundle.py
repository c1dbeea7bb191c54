"""A draft bundle on disk: the model's graph and weights, its tokenizer, and what the runtime must know of
them."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

from acespec_edge.digest import sha256_of
from acespec_edge.errors import UsageError
from acespec_edge.vocabulary import Vocabulary

FORMAT = 1
"""The `format` of the bundles that this version reads and writes."""

MANIFEST = "acespec.json"
MODEL = "model.onnx"
TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"

QUANTS = ("int4", "int8", "fp32", "cuda-fp16", "tensorrt-fp16", "tensorrt-int8", "tensorrt-int4", "none")
"""How weights are stored, and for which device when it is not the CPU; "none": there are none."""

_AGAIN = "export the bundle again: acespec export SOURCE --out {folder}"


@dataclass(frozen=True)
class Bundle:
    """An opened bundle. `path` is its folder, the other fields are those of `acespec.json`.

    `kv_width` counts the floats of one key row of one layer. Ids that may be drawn are 0 to `vocabulary` - 1;
    a logit row has `logits_width` floats, at least as many. `bos_id` is what chat templates call `bos_token`;
    whether a text begins with it is the tokenizer's business.
    """

    path: Path
    format: int
    name: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    kv_width: int
    vocabulary: int
    logits_width: int
    max_positions: int
    quant: str
    tokenizer_fingerprint: str
    bos_id: int | None
    eos_ids: list[int]
    source: str
    licence: str
    sha256: dict[str, str]
    windowed: bool = False
    """Some layers see a window of positions only: the graph asks where each slot lies."""

    @classmethod
    def load(cls, path: str | Path, verify: bool = False) -> Bundle:
        """Opens the bundle in folder `path`; `verify` also reads every file and checks its SHA-256.

        Raises UsageError that names the file and what to do when anything is missing, damaged or too new.
        """
        folder = Path(path)
        manifest = _read_manifest(folder)
        bundle = cls(path=folder, **_checked_fields(manifest, folder))
        bundle._check_sizes()
        for name in bundle.sha256:
            if Path(name).name != name or not (folder / name).is_file():
                raise UsageError(f"{folder / name}: the file is missing; {_AGAIN.format(folder=folder)}")
        if verify:
            bundle.verify()
        return bundle

    @property
    def has_model(self) -> bool:
        """Whether there is a graph: a bundle of quant "none" is for drafting by lookup alone."""
        return self.quant != "none"

    @property
    def providers(self) -> tuple[str, ...]:
        """The execution providers that its graph is made for, best first; the CPU runs any."""
        device = self.quant.partition("-")[0]
        return {"tensorrt": ("tensorrt", "cuda", "cpu"), "cuda": ("cuda", "cpu")}.get(device, ("cpu",))

    @property
    def kv_bytes(self) -> int:
        """Bytes of one number in the ring of keys and values."""
        return 4 if self.providers == ("cpu",) else 2

    @property
    def model_file(self) -> Path:
        """The ONNX graph; its weights lie beside it."""
        return self.path / MODEL

    @cached_property
    def vocabulary_table(self) -> Vocabulary:
        """The tokenizer, read on first use."""
        table = Vocabulary.from_tokenizer_json(self.path / TOKENIZER)
        if table.size != self.vocabulary:
            raise UsageError(
                f"{self.path / TOKENIZER}: has {table.size} tokens, but {MANIFEST} says {self.vocabulary}; "
                + _AGAIN.format(folder=self.path)
            )
        return table

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja2 source of the chat template, or None when the model has none."""
        file = self.path / CHAT_TEMPLATE
        return file.read_text(encoding="utf-8") if file.is_file() else None

    def with_one_bos(self, ids: list[int]) -> list[int]:
        """A prompt with exactly one BOS before it, where the tokenizer puts one or `ids` begin with one."""
        if self.bos_id is None:
            return ids
        written = next((index for index, token in enumerate(ids) if token != self.bos_id), len(ids))
        wanted = written or self.vocabulary_table.encode("", add_special=True)[:1] == [self.bos_id]
        return [self.bos_id, *ids[written:]] if wanted else ids

    def verify(self) -> None:
        """Checks every listed file against its SHA-256, and the tokenizer against its fingerprint."""
        for name, expected in self.sha256.items():
            found = sha256_of(self.path / name)
            if found != expected:
                raise UsageError(
                    f"{self.path / name}: the file was changed (SHA-256 {found[:12]}..., {MANIFEST} says "
                    f"{expected[:12]}...); {_AGAIN.format(folder=self.path)}"
                )
        if self.vocabulary_table.fingerprint.hex() != self.tokenizer_fingerprint:
            raise UsageError(
                f"{self.path / TOKENIZER}: its fingerprint is not the one in {MANIFEST}; "
                + _AGAIN.format(folder=self.path)
            )

    def _check_sizes(self) -> None:
        where = self.path / MANIFEST
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocabulary", "max_positions"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{where}: {name} is {getattr(self, name)}, it must be above 0")
        if self.kv_width != self.kv_heads * self.head_dim:
            wanted = self.kv_heads * self.head_dim
            raise UsageError(
                f"{where}: kv_width is {self.kv_width}, it must be kv_heads * head_dim = {wanted}"
            )
        if self.logits_width < self.vocabulary:
            raise UsageError(
                f"{where}: logits_width {self.logits_width} is below vocabulary {self.vocabulary}"
            )
        if self.quant not in QUANTS:
            raise UsageError(f"{where}: quant is {self.quant!r}, it must be one of {', '.join(QUANTS)}")
        for token in [*self.eos_ids, *([] if self.bos_id is None else [self.bos_id])]:
            if not 0 <= token < self.vocabulary:
                raise UsageError(f"{where}: token id {token} is not 0 to {self.vocabulary - 1}")
        for name in (MODEL, TOKENIZER) if self.has_model else (TOKENIZER,):
            if name not in self.sha256:
                raise UsageError(f"{where}: sha256 has no entry for {name}")


def _read_manifest(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        what = f"has no {MANIFEST}, so it is not a bundle" if folder.is_dir() else "there is no such folder"
        raise UsageError(f"{folder}: {what}. Make one: acespec export SOURCE --out {folder}") from None
    except (OSError, ValueError) as problem:
        raise UsageError(f"{file}: cannot be read ({problem}); {_AGAIN.format(folder=folder)}") from problem
    if not isinstance(manifest, dict):
        raise UsageError(f"{file}: must hold a JSON object; {_AGAIN.format(folder=folder)}")
    if manifest.get("format") != FORMAT:
        raise UsageError(
            f"{file}: format is {manifest.get('format')!r}, this version reads {FORMAT}. "
            "Upgrade acespec-edge, or " + _AGAIN.format(folder=folder)
        )
    return manifest


def _checked_fields(manifest: dict[str, Any], folder: Path) -> dict[str, Any]:
    types = get_type_hints(Bundle)
    values = {}
    for field in fields(Bundle):
        if field.name == "path":
            continue
        if field.name not in manifest:
            if field.default is not MISSING:
                continue
            raise UsageError(f"{folder / MANIFEST}: {field.name} is missing; {_AGAIN.format(folder=folder)}")
        value = manifest[field.name]
        if not _fits(value, types[field.name]):
            raise UsageError(
                f"{folder / MANIFEST}: {field.name} is {value!r}, it must be {_WORDS[types[field.name]]}"
            )
        values[field.name] = value
    return values


_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    str: "a text",
    int | None: "a whole number or null",
    list[int]: "a list of whole numbers",
    dict[str, str]: "an object of texts",
}


def _fits(value: Any, kind: Any) -> bool:
    if kind == list[int]:
        return isinstance(value, list) and all(_fits(item, int) for item in value)
    if kind == dict[str, str]:
        return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
    if kind in (str, bool):
        return isinstance(value, kind)
    return (value is None and kind is not int) or (isinstance(value, int) and not isinstance(value, bool))
