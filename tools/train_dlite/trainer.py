"""The three stages of training (DLite, arXiv:2610.23787), each of which can be interrupted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import torch

from acespec_edge.errors import EngineError
from cloud_stub.dlite.checkpoint import load_head, new_head, save_head
from cloud_stub.dlite.identity import Identity
from cloud_stub.dlite.model import DLiteHead, Guess
from cloud_stub.verifiers.base import drawable
from cloud_stub.verifiers.torch_verifier import TorchVerifier
from tools.train_dlite import losses
from tools.train_dlite.batches import Anchor, Batch, Texts, check_cache, cut, frequent_ids
from tools.train_dlite.calibration import calibrate
from tools.train_dlite.curves import draw_losses
from tools.train_dlite.progress import LossLog, Place, digest, load_state, read_losses, read_place, save_state
from tools.train_dlite.settings import Settings
from tools.train_dlite.start import adopt_head, adopt_layers

TEACHER, WARM_UP, STABLE, END = range(4)
TEACHER_FOLDER: Final = "teacher"
_HELD_OUT_BATCHES: Final = 8
_FEW_PLACES: Final = 0.8
"""Share of the last stage in which ``train.places`` are trained alone."""


class Trainer:
    """One run, in one folder: the state of training while it goes, and the head at the end.

    Everything random follows from the seed, the stage and the epoch, so an interrupted run ends with the very
    weights of an unbroken one. One thread.
    """

    def __init__(self, settings: Settings, verifier: TorchVerifier, texts: Texts, out: Path) -> None:
        """Raises UsageError for a cache, or a folder, of something else."""
        self._settings, self._verifier, self._texts, self._out = settings, verifier, texts, out
        self._target = Identity.of(verifier)
        self._device = verifier.model.device
        settings.model.check_target(self._target.layers, self._target.width)
        window = settings.train.history if settings.train.epochs[TEACHER] else 0
        check_cache(texts, settings.model.aux_layers, self._target, window)
        self._train, self._held = texts.split(settings.train.held_out)
        entries = [asdict(entry) for entry in texts.entries]
        self._run = digest({**settings.training(), "target": self._target.written(), "texts": entries})
        self._weights = losses.place_weights(settings.model.block, settings.train.decay, self._device)
        out.mkdir(parents=True, exist_ok=True)

    def steps(self) -> int:
        """Of all stages."""
        return sum(self._stage_steps(stage) for stage in (TEACHER, WARM_UP, STABLE))

    def run(self, advance: Callable[[str], None]) -> DLiteHead:
        """Trains from where the folder stands to the end, and leaves the head in the folder; ``advance`` is
        called for each step, those made before included. Raises EngineError when the loss is no number.
        """
        place = read_place(self._out, self._run) or Place(TEACHER, 0)
        log = LossLog(self._out, place)
        try:
            for stage in (TEACHER, WARM_UP, STABLE):
                self._stage(stage, place, log, advance)
        finally:
            log.close()
            draw_losses(read_losses(self._out), self._out / "losses.png")
        head = self._head(STABLE)
        load_state(self._out, self._run, head, self._optimizer(head))
        if head.confidence is not None:
            calibrate(head, self._guesses(head, self._held or self._train))
        save_head(self._out, head, self._target)
        return head

    def _stage(self, stage: int, place: Place, log: LossLog, advance: Callable[[str], None]) -> None:
        steps = self._stage_steps(stage)
        if stage < place.stage or not steps:
            for _ in range(steps):
                advance(_NAMES[stage])
            return
        head = self._head(stage)
        optimizer = self._optimizer(head)
        first = 0
        if stage == place.stage and place.step:
            load_state(self._out, self._run, head, optimizer)
            first = place.step
        elif stage == STABLE and any(self._settings.train.epochs[:STABLE]):
            # The weights of the stage before; the optimizer begins anew.
            load_state(self._out, self._run, head, self._optimizer(head))
        teacher = self._teacher() if stage == WARM_UP else None
        for step, anchors in enumerate(self._plan(stage)):
            if step >= first:
                values = self._step(stage, step, steps, anchors, head, optimizer, teacher)
                log.add(Place(stage, step), **values)
                if (step + 1) % self._settings.train.save_every == 0 and step + 1 < steps:
                    log.flush()
                    save_state(self._out, Place(stage, step + 1), self._run, head, optimizer)
            advance(_NAMES[stage])
        if stage == TEACHER:
            save_head(self._out / TEACHER_FOLDER, head, self._target, dtype=torch.float32)
        log.flush()
        save_state(self._out, Place(stage + 1, 0), self._run, head, optimizer)

    def _step(
        self,
        stage: int,
        step: int,
        steps: int,
        anchors: Sequence[Anchor],
        head: DLiteHead,
        optimizer: torch.optim.Optimizer,
        teacher: DLiteHead | None,
    ) -> dict[str, float]:
        settings = self._settings.train
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * _schedule(step, steps, settings.warmup_steps)
        head.train()
        loss = self._loss(stage, anchors, head, teacher, self._places(stage, step, steps))
        if not torch.isfinite(loss):
            raise EngineError(
                f"the loss of stage {stage}, step {step} is {float(loss)}: a lower train.learning_rate helps"
            )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(head.parameters(), settings.clip)
        optimizer.step()
        values = {"loss": float(loss.detach())}
        if (step + 1) % settings.save_every == 0 or step + 1 == steps:
            values |= self._validate(stage, head, teacher)
        return values

    def _loss(
        self,
        stage: int,
        anchors: Sequence[Anchor],
        head: DLiteHead,
        teacher: DLiteHead | None,
        places: int,
    ) -> torch.Tensor:
        settings = self._settings.train
        window = settings.history if stage != STABLE else 0
        batch = self._texts.batch(anchors, window, self._device).first(places)
        weights = self._weights[:places]
        past = batch.history if stage == TEACHER else None
        with torch.autocast(self._device.type, torch.bfloat16, enabled=settings.autocast):
            guess = head(batch.features, batch.anchors, batch.following, past)
        labels = losses.in_draft(batch.labels, head.draft_ids)
        entropy = losses.cross_entropy(guess.logits, labels)
        in_reach = (labels >= 0).float()
        if stage == TEACHER:
            return losses.weighted_mean(entropy, torch.ones_like(weights), in_reach)
        if teacher is not None:
            with torch.no_grad():
                told = teacher(batch.features, batch.anchors, batch.following, batch.history).logits
            divergence = losses.forward_kl(torch.softmax(told.float(), dim=-1), guess.logits)
            return losses.weighted_mean(divergence, weights, batch.known)
        loss = self._stable_loss(batch, weights, head, guess, entropy, in_reach)
        if settings.feature:
            distance = losses.feature_distance(batch.last, guess.hidden)
            loss = loss + settings.feature * losses.weighted_mean(distance, weights, batch.known)
        return loss

    def _stable_loss(
        self,
        batch: Batch,
        weights: torch.Tensor,
        head: DLiteHead,
        guess: Guess,
        entropy: torch.Tensor,
        in_reach: torch.Tensor,
    ) -> torch.Tensor:
        settings = self._settings.train
        if settings.loss == "divergence":
            told = torch.softmax(self._said(batch, head.projection).float(), dim=-1)
            return losses.weighted_mean(losses.forward_kl(told, guess.logits), weights, batch.known)
        aim = self._aim(batch, head)
        distance = losses.l1 if settings.loss == "l1" else losses.likelihood
        loss = losses.weighted_mean(distance(aim, guess.logits), weights, batch.known)
        if settings.loss == "l1":
            certain = losses.weighted_mean(entropy, weights, in_reach)
            loss = loss + settings.cross_entropy * certain
        return loss if guess.doubt is None else loss + self._doubt_loss(batch, aim, guess)

    def _doubt_loss(self, batch: Batch, aim: losses.Aim, guess: Guess) -> torch.Tensor:
        """Of the confidence head, whose aim is ``1 - ||p - q||_1 / 2``."""
        assert guess.doubt is not None
        accepted = (1.0 - losses.l1(aim, guess.logits).detach() / 2).clamp(0.0, 1.0)
        values = torch.nn.functional.binary_cross_entropy_with_logits(
            guess.doubt.float(), accepted, reduction="none"
        )
        return losses.weighted_mean(values, self._weights[: values.shape[1]], batch.known)

    def _places(self, stage: int, step: int, steps: int) -> int:
        """Places of a block that a step is about."""
        few, block = self._settings.train.places, self._settings.model.block
        return min(few, block) if few and stage == STABLE and step < _FEW_PLACES * steps else block

    @torch.no_grad()
    def _validate(self, stage: int, head: DLiteHead, teacher: DLiteHead | None) -> dict[str, float]:
        """The loss on the texts held out, at anchors that are the same every time."""
        if not self._held:
            return {}
        head.eval()
        settings = self._settings.train
        rng = np.random.default_rng(settings.seed)
        pieces = list(cut(self._texts.anchors(self._held, settings.anchors, rng), settings.batch))
        block = self._settings.model.block
        found = [
            float(self._loss(stage, piece, head, teacher, block)) for piece in pieces[:_HELD_OUT_BATCHES]
        ]
        return {"held_out": sum(found) / len(found)}

    @torch.no_grad()
    def _guesses(
        self, head: DLiteHead, numbers: Sequence[int]
    ) -> list[tuple[Guess, torch.Tensor, torch.Tensor]]:
        """Guesses, what is accepted of each place, and which places there are."""
        head.eval()
        settings = self._settings.train
        rng = np.random.default_rng(settings.seed)
        found = []
        for piece in list(cut(self._texts.anchors(numbers, settings.anchors, rng), settings.batch))[
            : 4 * _HELD_OUT_BATCHES
        ]:
            batch = self._texts.batch(piece, 0, self._device)
            guess = head(batch.features, batch.anchors, batch.following)
            accepted = 1.0 - losses.l1(self._aim(batch, head), guess.logits) / 2
            found.append((guess, accepted, batch.known))
        return found

    @torch.no_grad()
    def _aim(self, batch: Batch, head: DLiteHead) -> losses.Aim:
        logits = self._said(batch, self._verifier.model.get_output_embeddings().weight)
        return losses.Aim.of(logits, head.draft_ids, drawable(self._verifier))

    @torch.no_grad()
    def _said(self, batch: Batch, matrix: torch.Tensor) -> torch.Tensor:
        """The target's logits at the places, by some rows of its output matrix."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._settings.train.autocast):
            return torch.nn.functional.linear(batch.last.to(matrix.dtype), matrix)

    def _head(self, stage: int) -> DLiteHead:
        """A head to begin a stage with: untrained, or the teacher's weights for the warm-up."""
        settings = self._settings
        if stage == WARM_UP:
            return self._teacher().float().requires_grad_(True)
        torch.manual_seed(settings.train.seed)
        ids = frequent_ids(self._texts, self._train, settings.model.draft_vocabulary, self._target.width)
        head = new_head(settings.model, self._verifier, ids).to(self._device, torch.float32)
        start = settings.train.start
        if isinstance(start, str):
            adopt_head(head, start, self._verifier)
        elif start:
            adopt_layers(head, self._verifier.model, start)
        return head

    def _teacher(self) -> DLiteHead:
        return load_head(self._out / TEACHER_FOLDER, self._verifier)

    def _optimizer(self, head: DLiteHead) -> torch.optim.Optimizer:
        settings = self._settings.train
        return torch.optim.AdamW(
            head.parameters(),
            settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=self._device.type == "cpu",
        )

    def _plan(self, stage: int) -> list[Sequence[Anchor]]:
        """The anchors of every step of a stage."""
        settings = self._settings.train
        plan: list[Sequence[Anchor]] = []
        for epoch in range(settings.epochs[stage]):
            rng = np.random.default_rng([settings.seed, stage, epoch])
            plan += cut(self._texts.anchors(self._train, settings.anchors, rng), settings.batch)
        return plan

    def _stage_steps(self, stage: int) -> int:
        settings = self._settings.train
        sizes = [self._texts.entries[number] for number in self._train]
        anchors = sum(min(settings.anchors, entry.tokens - 1 - entry.answer) for entry in sizes)
        return settings.epochs[stage] * -(-anchors // settings.batch)


def _schedule(step: int, steps: int, warmup: int) -> float:
    """Share of the learning rate: up in a line, then down along a cosine."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


_NAMES: Final = ("teacher", "warm-up", "stable")
