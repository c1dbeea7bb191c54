"""The network and the cloud behind it: a handshake, pings, a burst, and one short request."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.channel import Channel
from acespec_edge.doctor.finding import Finding
from acespec_edge.errors import AcespecError, LinkError
from acespec_edge.request import make_request
from acespec_edge.session import EdgeSession
from acespec_edge.session_events import Committed
from acespec_edge.transport import WebSocketLink

_PINGS: Final = 3
_PING_TIMEOUT: Final = 5.0
_ANSWER_TIMEOUT: Final = 30.0
_BURST: Final = 16
_NODES: Final = 8
_LONG_TRIP: Final = 0.4
"""Seconds of a round trip above which people notice each miss."""


@dataclass(frozen=True, slots=True)
class Network:
    """Seconds of the round trip, its spread over the pings, and bytes a second towards the cloud."""

    round_trip: float
    spread: float
    goodput_up: float


@dataclass(frozen=True, slots=True)
class Target:
    """Seconds of a verification of no nodes and of ``nodes`` nodes, as the cloud reports them."""

    plain: float
    tree: float
    nodes: int = _NODES


def probe_cloud(
    url: str, bundle: Bundle, connect: Callable[[], WebSocketLink]
) -> tuple[list[Finding], Network | None, Target | None]:
    """What the cloud at ``url`` says and takes. ``connect`` opens a link to it. Every wait is bounded."""
    findings: list[Finding] = []
    network: Network | None = None
    began = time.monotonic()
    try:
        link = connect()
    except AcespecError as error:
        return [Finding("network", "bad", str(error), {"url": url})], None, None
    opened = time.monotonic() - began
    vocabulary = bundle.vocabulary_table
    session = EdgeSession(
        tokenizer=vocabulary.fingerprint,
        vocabulary=vocabulary.size,
        drafter=bundle.name,
        chunks=vocabulary.chunks,
    )
    channel = Channel(link, session, _ANSWER_TIMEOUT)
    try:
        began = time.monotonic()
        channel.greet(threading.Event())
        greeted = time.monotonic() - began
        network = _network(link)
        findings.append(_network_finding(url, network, opened, greeted))
        target = _target(channel, bundle)
        findings.append(_cloud_finding(channel.welcome, vocabulary.fingerprint, target))
        return findings, network, target
    except AcespecError as error:
        # Until there is an answer nobody knows which of the two it is.
        name = "network" if isinstance(error, LinkError) else "cloud"
        findings.append(Finding(name, "bad", str(error), {"url": url}))
        return findings, network, None
    finally:
        channel.close("the check is over")


def _network(link: WebSocketLink) -> Network:
    trips = [link.ping(_PING_TIMEOUT) for _ in range(_PINGS)]
    # Drafts of no request, which a cloud drops: bytes that cost nothing but the way there.
    burst = [
        _core.encode(_core.Draft(request=0xFFFF, round=number, base=1, first_node=1, tokens=[1 << 16] * 88))
        for number in range(1, _BURST + 1)
    ]
    began = time.monotonic()
    for frame in burst:
        link.send(frame)
    link.ping(_ANSWER_TIMEOUT)
    taken = max(1e-4, time.monotonic() - began - min(trips))
    return Network(statistics.median(trips), max(trips) - min(trips), sum(map(len, burst)) / taken)


def _target(channel: Channel, bundle: Bundle) -> Target:
    """Three verdicts of a request that is then cancelled: the prompt's, a plain step, a chain."""
    prompt = bundle.with_one_bos(bundle.vocabulary_table.encode("Hello", add_special=False)) or [1]
    request = make_request(bundle, prompt, "cloud", max_tokens=64, ignore_eos=True, temperature=0.0)
    channel.open(request, free_run=False)
    _verdict(channel)
    channel.draft([])
    plain = _verdict(channel)
    nodes = min(_NODES, channel.welcome.max_nodes)
    channel.draft([plain.tokens[-1] if plain.tokens else 1] * nodes)
    tree = _verdict(channel)
    channel.settle(threading.Event())
    return Target(plain.verify, tree.verify, nodes)


def _verdict(channel: Channel) -> Committed:
    verdict = channel.wait(threading.Event())
    assert verdict is not None  # nobody cancels
    return verdict


def _network_finding(url: str, network: Network, opened: float, greeted: float) -> Finding:
    facts = {
        "url": url,
        "connect_ms": round(1e3 * opened, 1),
        "hello_ms": round(1e3 * greeted, 1),
        "rtt_ms": round(1e3 * network.round_trip, 2),
        "rtt_spread_ms": round(1e3 * network.spread, 2),
        "up_bit_per_second": round(8 * network.goodput_up),
    }
    words = (
        f"RTT {1e3 * network.round_trip:.0f} ms (+-{1e3 * network.spread:.0f}), "
        f"up {_rate(8 * network.goodput_up)}, connected in {1e3 * opened:.0f} ms"
    )
    if network.round_trip > _LONG_TRIP:
        advice = "the round trip is long: take a cloud that is nearer, if there is one"
        return Finding("network", "slow", words, facts, advice)
    return Finding("network", "ok", words, facts)


def _cloud_finding(welcome: _core.Welcome, fingerprint: bytes, target: Target) -> Finding:
    facts = {
        "target": welcome.target,
        "max_context": welcome.max_context,
        "vocabulary": welcome.vocabulary,
        "verify_ms": round(1e3 * target.plain, 2),
        "tree_verify_ms": round(1e3 * target.tree, 2),
        "nodes": target.nodes,
    }
    words = (
        f"{welcome.target or 'a target'}, tokenizer {fingerprint.hex()[:8]} matches, verifies in "
        f"{1e3 * target.plain:.0f} ms, {target.nodes} drafted tokens in {1e3 * target.tree:.0f} ms"
    )
    return Finding("cloud", "ok", words, facts)


def _rate(bits: float) -> str:
    if bits >= 1e9:
        return "over 1 Gbit/s"
    return f"{bits / 1e6:.1f} Mbit/s" if bits >= 1e6 else f"{bits / 1e3:.0f} kbit/s"
