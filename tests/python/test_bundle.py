"""Bundles on disk: what opens, and what is refused with which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from acespec_edge.bundle import Bundle
from acespec_edge.errors import UsageError
from acespec_edge.vocabulary import Vocabulary
from tests.python.bundle_kit import write_bundle
from tests.python.tokenizer_kit import byte_level_json, sentencepiece_json


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_bundle(tmp_path, tokenizer=byte_level_json(), chat_template="{{ messages }}")
    return tmp_path


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "acespec.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_opens_with_every_field(folder: Path) -> None:
    bundle = Bundle.load(folder, verify=True)
    assert (bundle.name, bundle.layers, bundle.kv_width, bundle.bos_id, bundle.eos_ids) == (
        "tiny",
        2,
        32,
        None,
        [1],
    )
    assert bundle.path == folder
    assert bundle.model_file == folder / "model.onnx"
    assert bundle.chat_template == "{{ messages }}"
    table = Vocabulary.from_tokenizer_json(byte_level_json())
    assert bundle.vocabulary_table.fingerprint == table.fingerprint
    assert bundle.vocabulary_table is bundle.vocabulary_table


def test_a_chat_template_is_optional(tmp_path: Path) -> None:
    assert write_bundle(tmp_path, tokenizer=byte_level_json()).chat_template is None


def test_a_missing_folder_or_manifest_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no such folder\. Make one: acespec export SOURCE --out"):
        Bundle.load(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"has no acespec.json, so it is not a bundle"):
        Bundle.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "format is 2, this version reads 1. Upgrade"),
        ({"layers": "2"}, "layers is '2', it must be a whole number"),
        ({"layers": True}, "layers is True, it must be a whole number"),
        ({"layers": 0}, "layers is 0, it must be above 0"),
        ({"bos_id": "x"}, "bos_id is 'x', it must be a whole number or null"),
        ({"eos_ids": 2}, "eos_ids is 2, it must be a list of whole numbers"),
        ({"eos_ids": [10**6]}, "token id 1000000 is not 0 to"),
        ({"name": None}, "name is None, it must be a text"),
        ({"kv_width": 33}, r"kv_width is 33, it must be kv_heads \* head_dim = 32"),
        ({"logits_width": 3}, "logits_width 3 is below vocabulary"),
        ({"quant": "int3"}, "quant is 'int3', it must be one of int4, int8, fp32"),
        ({"sha256": {}}, "sha256 has no entry for model.onnx"),
        (
            {"sha256": {"model.onnx": "0", "tokenizer.json": "0", "../other": "0"}},
            "other: the file is missing",
        ),
        ({"sha256": {"model.onnx": 1}}, "it must be an object of texts"),
    ],
)
def test_a_wrong_manifest_names_the_field(folder: Path, changes: dict[str, Any], words: str) -> None:
    edit(folder, **changes)
    with pytest.raises(UsageError, match=words):
        Bundle.load(folder)


def test_a_missing_field_is_named(folder: Path) -> None:
    manifest = json.loads((folder / "acespec.json").read_text())
    del manifest["kv_heads"]
    (folder / "acespec.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="kv_heads is missing; export the bundle again"):
        Bundle.load(folder)


@pytest.mark.parametrize("text", ["[1]", "{", "\N{SNOWMAN}"])
def test_a_damaged_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / "acespec.json").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"acespec.json"):
        Bundle.load(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "model.onnx.data").unlink()
    with pytest.raises(UsageError, match=r"model.onnx.data: the file is missing"):
        Bundle.load(folder)


def test_a_changed_file_is_found_only_when_asked(folder: Path) -> None:
    (folder / "model.onnx.data").write_bytes(b"Weights")
    Bundle.load(folder)
    with pytest.raises(UsageError, match=r"model.onnx.data: the file was changed \(SHA-256"):
        Bundle.load(folder, verify=True)


def test_a_wrong_fingerprint_is_found(folder: Path) -> None:
    edit(folder, tokenizer_fingerprint="00" * 32)
    with pytest.raises(UsageError, match=r"its fingerprint is not the one in acespec.json"):
        Bundle.load(folder, verify=True)


def test_another_tokenizer_is_refused_on_first_use(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(sentencepiece_json(), encoding="utf-8")
    with pytest.raises(UsageError, match=r"tokenizer.json: has \d+ tokens, but acespec.json says"):
        _ = Bundle.load(folder).vocabulary_table
