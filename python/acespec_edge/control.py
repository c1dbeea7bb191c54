"""Decides what is drafted, what is sent and when, from what was measured; plain arithmetic, no I/O."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from acespec_edge import _core
from acespec_edge.contest import Contest
from acespec_edge.forecast import Forecast
from acespec_edge.hint_record import HintRecord
from acespec_edge.policy import Policy
from acespec_edge.session_events import Committed
from acespec_edge.target_cost import TargetCost
from acespec_edge.track_record import LONGEST, ChainRecord

_NODE_BYTES: Final = 4
"""A drafted node on the wire: an id and the way to its parent."""

_DRAFT_BYTES: Final = 40
"""A draft without nodes."""

_VERDICT_BYTES: Final = 60

_FIRST_FORWARD: Final = (0.03, 1 / 8)
"""Seconds of a forward of one node, and the share of it that a further one adds: of a drafter nothing is
known of."""

_KEPT: Final = 0.93
"""What a round leaves of the weight of those before: the last fourteen decide."""

_TELLING: Final = 64
"""Prompt tokens from which on reading them tells how long reading takes, where others were kept."""

_MOST_GROWN: Final = 4096
"""Nodes grown in one round at most, however long it takes."""


class Controller:
    """What one runtime knows of its network, its cloud and its drafter, and what follows for the next step.

    One allocation with three prices, all in seconds. A token is worth 1/rate of them, the rate being that of
    the run so far: with it, maximising the long-run rate is to take whatever is worth more than it costs
    (renewal reward). A node costs its bytes on the uplink and its part of a verification; a forward costs
    its own time, as far as somebody waits for it. So the number of nodes, the length of the chain and the
    budget B* all follow from what is measured. Times are seconds of one clock. Not thread-safe.
    """

    def __init__(self, policy: Policy, *, width: int) -> None:
        """``width``: most nodes in one forward."""
        self.policy = policy
        self.link = _core.LinkEstimate()
        self.target = TargetCost()
        self.forward = _core.WidthCurve(width, *_FIRST_FORWARD)
        self._width = width
        self._queue = 0.0
        self._sent_idle = False
        """Behind a draft that came while the cloud was at work lies the time of that work, which says
        nothing."""
        self._prompt = 1
        self._residual = False
        self._read: float | None = None
        self._cloud_read = 0.0
        self._composing = 0.0
        self._chains, self._hints = ChainRecord(), HintRecord()
        self._contest = Contest(policy)
        self._hit = 0.8
        self._accepted = 0.8
        self._tokens = self._seconds = 0.0
        self._last: float | None = None
        self._send_by: float | None = None
        self._due: float | None = None

    # What is measured.

    def begin(self, prompt: int, *, residual: bool = False) -> None:
        """A request of ``prompt`` tokens starts: the time since the last one says nothing. ``residual``: in
        residual mode, where there is nothing to choose."""
        self._residual = residual
        self._last = self._send_by = self._due = None
        self._sent_idle = False
        self._prompt = prompt

    def forwarded(self, width: int, seconds: float) -> None:
        """The drafter forwarded ``width`` nodes."""
        self.forward.observe(width, seconds)

    def prefilled(self, tokens: int, seconds: float) -> None:
        """The drafter read ``tokens`` tokens."""
        self._read = (
            seconds / tokens if self._read is None else self._read + (seconds / tokens - self._read) / 8
        )

    def accepts(self, acceptance: float) -> None:
        """Takes the share of the drafter's first guesses that the target takes."""
        self._accepted = acceptance

    def answered(self, verdict: Committed) -> None:
        """Takes a verdict."""
        if verdict.hint:
            self._hints.came()
        if verdict.round_trip is not None:
            self.link.observe(
                verdict.bytes_up, verdict.bytes_down, verdict.round_trip, verdict.at, verdict.rough
            )
        if verdict.rough:
            read = self._prompt - verdict.reused
            # A few tokens would tell what a forward costs, not what reading does.
            if not verdict.reused or read >= _TELLING:
                self._cloud_read = verdict.verify / read
        elif verdict.nodes == 0:
            self.target.stepped(len(verdict.tokens), verdict.verify)
        else:
            self.target.verified(verdict.nodes, verdict.verify)
        if self._sent_idle and not verdict.rough:
            self._queue += (verdict.queue - self._queue) / 8
        # In place of the token that it rejects, this side draws another.
        tokens = len(verdict.tokens) + (verdict.sparse is not None)
        last, self._last = self._last, verdict.at
        self._contest.saw(tokens, verdict.accepted if verdict.nodes else 0)
        if last is None:
            return
        seconds = max(0.0, verdict.at - last)
        self._tokens = _KEPT * self._tokens + tokens
        self._seconds = _KEPT * self._seconds + seconds
        if self._residual:
            return
        counts = (verdict.answered or self._contest.joins) and self.target.known
        forecast = self._forecast()
        rate = forecast.joining() if self._contest.joins else forecast.waited_for()
        self._contest.observe(tokens, seconds * rate, counts=counts)

    def walked(self, accepted: int, length: int) -> None:
        """Takes that of a chain of ``length`` tokens the first ``accepted`` were accepted."""
        self._chains.walked(accepted, length)

    def hinted(self, hint: Sequence[int], committed: Sequence[int]) -> None:
        """Takes what was committed behind a hint, as far as it is known."""
        self._hints.followed(hint, committed)

    def recovered(self, hit: bool) -> None:
        """Takes whether a verdict led to a node that was drafted already."""
        self._hit += (hit - self._hit) / 8

    def composed(self, seconds: float) -> None:
        """Takes how long the cloud waited for a draft, but for the network."""
        self._composing += (seconds - self._composing) / 8

    def sent(self, at: float, nodes: int, size: int, *, wants_hint: bool = False) -> None:
        """A draft of ``size`` bytes left for an idle cloud, which then verifies ``nodes`` nodes."""
        if wants_hint:
            self._hints.asked()
        self.working(at, nodes)
        self._sent_idle = True
        self._due = (
            at + self.link.round_trip(size, _VERDICT_BYTES) + self._queue + self.target.verifying(nodes)
        )

    def working(self, since: float, nodes: int) -> None:
        """The cloud verifies ``nodes`` nodes. ``since``: when a draft that it gets as it begins would have
        been sent."""
        self._sent_idle = False
        self._send_by = since + self._queue + self.target.verifying(nodes)
        self._due = self._send_by + self.link.rtt

    # What follows.

    @property
    def most(self) -> int:
        """Most nodes in one forward."""
        return self._width

    @property
    def rate(self) -> float:
        """Tokens a second, of the run so far; of the model before that has taken the time of a plain step:
        verdicts that arrive in one burst tell nothing."""
        if self._seconds > self.target.step:
            return self._tokens / self._seconds
        return self._forecast().waited_for()

    @property
    def alone(self) -> float:
        """Tokens a second of the target alone."""
        return self.target.per_step / (self.target.step + self._queue)

    def drafting_pays(self) -> bool:
        """Whether to draft rather than leave the target alone, which goes on by itself meanwhile."""
        forecast = self._forecast()
        self._contest.choose(waited=forecast.waited_for(), joined=forecast.joining(), alone=self.alone)
        return self._contest.drafting

    def goes_on(self) -> bool:
        """Whether the cloud decodes by itself until the next draft comes: it wastes nothing while the
        drafter has yet to show what it is worth, and is only in the way of a good one that is near."""
        return self._contest.joins

    def starts_alone(self, tokens: int) -> bool:
        """Whether the cloud should decode by itself from the start of a request: because drafting did not
        pay so far, or because the drafter has ``tokens`` tokens of the prompt to read and takes longer."""
        if self.policy.cloud_only is not None:
            return self.policy.cloud_only or bool(self.policy.go_on)
        if self.policy.go_on is not None:
            return self.policy.go_on or not self._contest.drafting
        if not self._contest.drafting or self.goes_on():
            return True
        ahead = self.link.rtt + self._cloud_read * tokens + 2 * self.target.step
        return self._read is not None and self._read * tokens > ahead

    def width(self, frontier: Sequence[float], now: float, *, drafted: int | None) -> int:
        """How many of the ``frontier``'s nodes (their weights, greatest first) the next forward should hold;
        0: none, nothing is worth the time.

        A forward gains the likeliest child of each node. Up to the verdict its time costs no more than its
        energy (``Policy.work_price``), beyond that it costs; when the cloud waits for a draft, of which
        ``drafted`` nodes are there, all of it does, and so does the child, which is to be sent. Of the widths
        that pay, the one that gains most a second.
        """
        token = 1.0 / self.rate
        if drafted is None:
            free, prices = self._free(now), [0.0] * self._width
        else:
            free, sent = 0.0, self._sending(drafted + self._width)
            prices = [more - less for less, more in itertools.pairwise(sent[drafted:])]
        best, density, gain = 0, 0.0, 0.0
        for width, (weight, price) in enumerate(zip(frontier, prices, strict=False), 1):
            gain += max(0.0, weight * self._accepted * token - price)
            seconds = self.forward.seconds(width)
            cost = max(0.0, seconds - free) + self.policy.work_price * min(seconds, free)
            if gain > cost and gain / seconds > density:
                best, density = width, gain / seconds
        return best

    def count(self, weights: Sequence[float]) -> int:
        """How many nodes, of ``weights`` greatest first, are worth sending."""
        return _core.best_count(weights, self._sending(len(weights)), self.rate)

    def chain_length(self, most: int) -> int:
        """K*, from what is known of the drafter in general: the tokens of the chain play no part in it."""
        prefix = self._chains.prefixes(self._accepted)
        forward, away = self.forward.seconds(1), self._away
        rounds = [away + forward * length + sent for length, sent in enumerate(self._sending(most))]
        return _core.best_length(prefix, rounds, most)

    def hint_length(self, most: int) -> int:
        """How many tokens of a hint to send, with no draft ready; 0 where drafting the chain first is
        expected to yield more."""
        sending, forecast = self._sending(most), self._forecast()
        weights = self._hints.weights(most)
        count = _core.best_count(weights, sending, self.rate)
        if self.policy.hint or not count:
            return count
        hinted = (1 + sum(weights[:count])) / (self._away + sending[count])
        return count if hinted > forecast.chain(lambda length: forecast.forward * length) else 0

    def wants_hint(self) -> bool:
        """Whether the next verdict should bring a hint: it is not asked for where it would not be used, nor
        again and again of a cloud that has none to give."""
        if self.policy.hint is not None:
            return self.policy.hint
        return not self.goes_on() and self._hints.worth_asking and self.hint_length(LONGEST) > 0

    def budget(self) -> int:
        """B*: nodes that can be grown until the verdict on a draft of the usual size comes."""
        if self.policy.budget is not None:
            return self.policy.budget
        until = self._away + self.target.verifying(0)
        return min(_MOST_GROWN, max(1, self.forward.nodes_within(until, self._width)))

    def delta_is_due(self, now: float) -> bool:
        """Whether more of the tree should leave now, to be there when the cloud is done with what it has."""
        return self._send_by is not None and now + self.forward.seconds(1) >= self._send_by

    def delta_pays(self, accepted: float, fits: float, nodes: int) -> bool:
        """Whether ``nodes`` more nodes should go before the verdict: by ``fits`` the probability that the
        cloud can go on with some of them, which then yield ``accepted`` tokens on average, and one more.
        Against it stands how long the full draft that follows the verdict may have to wait for them.
        """
        if self.policy.in_flight is not None:
            return self.policy.in_flight
        late = max(0.0, self.target.verifying(nodes) - self.link.rtt - self._composing)
        bytes_price = nodes * _NODE_BYTES * self.link.seconds_per_byte_up
        return accepted + fits > self.rate * (fits * late + bytes_price)

    def asked(self) -> None:
        """The moment for a delta is used; the next one comes with the next verdict."""
        self._send_by = None

    def patience(self, now: float) -> float:
        """Until when to wait for the verdict before thinking again."""
        times = [time for time in (self._send_by, self._due) if time is not None and time > now]
        return min(times) if times else now + max(0.01, self.link.deviation)

    def why(self) -> str:
        """The estimates behind the choices, in one sentence."""
        return (
            f"a round trip takes {1e3 * self.link.rtt:.0f} ms, {self.target.why()}, "
            f"a forward {1e3 * self.forward.seconds(1):.0f} ms; "
            f"the target takes {self._accepted:.2f} of the first guesses: {self.rate:.1f} tokens/s, "
            f"against {self.alone:.1f} of the target alone"
        )

    def _free(self, now: float) -> float:
        until = [time for time in (self._send_by, self._due) if time is not None and time > now]
        if until:
            return min(until) - now
        return float("inf") if self._due is None else self.link.deviation

    def _sending(self, most: int) -> list[float]:
        """Seconds of sending and verifying 0 to ``most`` nodes."""
        byte = _NODE_BYTES * self.link.seconds_per_byte_up
        return [self.target.verifying(nodes) + byte * nodes for nodes in range(most + 1)]

    @property
    def _away(self) -> float:
        """Seconds from a draft to its verdict, but for the nodes and their verification."""
        return self.link.round_trip(_DRAFT_BYTES, _VERDICT_BYTES) + self._queue

    def _forecast(self) -> Forecast:
        return Forecast(
            acceptance=self._accepted,
            hit=self._hit,
            forward=self.forward.seconds(1),
            away=self.link.round_trip(_DRAFT_BYTES, _VERDICT_BYTES),
            step=self.target.step + self._queue,
            per_step=self.target.per_step,
            verify=[self._queue + sent for sent in self._sending(LONGEST)],
        )
