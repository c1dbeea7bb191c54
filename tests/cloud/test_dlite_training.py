"""Training: a head that its target agrees with, interrupted or not, and its settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from acespec_edge import _core, draft_heads
from acespec_edge.errors import UsageError
from cloud_stub.continuation import SelfDrafting
from cloud_stub.dlite.checkpoint import load_head, new_head
from cloud_stub.dlite.head_runtime import HeadRuntime
from tests.cloud.dlite_kit import (
    CLOCK_SIZE,
    cached,
    configured,
    following,
    make_clock,
    random_texts,
)
from tests.cloud.rig import Rig
from tools.train_dlite.evaluate import decode
from tools.train_dlite.settings import read_settings
from tools.train_dlite.texts import Text
from tools.train_dlite.trainer import TEACHER_FOLDER, Trainer

pytestmark = pytest.mark.usefixtures("one_thread")

GREEDY = _core.SamplingRules()


def test_a_trained_head_proposes_what_the_target_says_and_a_service_takes_all_of_it(tmp_path: Path) -> None:
    """From end to end: an index that is off by one anywhere, in training or in serving, and nothing of a
    block would be accepted.
    """
    verifier = make_clock()
    settings = configured(
        tmp_path, "train.epochs=[0,0,40]", "train.learning_rate=0.01", "train.anchors=16", "train.batch=32"
    )
    texts = []
    for start in range(CLOCK_SIZE):
        answer = decode(verifier, [start], [], 20, GREEDY)
        texts.append(Text(f"t{start}", "math", [start], answer))
    opened = cached(verifier, texts, settings, tmp_path / "cache")
    Trainer(settings, verifier, opened, tmp_path / "head").run(lambda _: None)
    served = Rig(verifier)
    served.service.self_drafting = SelfDrafting(HeadRuntime.load(tmp_path / "head", verifier), 8.0)
    client = served.client()
    client.say(_core.Open(request=1, prompt=[1, 6], max_tokens=41, free_run=True))
    client.committed = [1, 6]
    served.scheduler.run()
    verdicts = []
    while client.inbox:
        verdicts.append(client.take())
    expected = [6]
    while len(expected) < 42:
        expected.append(following(expected[-1]))
    assert client.committed == [1, *expected]
    assert [len(verdict.tokens) for verdict in verdicts] == [1, *[4] * 10]


def test_an_interrupted_training_ends_like_an_unbroken_one(tmp_path: Path) -> None:
    verifier, settings = make_clock(), configured(tmp_path, "model.confidence=true")
    opened = cached(verifier, random_texts(), settings, tmp_path / "cache")
    trainer = Trainer(settings, verifier, opened, tmp_path / "whole")
    steps: list[str] = []
    trainer.run(steps.append)
    assert len(steps) == trainer.steps() and {*steps} == {"teacher", "warm-up", "stable"}

    class Stop(Exception):
        pass

    for last in (2, 5, steps.index("warm-up"), steps.index("stable") + 4):
        seen: list[str] = []

        def advance(word: str, seen: list[str] = seen, last: int = last) -> None:
            seen.append(word)
            if len(seen) == last:
                raise Stop

        with pytest.raises(Stop):
            Trainer(settings, verifier, opened, tmp_path / "broken").run(advance)
    again: list[str] = []
    Trainer(settings, verifier, opened, tmp_path / "broken").run(again.append)
    assert again == steps
    for name in ("model.safetensors", f"{TEACHER_FOLDER}/model.safetensors"):
        one, other = load_file(tmp_path / "whole" / name), load_file(tmp_path / "broken" / name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), name
    logs = [(tmp_path / folder / "losses.jsonl").read_text() for folder in ("whole", "broken")]
    assert logs[0] == logs[1] and logs[0].count("\n") == len(steps) and '"held_out"' in logs[0]
    assert (tmp_path / "whole" / "losses.png").read_bytes().startswith(b"\x89PNG")
    assert not list((tmp_path / "broken").rglob("*.partial"))
    with pytest.raises(UsageError, match="another folder is right"):
        Trainer(configured(tmp_path, "train.seed=9"), verifier, opened, tmp_path / "whole").run(
            lambda _: None
        )


@pytest.mark.parametrize(
    "changes",
    [
        ["train.epochs=[0,0,2]", "train.loss=likelihood"],
        ["train.epochs=[0,0,3]", "train.loss=divergence", "train.feature=2.0", "train.places=1"],
        ["train.epochs=[2,0,0]", "model.backbone=full", "train.history=0"],
        ["train.epochs=[1,0,1]", "model.rnn=false", "model.depth=false", "model.draft_vocabulary=8"],
    ],
)
def test_every_ablation_trains(tmp_path: Path, changes: list[str]) -> None:
    verifier, settings = make_clock(), configured(tmp_path, *changes)
    opened = cached(verifier, random_texts(), settings, tmp_path / "cache")
    head = Trainer(settings, verifier, opened, tmp_path / "head").run(lambda _: None)
    loaded = load_head(tmp_path / "head", verifier)
    assert loaded.config == settings.model and (loaded.rnn is None) == ("model.rnn=false" in changes)
    untrained = new_head(settings.model, verifier, head.draft_ids if head.reduced else None)
    assert not torch.equal(untrained.norm.weight, loaded.norm.weight)


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-1.5b"])
def test_the_built_in_configurations_are_valid(name: str) -> None:
    settings = read_settings(name)
    assert settings.target == name and settings.model.block == 7 and settings.train.epochs[2] > 0
    start = settings.train.start
    assert start in draft_heads.HEADS if isinstance(start, str) else len(start) in (0, settings.model.layers)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.sed=2", "train.sed is not known"),
        ("train.epochs=[1,2]", "three numbers"),
        ("train.epochs=[0,2,6]", "a warm-up learns from the teacher"),
        ("train.epochs=[0,0,0]", "nothing would be trained"),
        ("train.learning_rate=0", "train.learning_rate is 0: 1e-09 to 1"),
        ("train.loss=l2", "train.loss is 'l2': l1 or likelihood"),
        ("train.history=99", "the cache keeps 4"),
        ("generate.top_p=2", "generate.top_p is 2"),
        ("cache.max_length=1", "cache.max_length is 1"),
        ("model.rank=0", "rank is 0"),
        ("rank=0", "PART.NAME=VALUE"),
        ("other.x=0", "PART.NAME=VALUE"),
    ],
)
def test_settings_that_cannot_be_are_named(tmp_path: Path, change: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        configured(tmp_path, change)


def test_a_configuration_that_there_is_not_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"or one of qwen2\.5-coder-1\.5b, smollm2-135m"):
        read_settings("nothing")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        read_settings(str(tmp_path / "x.json"))
