"""What the engine's bench says beside times of forwards."""

from __future__ import annotations

from pathlib import Path

from acespec_edge.bundle import Bundle
from acespec_edge.export.build import export_bundle
from acespec_edge.export.sources import open_source
from tests.python.small_models import save_random_model
from tools.bench.engine_figures import figures, report


def test_figures_of_a_small_model(tmp_path: Path) -> None:
    save_random_model("qwen2", tmp_path)
    bundle = Bundle.load(export_bundle(open_source(tmp_path), tmp_path / "int4", "int4"))
    found = figures(bundle, 1)
    size = sum(file.stat().st_size for file in bundle.path.iterdir()) / 2**20
    assert abs(found["bundle_mib"] - size) <= 0.05
    kv_bytes = 2 * bundle.layers * bundle.kv_width * 4
    assert abs(found["cache_mib"] - 1280 * kv_bytes / 2**20) <= 0.05
    assert 0 < found["rest_of_step"] < 1
    assert found["rank_ms"]["greedy"] > 0
    assert found["start_seconds"]["cpu"] > 0
    assert report(found).splitlines()[1].startswith(f"memory: {found['resident_mib']} MiB, ")
