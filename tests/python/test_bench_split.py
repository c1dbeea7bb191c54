"""Split inference: the parts, the frames, and the processes of a comparison."""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from acespec_edge import _core
from acespec_edge.edge import EdgeRuntime
from acespec_edge.errors import LinkError, PeerError, UsageError
from cloud_stub.scheduler import Pacing
from cloud_stub.service import Service, ServiceOptions
from cloud_stub.verifiers.scripted import ScriptedVerifier
from cloud_stub.verifiers.torch_verifier import TorchVerifier
from tests.python.edge_kit import PROMPT
from tests.python.fake_bundle import make_bundle
from tests.python.paradigm_kit import small, tcp_pair
from tools.bench.paradigms import split_wire
from tools.bench.paradigms.cloud import serving
from tools.bench.paradigms.grid import Cell
from tools.bench.paradigms.padded import PaddedService
from tools.bench.paradigms.runs import Question
from tools.bench.paradigms.split import SplitRunner
from tools.bench.paradigms.split_model import Back, Front
from tools.bench.paradigms.stage import _forwards
from tools.bench.reference import greedy

pytestmark = pytest.mark.usefixtures("threads_end")


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("cut", [1, 3])
def test_both_parts_together_are_the_model(kind: str, cut: int) -> None:
    model = small(kind)
    front, back = Front(model, cut), Back(model, cut)
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    with torch.inference_mode():
        whole = model(torch.tensor([text])).logits[0].numpy()
    for first, end in ((0, 5), (5, 6), (6, 8)):
        row = back.logits(front.states(text[first:end]))
        assert row == pytest.approx(whole[end - 1], abs=2e-2)  # half precision between the parts
    front.begin()
    assert front.length == 0 and back.length == 8 and back.share == (4 - cut) / 4
    for layers in (0, 4):
        with pytest.raises(UsageError, match=f"split_layers is {layers}: of 4 layers, 1 to 3"):
            Front(model, layers)


@pytest.fixture
def split_cloud(tmp_path: Path) -> Iterator[tuple[Any, dict[str, str]]]:
    model = small("llama")
    bundle = make_bundle(tmp_path / "bundle", eos_ids=())
    verifier = TorchVerifier(model, bundle.vocabulary_table, name="small", max_context=200)
    with serving(verifier, Pacing()) as addresses:
        yield model, addresses


def test_split_inference_is_plain_greedy_decoding(split_cloud: tuple[Any, dict[str, str]]) -> None:
    model, addresses = split_cloud
    runner = SplitRunner(Front(model, 1), 1, 64, addresses["split"])
    prompt = [(7 * place) % 60 for place in range(split_wire.CHUNK + 5)]
    expected = greedy(model, prompt, 64, [], 12)
    for _ in range(2):  # a request leaves nothing behind
        run = runner.run(Question("q", prompt, 12, 0), 0.0)
        assert run.ids == expected.tokens
    state = 2 * 32
    assert run.max_up_bytes == 5 + 1 + state
    assert run.bytes_up == (len(prompt) + 11) * state + 13 * 6 + (5 + 22)
    assert run.bytes_down == 12 * 9
    assert len(run.shown) == 12 and run.shown == sorted(run.shown)
    assert _forwards(addresses["spec"]) == 24
    stop = expected.tokens[3]
    stopped = runner.run(Question("q", prompt, 12, 0, [stop]), 0.0)
    assert stopped.ids == expected.tokens[: expected.tokens.index(stop) + 1]


def test_split_inference_draws_as_the_service_does(
    split_cloud: tuple[Any, dict[str, str]], tmp_path: Path
) -> None:
    model, addresses = split_cloud
    bundle = make_bundle(tmp_path / "other", eos_ids=())
    with EdgeRuntime(bundle, f"ws://{addresses['spec']}/v1/spec", mode="cloud") as edge:
        expected = edge.generate(PROMPT, max_tokens=12, temperature=0.8, seed=9).token_ids
    run = SplitRunner(Front(model, 2), 2, 64, addresses["split"]).run(Question("q", PROMPT, 12, 9), 0.8)
    assert run.ids == expected


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([(split_wire.STATES, b"")], "an open frame comes first"),
        ([(split_wire.OPEN, b"1")], "an open frame has 1 bytes"),
        ([(split_wire.OPEN, split_wire.Opening(4, 32, 0.0, 0).pack())], "split_layers is 4"),
        (
            [(split_wire.OPEN, split_wire.Opening(1, 30, 0.0, 0).pack())],
            "have 30 numbers: this target's have 32",
        ),
        ([(split_wire.OPEN, split_wire.Opening(1, 32, math.nan, 0).pack())], "temperature"),
        ([(split_wire.OPEN, split_wire.Opening(1, 32, 0.0, 0).pack()), (9, b"")], "kind 9 arrived"),
        (
            [(split_wire.OPEN, split_wire.Opening(1, 32, 0.0, 0).pack()), (split_wire.STATES, b"\1" * 64)],
            "a states frame has 64 bytes",
        ),
        (
            [
                (split_wire.OPEN, split_wire.Opening(1, 32, 0.0, 0).pack()),
                (split_wire.STATES, b"\1" + b"\xff" * 64),
            ],
            "not finite",
        ),
        (
            [
                (split_wire.OPEN, split_wire.Opening(1, 32, 0.0, 0).pack()),
                (split_wire.STATES, b"\0" + bytes(64 * 128)),
                (split_wire.STATES, b"\0" + bytes(64 * 128)),
            ],
            "longer than the target's 200 tokens",
        ),
    ],
)
def test_the_split_target_says_what_is_wrong_and_lives(
    split_cloud: tuple[Any, dict[str, str]], frames: list[tuple[int, bytes]], words: str
) -> None:
    model, addresses = split_cloud
    host, _, port = addresses["split"].rpartition(":")
    wire = split_wire.Wire(socket.create_connection((host, int(port)), 10.0), 10.0)
    try:
        for kind, payload in frames:
            wire.send(kind, payload)
        answer = wire.receive()
    finally:
        wire.close()
    assert answer is not None and answer[0] == split_wire.FAULT and words in answer[1].decode()
    run = SplitRunner(Front(model, 1), 1, 64, addresses["split"]).run(Question("q", PROMPT, 2, 0), 0.0)
    assert len(run.ids) == 2


def test_split_frames_are_bounded_and_waited_for() -> None:
    near, far = tcp_pair()
    wire = split_wire.Wire(near, 0.05)
    try:
        with pytest.raises(LinkError, match="lost the other part"):
            wire.receive()
        far.sendall(struct.pack("!BI", split_wire.TOKEN, split_wire.MAX_PAYLOAD + 1))
        with pytest.raises(PeerError, match="are the most"):
            wire.receive()
        far.sendall(b"\3\0\0")
        far.close()
        with pytest.raises(LinkError, match="hung up within a frame"):
            wire.receive()
    finally:
        wire.close()
        far.close()


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    assert split_wire.unpack_token(split_wire.pack_token(63), 64) == 63
    for payload in (split_wire.pack_token(64), b"", b"\0" * 5):
        with pytest.raises(PeerError, match="below 64"):
            split_wire.unpack_token(payload, 64)


def test_links_are_one_process_with_a_link_each(tmp_path: Path) -> None:
    from tools.bench.paradigms.links import links

    with socket.create_server(("127.0.0.1", 0)) as far:
        far.settimeout(10.0)
        host, port = far.getsockname()[:2]
        with links(Cell(1, 1e6, 1e6), [f"{host}:{port}"] * 2, tmp_path / "log") as near:
            assert len(set(near)) == 2
            for address in near:
                at, _, number = address.rpartition(":")
                with socket.create_connection((at, int(number)), 10.0) as client:
                    client.sendall(b"hello")
                    arrived, _ = far.accept()
                    with arrived:
                        arrived.settimeout(10.0)
                        assert arrived.recv(5) == b"hello"


def test_the_cloud_serves_all_three_over_one_model(
    split_cloud: tuple[Any, dict[str, str]], tmp_path: Path
) -> None:
    model, addresses = split_cloud
    assert set(addresses) == {"spec", "padded", "split"} and len(set(addresses.values())) == 3
    bundle = make_bundle(tmp_path / "other", eos_ids=())
    expected = greedy(model, PROMPT, 64, [], 6).tokens
    for name in ("spec", "padded"):
        with EdgeRuntime(bundle, f"ws://{addresses[name]}/v1/spec", mode="cloud") as edge:
            assert edge.generate(PROMPT, max_tokens=6).token_ids == expected
    assert _forwards(addresses["spec"]) == 12


def test_a_service_with_rows_has_the_limits_of_the_plain_one(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    service = Service(
        ScriptedVerifier(_core.FakeEngine(vocabulary=64, slots=64, seed=1).logits, bundle.vocabulary_table),
        ServiceOptions(),
    )
    padded = PaddedService(service)
    assert padded.target is service.target and padded.sessions == 0
    padded.close()
