"""The figures of a running gateway, off its /metrics."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from acespec_edge.errors import LinkError, PeerError, UsageError

_LARGEST: Final = 1 << 20
_TIMEOUT: Final = 3.0

_GAUGES: Final = {
    "rtt_ms": ("acespec_edge_round_trip_seconds", 1e3),
    "rtt_deviation_ms": ("acespec_edge_round_trip_deviation_seconds", 1e3),
    "verify_ms": ("acespec_edge_verify_seconds", 1e3),
    "forward_ms": ("acespec_edge_forward_seconds", 1e3),
    "chain_length": ("acespec_edge_chain_length_tokens", 1.0),
    "tree_budget": ("acespec_edge_tree_budget_nodes", 1.0),
    "expected_tokens_per_second": ("acespec_edge_tokens_per_second", 1.0),
    "target_tokens_per_second": ("acespec_edge_target_tokens_per_second", 1.0),
}


@dataclass(frozen=True, slots=True)
class Scrape:
    """One look at the metrics: sums of all series of a name, and series with their labels' values. ``at``:
    monotonic seconds."""

    at: float
    sums: Mapping[str, float]
    labelled: Mapping[tuple[str, tuple[str, ...]], float]
    about: Mapping[str, str]
    """Labels of acespec_edge_info."""

    def rate(self, name: str, before: Scrape | None) -> float:
        """Of a counter, a second since ``before``; 0 without it."""
        if before is None or self.at <= before.at:
            return 0.0
        return max(0.0, self.sums.get(name, 0.0) - before.sums.get(name, 0.0)) / (self.at - before.at)


@dataclass(frozen=True, slots=True)
class Sample:
    """What `acespec top` shows; the names are those of its JSON. Shares and means are of the time since the
    sample before, of all time in the first. None: not known (yet)."""

    model: str
    version: str
    running: bool
    requests_inside: int
    rtt_ms: float | None
    rtt_deviation_ms: float | None
    up_kbit_per_second: float | None
    down_kbit_per_second: float | None
    verify_ms: float | None
    forward_ms: float | None
    chain_length: float | None
    tree_budget: float | None
    sent_nodes: float | None
    """Nodes a draft."""
    tokens_per_round: float | None
    hit_rate: float | None
    acceptance: float | None
    tokens_per_second: float
    expected_tokens_per_second: float | None
    target_tokens_per_second: float | None
    tokens: int
    requests: int
    failed: int
    connections: int
    choices: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def scrape(url: str, key: str | None = None, timeout: float = _TIMEOUT) -> Scrape:
    """Reads the metrics of the gateway at ``url`` (``http://host:port``; a path is left out). ``key``:
    its API key.

    Raises UsageError for an address that is none or a key that is wrong or missing, LinkError when nobody
    answers within ``timeout`` seconds, PeerError when what answers is no gateway.
    """
    from prometheus_client.parser import text_string_to_metric_families

    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right:
        raise UsageError(f"url is {url!r}: an address like http://127.0.0.1:8080 would be right")
    address = f"{parts.scheme}://{parts.netloc}/metrics"
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {key}"} if key else {})
    # Without proxies: a gateway is near.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            text = answer.read(_LARGEST + 1)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise UsageError(f"{address} answers {error.code}: give --api-key-file") from error
        raise PeerError(f"{address} answers {error.code}: is a gateway there?") from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise LinkError(f"no gateway answers at {address}: {reason}; acespec serve starts one") from error
    at = time.monotonic()
    sums: dict[str, float] = {}
    labelled: dict[tuple[str, tuple[str, ...]], float] = {}
    about: dict[str, str] = {}
    try:
        if len(text) > _LARGEST:
            raise ValueError("too long")
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
                labelled[sample.name, tuple(sample.labels.values())] = sample.value
                if sample.name == "acespec_edge_info":
                    about = dict(sample.labels)
    except ValueError as error:
        raise PeerError(f"{address} answers something else than metrics: {error}") from error
    if not about:
        raise PeerError(f"{address} has metrics, but not those of an edge gateway")
    return Scrape(at, sums, labelled, about)


def sample(now: Scrape, before: Scrape | None = None) -> Sample:
    """The figures of ``now``, rates since ``before``."""
    gauges = {
        name: None if metric not in now.sums else now.sums[metric] * scale
        for name, (metric, scale) in _GAUGES.items()
    }

    def share(part: str, whole: str, more: float = 0.0) -> float | None:
        names = (f"acespec_edge_{part}_total", f"acespec_edge_{whole}_total")
        parts = [now.sums.get(name, 0.0) for name in names]
        if before is not None:
            since = [value - before.sums.get(name, 0.0) for value, name in zip(parts, names, strict=True)]
            # Nothing since then: what was true last stands.
            parts = since if since[1] > 0 else parts
        return parts[0] / parts[1] + more if parts[1] > 0 else None

    def goodput(direction: str) -> float | None:
        found = now.labelled.get(("acespec_edge_goodput_bytes_per_second", (direction,)))
        return None if found is None else 8e-3 * found

    outcomes = {
        labels: value
        for (name, labels), value in now.labelled.items()
        if name == "acespec_edge_requests_total"
    }
    return Sample(
        model=now.about.get("bundle", ""),
        version=now.about.get("version", ""),
        running=bool(now.sums.get("acespec_edge_running")),
        requests_inside=int(now.sums.get("acespec_gateway_inside_requests", 0)),
        **gauges,
        up_kbit_per_second=goodput("up"),
        down_kbit_per_second=goodput("down"),
        sent_nodes=share("drafted_nodes", "drafts"),
        tokens_per_round=share("accepted_nodes", "rounds", 1.0),
        hit_rate=share("foreseen_verdicts", "verdicts"),
        acceptance=share("accepted_nodes", "drafted_nodes"),
        tokens_per_second=now.rate("acespec_edge_tokens_total", before),
        tokens=int(now.sums.get("acespec_edge_tokens_total", 0)),
        requests=int(sum(outcomes.values())),
        failed=int(sum(value for labels, value in outcomes.items() if "ok" not in labels)),
        connections=int(now.sums.get("acespec_edge_connections_total", 0)),
        choices={
            labels[0]: int(value)
            for (name, labels), value in now.labelled.items()
            if name == "acespec_edge_choices_total"
        },
    )
