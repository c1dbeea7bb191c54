"""Split inference: the target's first layers on the edge, every token's hidden state up, the token down.

The cloud pads its part of a forward by its share of the layers, where a larger target is emulated; the edge's
part takes the time it takes here.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Final

from acespec_edge import _core
from acespec_edge.errors import LinkError, PeerError, UsageError
from cloud_stub.scheduler import Units
from cloud_stub.service import Service
from cloud_stub.verifiers.torch_verifier import TorchVerifier
from tools.bench.paradigms.runs import Question, Run, watched
from tools.bench.paradigms.split_model import Back, Front, States
from tools.bench.paradigms.split_wire import (
    CHUNK,
    FAULT,
    OPEN,
    SILENCE,
    STATES,
    TOKEN,
    Opening,
    Wire,
    pack_states,
    pack_token,
    unpack_states,
    unpack_token,
)

_POLL: Final = 0.2
_CONNECT_TIMEOUT: Final = 10.0
_MOST_TEXT: Final = 1000


class SplitServer:
    """The cloud's part, beside a service whose worker it shares; one connection at a time.

    Serves from a thread of its own until close(), which waits for what runs.
    """

    def __init__(self, service: Service, verifier: TorchVerifier) -> None:
        self._service = service
        self._verifier = verifier
        self._sampler = _core.Sampler(service.target.vocabulary)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(_POLL)
        self._ended = threading.Event()
        self._wire: Wire | None = None
        self._thread = threading.Thread(target=self._accept, name="split-server", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        host, port = self._listening.getsockname()[:2]
        return f"{host}:{port}"

    def close(self) -> None:
        """Ends the thread and its connection. More than once is fine."""
        self._ended.set()
        if (wire := self._wire) is not None:
            wire.close()
        self._thread.join(SILENCE)
        self._listening.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connected, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            self._wire = wire = Wire(connected)
            try:
                self._serve(wire)
            except Exception as error:
                self._refuse(wire, str(error) or type(error).__name__)
            finally:
                wire.close()

    def _refuse(self, wire: Wire, reason: str) -> None:
        try:
            wire.send(FAULT, reason.encode()[:_MOST_TEXT])
        except LinkError:
            return  # whoever asked is gone

    def _serve(self, wire: Wire) -> None:
        """One request. Raises LinkError, PeerError, UsageError, and what the model raises."""
        if self._ended.is_set() or (frame := wire.receive()) is None:
            return
        if frame[0] != OPEN:
            raise PeerError(f"a frame of kind {frame[0]} arrived: an open frame comes first")
        opening = Opening.unpack(frame[1])
        back = Back(self._verifier.model, opening.layers)
        if opening.width != back.width:
            raise UsageError(f"hidden states have {opening.width} numbers: this target's have {back.width}")
        rules = _core.SamplingRules(temperature=opening.temperature, seed=opening.seed)
        rules.validate()
        while not self._ended.is_set() and (frame := wire.receive()) is not None:
            if frame[0] != STATES:
                raise PeerError(f"a frame of kind {frame[0]} arrived: states would be right")
            states, last = unpack_states(frame[1], back.width)
            if back.length + len(states) >= self._verifier.max_context:
                raise UsageError(f"the text is longer than the target's {self._verifier.max_context} tokens")
            token = self._forward(back, states, rules, last)
            if token is not None:
                wire.send(TOKEN, pack_token(token))

    def _forward(self, back: Back, states: States, rules: _core.SamplingRules, last: bool) -> int | None:
        """The token behind the states when they are the last, on the service's worker."""
        done: Future[int | None] = Future()

        def units() -> Units:
            try:
                done.set_result(self._ruled(back, states, rules, last))
            except BaseException as error:
                done.set_exception(error)
            return
            yield

        self._service.scheduler.submit(units())
        try:
            return done.result(SILENCE)
        except FutureTimeout:
            raise LinkError(f"the target did not come to it within {SILENCE:g} s") from None

    def _ruled(self, back: Back, states: States, rules: _core.SamplingRules, last: bool) -> int | None:
        started = time.monotonic()
        row = back.logits(states)
        if not last:
            return None
        token = self._sampler.choose(row, rules, back.length)
        pause = back.share * self._service.scheduler.pacing.seconds(0) - (time.monotonic() - started)
        if pause > 0:
            self._ended.wait(pause)
        self._service.counters.add(forwards=1)
        return token


class SplitRunner:
    """The edge's part: answers questions over connections to `address` (HOST:PORT), one each."""

    def __init__(
        self,
        front: Front,
        layers: int,
        vocabulary: int,
        address: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._front = front
        self._layers = layers
        self._vocabulary = vocabulary
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._clock = clock

    def run(self, question: Question, temperature: float) -> Run:
        """See Runner. Raises LinkError with the cloud's reason when it refuses."""
        started = self._clock()
        try:
            connected = socket.create_connection(self._address, _CONNECT_TIMEOUT)
        except OSError as error:
            raise LinkError(f"cannot reach the split target: {error}") from error
        wire = Wire(connected)
        largest: list[int] = []
        try:
            ids, shown = watched(self._answer(wire, question, temperature, largest), started, self._clock)
        finally:
            wire.close()
        return Run(ids, shown, wire.bytes_sent, wire.bytes_received, max_up_bytes=max(largest, default=0))

    def close(self) -> None:
        """Nothing is kept open."""

    def _answer(
        self, wire: Wire, question: Question, temperature: float, sizes: list[int]
    ) -> Iterator[list[int]]:
        """`sizes`: takes those of the messages after the prompt's."""
        self._front.begin()
        prompt = question.ids
        for start in range(0, len(prompt), CHUNK):
            states = self._front.states(prompt[start : start + CHUNK])
            if start == 0:
                opening = Opening(self._layers, states.shape[1], temperature, question.seed)
                wire.send(OPEN, opening.pack())
            wire.send(STATES, pack_states(states, start + CHUNK >= len(prompt)))
        for number in range(1, question.tokens + 1):
            token = self._token(wire)
            yield [token]
            if token in question.stop_ids or number == question.tokens:
                return
            sizes.append(wire.send(STATES, pack_states(self._front.states([token]), True)))

    def _token(self, wire: Wire) -> int:
        frame = wire.receive()
        if frame is None:
            raise LinkError("the split target hung up")
        kind, payload = frame
        if kind == FAULT:
            raise LinkError(f"the split target refused: {payload.decode(errors='replace')}")
        if kind != TOKEN:
            raise PeerError(f"a frame of kind {kind} arrived: a token would be right")
        return unpack_token(payload, self._vocabulary)
