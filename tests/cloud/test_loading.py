"""From a source's name to a verifier."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_stub.verifiers.loading import load_verifier
from tests.cloud.rig import tiny_vocabulary
from tests.cloud.test_torch_verifier import SIZE, make_model


def test_a_folder_below_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    make_model("llama").save_pretrained(tmp_path / "real")
    (tmp_path / "real" / "tokenizer.json").write_text(tiny_vocabulary(SIZE)._tokenizer.to_str())
    (tmp_path / "link").symlink_to("real")
    for source in ("~/real", "~/real/", "~/link"):
        assert load_verifier(source, device="cpu").name == "real"
