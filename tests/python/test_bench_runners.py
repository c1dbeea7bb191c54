"""Answers over the runtime and with the drafter in the cloud, and what DSSD sends."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import socket
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from acespec_edge import _core
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import LinkError, PeerError
from cloud_stub.local import LocalLink
from cloud_stub.service import Service
from cloud_stub.verifiers.scripted import ScriptedVerifier
from tests.python.edge_kit import DRAFTER, PROMPT, TARGET, runtime
from tests.python.fake_bundle import make_bundle
from tests.python.fakes import FakeDrafter, decode_plainly
from tests.python.paradigm_kit import tcp_pair
from tools.bench.paradigms import colocated
from tools.bench.paradigms.padded import MARK, PaddedConnector, PaddedService, row_of
from tools.bench.paradigms.paradigms import (
    PARADIGMS,
    Contender,
)
from tools.bench.paradigms.runners import RuntimeRunner, forget, lead, policy_of
from tools.bench.paradigms.runs import Question

pytestmark = pytest.mark.usefixtures("threads_end")


def test_policies_come_by_name_and_a_budget_replaces_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class Policy:
        name: str
        budget: int | None = None

    module = types.ModuleType("acespec_edge.policy")
    module.POLICIES = {name: Policy(name) for name in ("auto", "acespec-measured")}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "acespec_edge.policy", module)
    measured = PARADIGMS["acespec-measured"]
    assert policy_of(Contender("auto", PARADIGMS["auto"], 0.0)) == Policy("auto")
    assert policy_of(Contender("B", measured, 0.0, 20)) == Policy("acespec-measured", 20)


class FakeEdge:
    """A runtime of which only the stream is asked."""

    def __init__(self, pieces: Sequence[list[int]], **stats: Any) -> None:
        self.bundle = types.SimpleNamespace(vocabulary=64)
        self.asked: dict[str, Any] = {}
        self._pieces = [types.SimpleNamespace(token_ids=ids) for ids in pieces]
        known = {"bytes_up": 30, "bytes_down": 50, "max_draft_bytes": 20, "rounds": 2, "accepted_mean": 1.5}
        known |= {"hit_rate": 0.5, "forwards": 9, "chosen": {"tree": 9}, "why": "because"}
        self.result = types.SimpleNamespace(stats=types.SimpleNamespace(**{**known, **stats}))

    def stream(self, ids: list[int], **options: Any) -> FakeEdge:
        self.asked = {"ids": ids, **options}
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(self._pieces)

    def __enter__(self) -> FakeEdge:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_runtimes_answer_as_a_run() -> None:
    padding = iter([100, 400])
    ticks = iter([10.0, 10.5, 10.5, 11.0])
    edge = FakeEdge([[1], [], [2, 3]])
    drafter = FakeDrafter(DRAFTER)
    runner = RuntimeRunner(
        cast("EdgeRuntime", edge), "residual", drafter, lambda: next(padding), lambda: next(ticks)
    )
    run = runner.run(Question("q", [7, 8], 16, 5), 0.5)
    assert edge.asked == {
        "ids": [7, 8], "max_tokens": 16, "temperature": 0.5, "seed": 5, "sampling": "residual"
    }  # fmt: skip
    assert (run.ids, run.shown) == ([1, 2, 3], [0.5, 1.0, 1.0])
    assert (run.bytes_up, run.bytes_down, run.max_up_bytes) == (30, 350, 20)
    assert (run.rounds, run.accepted, run.hit_rate, run.drafter_forwards) == (2, 1.5, 0.5, 9)
    assert dict(run.chosen) == {"tree": 9} and run.why == "because"


def test_a_drafter_forgets_what_the_last_answer_left() -> None:
    engine = _core.FakeEngine(vocabulary=64, slots=128, seed=1)
    drafter = _core.Drafter(engine, _core.DrafterOptions(context=64, max_nodes=32))
    rules = _core.SamplingRules()

    def reused() -> int:
        found = drafter.begin(PROMPT, rules, [], False)
        while drafter.step(4, True).prefilling:
            pass
        return int(found)

    reused()
    assert reused() > 0
    forget(drafter, PROMPT, 64)
    assert reused() == 0
    forget(drafter, [], 64)


def test_the_lead_of_the_targets_token(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle", eos_ids=())
    engine = _core.FakeEngine(vocabulary=64, slots=64, seed=3)
    verifier = ScriptedVerifier(engine.logits, bundle.vocabulary_table)
    with EdgeRuntime(bundle, lambda: LocalLink(Service(verifier)), mode="cloud") as edge:
        text = edge.generate(PROMPT, max_tokens=4).token_ids
        best = sorted(engine.logits([*PROMPT, *text[:2]]), reverse=True)
        found = lead(edge, Question("q", PROMPT, 4, 0), 2)
    assert math.isclose(found, best[0] - best[1], rel_tol=1e-4, abs_tol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_dense_row_travels_with_every_rejection(tmp_path: Path, temperature: float) -> None:
    bundle = make_bundle(tmp_path / "bundle", eos_ids=())
    target = _core.FakeEngine(vocabulary=64, slots=64, seed=3)
    verifier = ScriptedVerifier(target.logits, bundle.vocabulary_table)
    rejections = 0

    class Counted(LocalLink):
        def _deliver(self, frame: bytes) -> None:
            nonlocal rejections
            if not frame.startswith(MARK):
                message = _core.decode(frame)
                rejections += isinstance(message, _core.Verdict) and message.sparse is not None
            super()._deliver(frame)

    connector = PaddedConnector(lambda: Counted(cast("Service", PaddedService(Service(verifier)))))
    engine = _core.FakeEngine(vocabulary=64, slots=512, seed=3, disagreement=0.5)
    drafter = _core.Drafter(engine, _core.DrafterOptions(context=256, max_nodes=64))
    with EdgeRuntime(bundle, connector, drafter=drafter, context=256) as edge:
        result = edge.generate(PROMPT, max_tokens=40, sampling="residual", temperature=temperature, seed=1)
        link = edge._uplink._channel._link  # type: ignore[union-attr]
        plain_bytes = link.bytes_down - connector.padding
    assert rejections > 3 and connector.padding == rejections * 2 * 64
    assert 0 < result.stats.bytes_down < plain_bytes  # and the Welcome
    if temperature == 0:
        sampler = _core.Sampler(64)
        plain = decode_plainly(
            lambda text: sampler.choose(target.logits(list(text)), _core.SamplingRules(), len(text)),
            PROMPT,
            40,
        )
        assert result.token_ids == plain


def test_a_row_is_no_message_and_as_large_as_said() -> None:
    row = row_of(49152)
    assert len(row) == 98304
    with pytest.raises(PeerError):
        _core.decode(row)


@contextlib.contextmanager
def colocated_service(edge: Any, drafter: Any) -> Iterator[str]:
    """One connection after the other, as the process serves them."""
    listening = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        while True:
            connected, _ = listening.accept()
            if ended.is_set():
                connected.close()
                return
            lines = colocated.Lines(connected, 10.0)
            with contextlib.suppress(LinkError):
                colocated.answer(edge, drafter, lines)
            lines.close()

    thread = threading.Thread(target=serve)
    thread.start()
    host, port = listening.getsockname()[:2]
    try:
        yield f"{host}:{port}"
    finally:
        ended.set()
        socket.create_connection((host, port)).close()
        thread.join(10.0)
        listening.close()


def test_pieces_come_from_a_drafter_in_the_cloud(tmp_path: Path) -> None:
    drafter = FakeDrafter(DRAFTER)
    bundle = make_bundle(tmp_path / "bundle", eos_ids=())
    with (
        runtime(bundle, drafter=drafter, draft_length=4) as edge,
        colocated_service(edge, drafter) as address,
    ):
        runner = colocated.ColocatedRunner(address)
        run = runner.run(Question("q", PROMPT, 20, 0), 0.0)
        assert run.ids == decode_plainly(TARGET, PROMPT, 20)
        text = " ".join(map(str, run.ids))
        assert run.bytes_down == len(text) + 1  # a space between ids, or a line's end behind a piece
        assert run.rounds > 0 and run.drafter_forwards is not None and run.drafter_forwards > 0
        assert run.max_up_bytes == 0 and 0 < run.bytes_up < 100
        with pytest.raises(LinkError, match="prompt is empty"):
            runner.run(Question("q", [], 20, 0), 0.0)
        assert runner.run(Question("q", PROMPT, 3, 0), 0.0).ids == run.ids[:3]


@pytest.mark.parametrize("line", ["1 x 2", ".{", '.{"rounds": 1}', ".[]"])
def test_a_strange_line_is_refused(line: str) -> None:
    class Told:
        def receive(self) -> str:
            return line

    with pytest.raises(PeerError, match="the drafter in the cloud sent"):
        list(colocated._pieces(cast("colocated.Lines", Told()), {}))


def test_lines_are_bounded() -> None:
    near, far = tcp_pair()
    lines = colocated.Lines(near, 0.05)
    try:
        with pytest.raises(LinkError, match="lost the other side"):
            lines.receive()
    finally:
        lines.close()
        far.close()
    near, far = tcp_pair()
    lines = colocated.Lines(near, 10.0)
    writer = threading.Thread(target=lambda: far.sendall(b"1" * ((1 << 20) + 1)))
    writer.start()
    try:
        with pytest.raises(PeerError, match="more than 1048576 bytes"):
            lines.receive()
    finally:
        writer.join(10.0)
        lines.close()
        far.close()
