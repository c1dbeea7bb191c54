"""The plots of the paradigms' figures: which are drawn from what, and that they are pictures."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tools.bench import plot
from tools.bench.paradigms.report import FORMAT
from tools.bench.plot_data import ablation, by_bandwidth, by_paradigm, hit_rates


def row(paradigm: str, rate: float, **values: Any) -> dict[str, Any]:
    known = {"paradigm": paradigm, "label": paradigm, "title": paradigm.title(), "rtt_ms": 100.0}
    known |= {"up_bps": 1e6, "down_bps": 1e7, "temperature": 0.0, "budget": None}
    known |= {"tokens_per_second": rate, "hit_rate": 0.9, "speedup": 1.0}
    return {**known, **values}


def document(rows: list[dict[str, Any]], **values: Any) -> dict[str, Any]:
    known = {"format": FORMAT, "version": 1, "pair": "smollm2", "verify_ms": [150.0, 1.0], "sweep": None}
    return {**known, "rows": rows, **values}


GRID = document(
    [
        row(name, 5.0 + number + up / 1e6, rtt_ms=rtt, up_bps=up)
        for number, name in enumerate(("cloud", "acespec-single", "acespec", "auto"))
        for rtt in (20.0, 100.0)
        for up in (5e4, 1e6)
    ]
)
BUDGETS = document(
    [row("cloud", 5.0)]
    + [row("acespec-measured", 9.0, budget=budget, hit_rate=rate) for budget, rate in ((40, 0.9), (10, 0.7))],
    sweep={"name": "budget", "values": [10, 40]},
)
HEATS = document(
    [row("acespec-measured", 9.0, temperature=heat, hit_rate=0.9 - heat / 10) for heat in (0.0, 1.7)],
    sweep={"name": "temperature", "values": [0, 1.7]},
)


def test_throughput_by_paradigm_is_a_plot_for_each_uplink_with_bars_for_each_round_trip() -> None:
    narrow, wide = by_paradigm([GRID])
    assert (narrow.suffix, wide.suffix) == ("-50k", "-1m")
    assert narrow.lines["RTT 20 ms"] == [
        ("Cloud", 5.05), ("Acespec-Single", 6.05), ("Acespec", 7.05), ("Auto", 8.05)
    ]  # fmt: skip
    assert list(narrow.lines) == ["RTT 20 ms", "RTT 100 ms"] and narrow.x == "tokens per second"


def test_a_later_result_takes_the_place_of_an_earlier_one() -> None:
    later = document([row("auto", 99.0)])
    (_, wide) = by_paradigm([GRID, later])
    assert dict(wide.lines["RTT 100 ms"])["Auto"] == 99.0


def test_throughput_by_bandwidth_needs_two_rates() -> None:
    near, far = by_bandwidth([GRID])
    assert (near.suffix, far.suffix) == ("-rtt20", "-rtt100") and near.log_x
    assert near.lines["Auto"] == [(50.0, 8.05), (1000.0, 9.0)]
    assert by_bandwidth([document([row("auto", 1.0)])]) == []


def test_the_ablation_needs_two_arms() -> None:
    found = ablation([GRID])
    assert [set(dict(points)) for points in found[0].lines.values()] == [{"Acespec-Single", "Acespec"}] * 2
    assert ablation([document([row("acespec", 1.0), row("auto", 2.0)])]) == []


def test_hit_rates_are_of_sweeps_alone() -> None:
    (budgets,) = hit_rates([GRID, BUDGETS, HEATS], "budget")
    assert budgets.lines == {"RTT 100 ms, 1 Mbit/s": [(10, 0.7), (40, 0.9)]}
    (heats,) = hit_rates([GRID, BUDGETS, HEATS], "temperature")
    assert heats.lines == {"RTT 100 ms, 1 Mbit/s": [(0.0, 0.9), (1.7, pytest.approx(0.73))]}
    assert hit_rates([GRID], "budget") == []


def test_a_row_without_figures_is_left_out() -> None:
    failed = row("auto", 0.0, tokens_per_second=None, hit_rate=None)
    assert by_paradigm([document([failed])]) == []


def written(folder: Path, *documents: dict[str, Any]) -> list[str]:
    paths = []
    for number, found in enumerate(documents):
        path = folder / f"{number}.json"
        path.write_text(json.dumps(found))
        paths.append(str(path))
    return paths


def test_every_plot_is_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plots"
    assert plot.main([*written(tmp_path, GRID, BUDGETS, HEATS), "--out", str(out)]) == 0
    names = sorted(path.name.removeprefix("smollm2-150-1ms-") for path in out.iterdir())
    assert names == [
        "ablation-1m.png",
        "ablation-50k.png",
        "hit-rate-by-budget.png",
        "hit-rate-by-temperature.png",
        "throughput-by-bandwidth-rtt100.png",
        "throughput-by-bandwidth-rtt20.png",
        "throughput-by-paradigm-1m.png",
        "throughput-by-paradigm-50k.png",
    ]
    for path in out.iterdir():
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG\r\n")
        width, height = struct.unpack("!II", data[16:24])
        assert width > 500 and height > 300
    assert "skipped" not in capsys.readouterr().out


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = document([row("auto", 1.0)], verify_ms=[0, 0])
    assert plot.main([*written(tmp_path, one), "--out", str(tmp_path / "plots")]) == 0
    printed = capsys.readouterr().out
    for name in ("throughput-by-bandwidth", "ablation", "hit-rate-by-budget", "hit-rate-by-temperature"):
        assert f"skipped smollm2 {name}: " in printed
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["smollm2-throughput-by-paradigm-1m.png"]


def test_bad_arguments_are_exit_status_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    good = written(tmp_path, GRID)
    assert plot.main([str(tmp_path / "none.json"), "--out", str(tmp_path)]) == 2
    assert plot.main([str(tmp_path / "file"), "--out", str(tmp_path)]) == 2
    assert plot.main([*good, "--out", str(tmp_path / "file" / "x")]) == 2
