"""What a gateway exports to Prometheus: its own requests, and what its runtime has done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from acespec_edge import __version__
from acespec_edge.gateway.service import Gateway
from acespec_edge.totals import Done, Estimates

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

_SECONDS: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

_SUMS: Final = {
    "rounds": ("rounds", "Drafts that the cloud answered"),
    "drafts": ("drafts", "Drafts sent"),
    "drafted_nodes": ("drafted_nodes", "Drafted tokens sent"),
    "accepted_nodes": ("accepted_nodes", "Drafted tokens that the target accepted"),
    "verdicts": ("verdicts", "Verdicts after the first of their request"),
    "foreseen": ("foreseen_verdicts", "Verdicts whose continuation was drafted already: hits"),
    "forwards": ("forwards", "Forwards of the drafter"),
    "bytes_up": ("sent_bytes", "Payload bytes sent to the cloud by requests"),
    "bytes_down": ("received_bytes", "Payload bytes received from the cloud by requests"),
    "outages": ("outages", "Connections to the cloud lost while a generation ran"),
    "offline_tokens": ("offline_tokens", "Tokens that the drafter chose alone, without a cloud"),
    "connections": ("connections", "Connections to the cloud opened: beyond the first, reconnects"),
}
_GAUGES: Final = {
    "round_trip": ("round_trip_seconds", "Smoothed round trip without the cloud's work"),
    "round_trip_deviation": ("round_trip_deviation_seconds", "Smoothed deviation of the round trip"),
    "verify": ("verify_seconds", "Expected verification of no drafted tokens"),
    "verify_node": ("verify_node_seconds", "Expected verification of each further token"),
    "forward": ("forward_seconds", "Expected forward of the drafter, one token wide"),
    "chain": ("chain_length_tokens", "K: length of the best chain by the estimates"),
    "budget": ("tree_budget_nodes", "B: nodes that can be grown until a verdict comes"),
    "rate": ("tokens_per_second", "Rate of the run so far"),
    "alone": ("target_tokens_per_second", "Rate that the target would have alone"),
}


class GatewayMetrics:
    """The metrics of one gateway; their names and labels are a contract. Thread-safe. No label comes from a
    client: the series are bounded.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_RuntimeCollector(gateway))
        self._requests = Counter(
            "acespec_gateway_requests",
            "HTTP requests answered",
            ("path", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "acespec_gateway_request_seconds",
            "Time from a request's head to the end of its answer",
            ("path",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        gateway.first_token = Histogram(
            "acespec_gateway_first_token_seconds",
            "Time from a generation's turn to its first token",
            buckets=_SECONDS,
            registry=self._registry,
        ).observe

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Counts an answer. ``path``: of a route."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def render(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry)


class _RuntimeCollector(Collector):
    """Reads the gateway and its runtime when asked."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        gateway = self._gateway
        done = gateway.edge.totals.read()
        info = GaugeMetricFamily("acespec_edge_info", "What runs here", labels=["version", "bundle", "quant"])
        bundle = gateway.edge.bundle
        info.add_metric([__version__, bundle.name, bundle.quant], 1)
        yield info
        inside = "Requests running and waiting"
        yield GaugeMetricFamily("acespec_gateway_inside_requests", inside, gateway.turns.inside)
        yield GaugeMetricFamily("acespec_edge_running", "Whether a generation runs", int(done.running))
        yield from _counters(done)
        if (estimates := gateway.edge.totals.estimates) is not None:
            yield from _estimates(estimates)


def _counters(done: Done) -> Iterator[Metric]:
    for field, (name, help) in _SUMS.items():
        yield CounterMetricFamily(f"acespec_edge_{name}", help, getattr(done, field))
    requests = CounterMetricFamily(
        "acespec_edge_requests", "Generations ended, by outcome", labels=["mode", "outcome"]
    )
    for labels, count in done.requests.items():
        requests.add_metric(labels, count)
    tokens = CounterMetricFamily("acespec_edge_tokens", "Tokens given out", labels=["mode"])
    for mode, count in done.tokens.items():
        tokens.add_metric([mode], count)
    choices = CounterMetricFamily("acespec_edge_choices", "What the policy chose", labels=["choice"])
    for choice, count in done.choices.items():
        choices.add_metric([choice], count)
    yield from (requests, tokens, choices)


def _estimates(estimates: Estimates) -> Iterator[Metric]:
    for field, (name, help) in _GAUGES.items():
        yield GaugeMetricFamily(f"acespec_edge_{name}", help, getattr(estimates, field))
    goodput = GaugeMetricFamily(
        "acespec_edge_goodput_bytes_per_second", "Estimated goodput", labels=["direction"]
    )
    goodput.add_metric(["up"], estimates.goodput_up)
    goodput.add_metric(["down"], estimates.goodput_down)
    yield goodput
