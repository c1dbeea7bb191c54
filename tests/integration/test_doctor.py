"""`acespec doctor`: probes on described machines, a real bundle, a cloud on loopback, and the verdicts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acespec_edge import cli
from acespec_edge.bundle import Bundle
from acespec_edge.commands.doctor import lines
from acespec_edge.doctor.accelerator import installed_runtime, probe_accelerator
from acespec_edge.doctor.clock import probe_clock
from acespec_edge.doctor.cloud import Network, Target, probe_cloud
from acespec_edge.doctor.cpu import probe_cpu
from acespec_edge.doctor.draft_bundle import Pace, measure
from acespec_edge.doctor.finding import Finding
from acespec_edge.doctor.memory import probe_memory
from acespec_edge.doctor.report import conclude, expected
from acespec_edge.doctor.system import System, ranges
from acespec_edge.transport import connect
from cloud_stub.server import Listener
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.cloud.live import served
from tests.cloud.rig import hashed_logits
from tests.python.fake_bundle import make_bundle
from tests.python.fakes import FakeDrafter, mixing, no_thread_left
from tests.python.machines import jetson_orin, meminfo, rk3588, write, x86_server
from tests.python.test_gateway_commands import bundle_on_disk

NOW = 1.8e9
Acespec = Callable[..., tuple[int, str, str]]


@pytest.fixture
def acespec(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Acespec:
    def go(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["acespec", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return go


def test_big_and_small_cores_of_an_rk3588(tmp_path: Path) -> None:
    system = System(rk3588(tmp_path))
    found = probe_cpu(system, range(8), 1)
    assert (found.status, found.advice) == ("ok", "")
    assert found.words == "Radxa ROCK 5B: 8 cores (4 x Cortex-A76 + 4 x Cortex-A55), using 4-7"
    assert found.facts["big_cores"] == [4, 5, 6, 7] and "asimddp" in found.facts["features"]
    kept = probe_cpu(system, [4, 5, 6, 7], 4)
    assert (kept.status, kept.advice) == ("ok", "") and kept.words.endswith("using 4-7")
    small = probe_cpu(system, [0, 1], 1)
    assert small.status == "slow" and "only little cores" in small.advice and "taskset -c 4-7" in small.advice
    mixed = probe_cpu(system, range(8), 6)
    assert mixed.status == "slow" and "--threads 4" in mixed.advice and mixed.words.endswith("using 0-7")
    crowded = probe_cpu(system, [6, 7], 4)
    assert crowded.status == "slow" and "--threads 2" in crowded.advice


def test_equal_cores_of_a_jetson(tmp_path: Path) -> None:
    system = System(jetson_orin(tmp_path))
    found = probe_cpu(system, range(12), 4)
    assert found.words == "NVIDIA Jetson AGX Orin Developer Kit: 12 cores (12 x Cortex-A78AE), using 0-11"
    assert (found.status, found.advice) == ("ok", "")
    assert found.facts["big_cores"] == list(range(12))


def test_a_core_that_is_off_does_not_count(tmp_path: Path) -> None:
    system = System(write(rk3588(tmp_path), {"sys/devices/system/cpu/online": "0-6\n"}))
    assert probe_cpu(system, range(8), 1).words.endswith("using 4-6")


def test_cores_without_fast_products_are_slow(tmp_path: Path) -> None:
    assert probe_cpu(System(x86_server(tmp_path / "new")), range(4), 1).status == "ok"
    old = probe_cpu(System(x86_server(tmp_path / "old", "fpu sse4_2 avx")), range(4), 1)
    assert old.status == "slow" and "smallest drafter" in old.advice
    silent = probe_cpu(System(tmp_path / "nothing"), os.sched_getaffinity(0), 1)
    assert silent.status == "ok" and "unknown" in silent.words


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 5, 7, 8], "0-2,5,7-8"), ([2, 1], "1-2")]
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_memory_of_machine_and_container(tmp_path: Path) -> None:
    board = System(rk3588(tmp_path / "board"))
    assert probe_memory(board, None).words == "16.4 GB, free 11.2 GB"
    assert probe_memory(board, 1 << 30).status == "ok"
    assert probe_memory(board, 12 * 10**9).status == "slow"
    assert probe_memory(board, 17 * 10**9).status == "bad"
    container = probe_memory(System(x86_server(tmp_path / "container")), 10**9)
    assert container.facts == {
        "total_bytes": 2_000_000_000,
        "free_bytes": 500_000_000,
        "needed_bytes": 10**9,
    }
    assert container.status == "slow" and "--target cpu-int4" in container.advice
    unlimited = write(tmp_path / "free", {**meminfo(8, 4), "sys/fs/cgroup/memory.max": "max\n"})
    assert probe_memory(System(unlimited), 10**9).status == "ok"
    assert probe_memory(System(tmp_path / "nothing"), 10**9).status == "ok"


def test_providers_and_what_is_beside_the_cpu(tmp_path: Path) -> None:
    jetson = probe_accelerator(
        System(jetson_orin(tmp_path / "jetson")), "1.23.0", ["Tensorrt", "CUDA", "CPU"]
    )
    assert jetson.status == "ok" and not jetson.advice
    assert jetson.facts["tensorrt"] == "8.6.2" and jetson.facts["cuda"] == "12.2.140"
    assert jetson.facts["jetson_linux"] == "R36 (release)"
    unused = probe_accelerator(System(jetson_orin(tmp_path / "jetson")), "1.23.0", ["CPU"])
    assert unused.status == "ok" and "GPU" in unused.advice and "GPU not used" in unused.words
    board = probe_accelerator(System(rk3588(tmp_path / "board")), "1.32.0", ["CPU"])
    assert board.facts["rockchip_npu"] and "NPU is not used" in board.words
    server = probe_accelerator(System(x86_server(tmp_path / "server")), "1.32.0", ["CUDA", "CPU"])
    assert server.facts["nvidia_driver"] == "550.54.15" and server.words.endswith(
        "(no TensorRT: not installed)"
    )
    assert probe_accelerator(System(tmp_path), "", []).status == "bad"
    old = probe_accelerator(System(tmp_path), "1.9.0", ["CPU"])
    assert old.status == "bad" and "1.23 or newer" in old.advice
    version, providers = installed_runtime()
    assert version and "CPU" in providers


def test_clocks(tmp_path: Path) -> None:
    assert probe_clock(System(rk3588(tmp_path / "board")), NOW).advice == ""
    assert "governor" in probe_clock(System(jetson_orin(tmp_path / "jetson")), NOW).advice
    unset = probe_clock(System(rk3588(tmp_path / "board")), 1e6)
    assert unset.status == "slow" and "timedatectl" in unset.advice
    source = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    slow = probe_clock(System(write(tmp_path / "slow", {source: "hpet\n"})), NOW)
    assert slow.status == "slow" and "clocksource=tsc" in slow.advice


def test_forwards_are_timed_one_wide_and_many_wide() -> None:
    ticks = iter(range(10_000))
    drafter = FakeDrafter(mixing(1), chunk=4)
    pace = measure(drafter, lambda: float(next(ticks)))
    assert (pace.one, pace.wide, pace.width) == (1000.0, 1000.0, 8)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "bundle")


def cloud_of(bundle: Bundle, **options: Any) -> Any:
    verifier = ScriptedVerifier(hashed_logits(64), bundle.vocabulary_table)
    return served(verifier=verifier, **options)


def test_a_cloud_is_measured(bundle: Bundle) -> None:
    with no_thread_left(), cloud_of(bundle) as (service, url, _):
        found, network, target = probe_cloud(url, bundle, lambda: connect(url))
        assert [(one.name, one.status) for one in found] == [("network", "ok"), ("cloud", "ok")]
        assert network is not None and 0 < network.round_trip < 5 and network.goodput_up > 0
        assert target is not None and target.plain > 0 and target.nodes == 8
        assert "tokenizer" in found[1].words and found[1].facts["target"] == "scripted"
        counted = service.counters.read()
        assert counted["requests"] == 1 and counted["verified_nodes"] == 8
        assert counted["faults"] == 0 and service.kv.reserved == 0


def test_another_tokenizer_is_named(bundle: Bundle) -> None:
    with served() as (_, url, _):
        found, _, target = probe_cloud(url, bundle, lambda: connect(url))
    assert target is None
    assert [(one.name, one.status) for one in found] == [("cloud", "bad")]
    assert "tokenizer" in found[0].words


def test_a_cloud_that_is_not_there(bundle: Bundle) -> None:
    listening = Listener(port=0).bind()
    url = f"ws://127.0.0.1:{listening.getsockname()[1]}/v1/spec"
    listening.close()
    found, network, _ = probe_cloud(url, bundle, lambda: connect(url))
    assert network is None and found[0].name == "network" and found[0].status == "bad"
    assert "cannot reach the cloud" in found[0].words


OK = [Finding("cpu", "ok", "cores"), Finding("memory", "ok", "enough", advice="more is fine")]
PACE = Pace(one=16.0, wide=35.0)
FAR = Network(round_trip=0.1, spread=0.01, goodput_up=125_000.0)
LARGE = Target(plain=0.15, tree=0.158)


def test_verdicts() -> None:
    ready = conclude(OK, PACE, FAR, LARGE)
    assert ready.verdict == "ready" and ready.sentence.startswith("good fit: expect ")
    assert ready.speedups["code"] > ready.speedups["chat"] > 1.1
    assert ready.advice == ["memory: more is fine"]
    quick = conclude(OK, PACE, FAR, Target(plain=0.005, tree=0.02))
    assert quick.verdict == "slow" and "drafting adds nothing" in quick.sentence
    slow = conclude([*OK, Finding("clock", "slow", "w", advice="set it")], PACE, FAR, LARGE)
    assert slow.verdict == "slow" and "see clock; expect" in slow.sentence
    assert slow.advice == ["clock: set it", "memory: more is fine"]
    bad = conclude([*OK, Finding("bundle", "bad", "broken: file 3; copy it")], None, None, None)
    assert (bad.verdict, bad.sentence) == ("cannot", "cannot run: bundle: broken")
    alone = conclude(OK, None, None, None)
    assert alone.verdict == "ready" and "--bundle and --cloud" in alone.sentence
    assert "--bundle" not in conclude(OK, PACE, None, None).sentence


def test_a_nearer_cloud_and_a_faster_drafter_never_look_worse() -> None:
    slow = expected(Pace(160.0, 320.0), FAR, LARGE)
    fast = expected(Pace(10.0, 20.0), FAR, LARGE)
    near = expected(PACE, Network(0.01, 0.001, 1e6), LARGE)
    middle = expected(PACE, FAR, LARGE)
    for kind in ("chat", "code"):
        assert 1 <= slow[kind] <= middle[kind] <= fast[kind]
        assert near[kind] >= middle[kind]


def test_the_report_for_people_and_for_programs() -> None:
    report = conclude(OK, PACE, FAR, LARGE)
    shown = lines(report)
    assert shown[:2] == ["cpu        cores   ok", "memory     enough  ok"] and shown[-1].startswith(
        "verdict    good fit"
    )
    found = report.to_dict()
    assert list(found) == ["version", "verdict", "sentence", "speedups", "advice", "findings"]
    assert list(found["findings"][0]) == ["name", "status", "words", "facts", "advice"]
    json.dumps(found)


def test_the_command_checks_all_of_it(tmp_path: Path, acespec: Acespec) -> None:
    folder = bundle_on_disk(tmp_path / "bundle")
    repair(folder)
    bundle = Bundle.load(folder, verify=True)
    with cloud_of(bundle) as (_, url, _):
        status, out, err = acespec(
            "doctor", "--bundle", str(folder), "--cloud", url, "--context", "256", "--json"
        )
    report = json.loads(out)
    assert err == "" and out.count("\n") == 1
    names = [finding["name"] for finding in report["findings"]]
    assert names == ["cpu", "memory", "clock", "runtime", "bundle", "network", "cloud"]
    assert (
        status == 0 and report["verdict"] in ("ready", "slow") and set(report["speedups"]) == {"chat", "code"}
    )
    facts = {finding["name"]: finding["facts"] for finding in report["findings"]}
    assert facts["bundle"]["forward_ms"] > 0 and facts["memory"]["needed_bytes"] > 0
    assert facts["bundle"]["tokenizer"] == bundle.vocabulary_table.fingerprint.hex()


def test_a_broken_bundle_is_status_1(tmp_path: Path, acespec: Acespec) -> None:
    status, out, err = acespec("doctor", "--bundle", str(tmp_path), "--cloud", "ws://127.0.0.1:9/v1/spec")
    assert (status, err) == (1, "")
    assert out.splitlines()[-1].startswith("verdict    cannot run: bundle: ")
    config = tmp_path / "c.toml"
    config.write_text(f'[edge]\nbundle = "{tmp_path}"\nhost = "127.0.0.1"\n', encoding="utf-8")
    assert acespec("doctor", "--config", str(config))[0] == 1
    config.write_text('[edge]\ncloud = "local"\ntarget = "a"\n', encoding="utf-8")
    status, out, err = acespec("doctor", "--config", str(config))
    assert (status, err) == (0, "") and "--bundle" in out.splitlines()[-1]
    status, _, err = acespec("doctor", "--threads", "many")
    assert status == 2 and "--threads is 'many'" in err


def test_a_bundle_without_a_model_is_for_lookup(tmp_path: Path, acespec: Acespec) -> None:
    folder = bundle_on_disk(tmp_path / "bundle")
    repair(folder)
    (folder / "model.onnx").unlink()
    manifest = json.loads((folder / "acespec.json").read_text(encoding="utf-8"))
    del manifest["sha256"]["model.onnx"]
    manifest["quant"] = "none"
    (folder / "acespec.json").write_text(json.dumps(manifest), encoding="utf-8")
    with cloud_of(Bundle.load(folder)) as (_, url, _):
        status, out, err = acespec("doctor", "--bundle", str(folder), "--cloud", f"{url}#cost=2")
    assert (status, err) == (0, "")
    assert "without a model" in out and "serve it with --drafter lookup" in out
    assert "what lookup yields" in out.splitlines()[-1]


def test_it_takes_bundle_and_cloud_from_the_file(tmp_path: Path, acespec: Acespec) -> None:
    folder = bundle_on_disk(tmp_path / "bundle")
    repair(folder)
    config = tmp_path / "c.toml"
    with cloud_of(Bundle.load(folder)) as (_, url, _):
        config.write_text(f'[edge]\nbundle = "{folder}"\ncloud = ["{url}"]\nthreads = 1\n', encoding="utf-8")
        status, out, _ = acespec("doctor", "--config", str(config), "--json")
    names = [finding["name"] for finding in json.loads(out)["findings"]]
    assert status == 0 and names[-3:] == ["bundle", "network", "cloud"]


def repair(folder: Path) -> None:
    """The manifest with the true checksums."""
    from acespec_edge.digest import sha256_of

    file = folder / "acespec.json"
    manifest = json.loads(file.read_text(encoding="utf-8"))
    manifest["sha256"] = {name: sha256_of(folder / name) for name in manifest["sha256"]}
    bundle = Bundle.load(folder)
    manifest["tokenizer_fingerprint"] = bundle.vocabulary_table.fingerprint.hex()
    file.write_text(json.dumps(manifest), encoding="utf-8")
