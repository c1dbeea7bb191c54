"""What both sides export and log: names that dashboards rely on, counts that add up, no word of a prompt."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from acespec_edge import _core
from acespec_edge.bundle import Bundle
from acespec_edge.keyring import Keyring
from acespec_edge.logs import OURS, LogFormat, LogLevel, configure_logs, request_id, usable_id
from tests.cloud.live import PROMPT, Edge, served
from tests.cloud.test_server import get
from tests.python.edge_kit import runtime
from tests.python.fake_cloud import FakeCloud
from tests.python.gateway_kit import Live, chat_bundle, events, serving, writes
from tools.dashboard import dashboard

pytestmark = pytest.mark.usefixtures("threads_end")

ROOT = Path(__file__).parents[2]
TARGET = writes("hello there, edge.")
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return chat_bundle(tmp_path / "bundle")


def scrape(live: Live) -> Samples:
    answer = live.http.get(f"http://127.0.0.1:{live.port}/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    return parsed(answer.text)


def parsed(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def test_what_a_request_did_is_counted(bundle: Bundle) -> None:
    with serving(runtime(bundle, TARGET, TARGET)) as live:
        before = scrape(live)
        assert value(before, "acespec_edge_rounds_total") == 0
        assert ("acespec_edge_round_trip_seconds", ()) not in before
        whole = live.chat(max_tokens=18, acespec_stats=True, temperature=0).json()
        assert len(events(live.chat(max_tokens=5, stream=True, mode="cloud"))) > 2
        live.chat(max_tokens=0)
        after = scrape(live)
        (stats,) = whole["acespec"]["stats"]
    assert value(after, "acespec_edge_tokens_total", mode="auto") == 18
    assert value(after, "acespec_edge_tokens_total", mode="cloud") == 5
    assert value(after, "acespec_edge_requests_total", mode="auto", outcome="ok") == 1
    assert value(after, "acespec_edge_rounds_total") == stats["rounds"] > 0
    accepted = stats["accepted_mean"] * stats["rounds"]
    assert value(after, "acespec_edge_accepted_nodes_total") == pytest.approx(accepted)
    assert value(after, "acespec_edge_forwards_total") == stats["forwards"]
    assert value(after, "acespec_edge_sent_bytes_total") > stats["bytes_up"]
    assert value(after, "acespec_edge_connections_total") == 1
    assert value(after, "acespec_edge_running") == 0
    for choice, count in stats["chosen"].items():
        assert value(after, "acespec_edge_choices_total", choice=choice) == count
    assert value(after, "acespec_gateway_first_token_seconds_count") == 2
    chat = {"path": "/v1/chat/completions"}
    assert value(after, "acespec_gateway_requests_total", **chat, status="200") == 2
    assert value(after, "acespec_gateway_requests_total", **chat, status="400") == 1
    assert value(after, "acespec_gateway_request_seconds_count", **chat) == 3
    assert value(after, "acespec_edge_chain_length_tokens") >= 0
    assert value(after, "acespec_edge_goodput_bytes_per_second", direction="up") > 0


def test_failures_are_counted_by_whose_they_are(bundle: Bundle) -> None:
    with serving(runtime(bundle, TARGET, TARGET, cloud=FakeCloud(TARGET, vanish_after=3))) as live:
        assert live.chat(max_tokens=18).status_code == 503
        assert value(scrape(live), "acespec_edge_requests_total", mode="auto", outcome="link") == 1


def test_paths_of_clients_make_no_series(bundle: Bundle) -> None:
    with serving(runtime(bundle, TARGET, TARGET)) as live:
        for number in range(5):
            live.http.get(f"/models/no-{number}")
        paths = {
            dict(labels)["path"] for name, labels in scrape(live) if name == "acespec_gateway_requests_total"
        }
    assert paths == {"other"}


def test_metrics_need_the_key(bundle: Bundle) -> None:
    with serving(runtime(bundle, TARGET, TARGET), Keyring.of("the-key")) as live:
        url = f"http://127.0.0.1:{live.port}/metrics"
        assert live.http.get(url).status_code == 401
        assert live.http.get(url, headers={"Authorization": "Bearer the-key"}).status_code == 200


def test_the_dashboard_asks_only_for_what_is_exported(bundle: Bundle) -> None:
    with serving(runtime(bundle, TARGET, TARGET)) as live:
        live.chat(max_tokens=18, temperature=0)
        names = {name for name, _ in scrape(live)}
    with served() as (_, address, _):
        names |= {name for name, _ in parsed(get(address, "/metrics")[1])}
    shipped = json.loads((ROOT / "deploy/grafana/acespec.json").read_text(encoding="utf-8"))
    assert shipped == dashboard(), "python -m tools.dashboard > deploy/grafana/acespec.json"
    asked = set()
    for panel in shipped["panels"]:
        for target in panel.get("targets", []):
            asked |= set(re.findall(r"acespec_\w+", target["expr"]))
    assert len(asked) > 20
    assert asked <= names
    assert len({panel["id"] for panel in shipped["panels"]}) == len(shipped["panels"])


def test_names_follow_the_conventions(bundle: Bundle) -> None:
    with serving(runtime(bundle, TARGET, TARGET)) as live:
        live.chat(max_tokens=18, temperature=0)
        text = live.http.get(f"http://127.0.0.1:{live.port}/metrics").text
    with served() as (_, address, _):
        text += get(address, "/metrics")[1]
    for family in text_string_to_metric_families(text):
        assert re.fullmatch(r"acespec_(edge|gateway|cloud)_[a-z_]+", family.name), family.name
        assert family.documentation
        assert not re.search(r"_(ms|us|bits|milliseconds)(_|$)", family.name)
        if family.type == "counter":
            assert all(sample.name.endswith(("_total", "_created")) for sample in family.samples)


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What is logged from information on, as JSON."""
    root = logging.getLogger()
    handlers, levels = root.handlers[:], [logging.getLogger(name).level for name in OURS]
    lines = io.StringIO()
    configure_logs(LogFormat.json, LogLevel.info, lines)
    yield lines
    root.handlers[:] = handlers
    for name, level in zip(OURS, levels, strict=True):
        logging.getLogger(name).setLevel(level)


def entries(lines: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def test_every_line_of_a_request_bears_its_id(bundle: Bundle, logged: io.StringIO) -> None:
    with serving(runtime(bundle, TARGET, TARGET), Keyring.of("the-key")) as live:
        live.http.headers["Authorization"] = "Bearer the-key"
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
        answer = live.http.post("/chat/completions", json=body, headers={"X-Request-Id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
        other = live.http.post("/chat/completions", json=body, headers={"X-Request-Id": "a b\tc"})
        assert re.fullmatch(r"[0-9a-f]{16}", other.headers["x-request-id"])
    lines = [line for line in entries(logged) if line["request"] == "mine-1"]
    assert [line["message"] for line in lines] == ["generation", "request"]
    assert lines[0]["tokens"] == 5 and lines[0]["finish"] == "length"
    assert (lines[1]["status"], lines[1]["path"]) == (200, "/v1/chat/completions")
    assert {line["request"] for line in entries(logged)} == {"mine-1", other.headers["x-request-id"]}
    for secret in ("hello", "the-key", '"hi"'):
        assert secret not in logged.getvalue()


def test_a_cloud_logs_requests_and_faults_by_session(logged: io.StringIO) -> None:
    with served() as (service, address, _), Edge(address, service).greet() as edge:
        edge.say(_core.Open(request=1, prompt=PROMPT, max_tokens=1))
        edge.hear()
        edge.say(_core.Open(request=2, prompt=[], max_tokens=1))
        assert isinstance(edge.hear(), _core.Fault)
    lines = entries(logged)
    assert [line["message"] for line in lines] == ["request", "request ended", "fault", "session ended"]
    assert len({line["session"] for line in lines}) == 1
    assert lines[0]["prompt_tokens"] == len(PROMPT) and lines[2]["code"] == "request"


def test_lines_for_people_and_for_programs() -> None:
    root = logging.getLogger()
    handlers = root.handlers[:]
    log = logging.getLogger("acespec.test")
    token = request_id.set("r-1")
    try:
        lines = io.StringIO()
        configure_logs(LogFormat.text, LogLevel.warning, lines)
        log.info("not this")
        log.warning("line one\nline\x1b two", extra={"tokens": 3})
        assert re.fullmatch(
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z warning acespec\.test: line one\\nline\\x1b two "
            r"request=r-1 tokens=3\n",
            lines.getvalue(),
        )
        lines = io.StringIO()
        configure_logs(LogFormat.json, LogLevel.debug, lines)
        try:
            raise ValueError("why")
        except ValueError:
            log.exception("it failed")
        (line,) = entries(lines)
        assert line["level"] == "error" and "ValueError: why" in line["traceback"]
        assert line["request"] == "r-1" and line["time"].endswith("Z")
    finally:
        request_id.reset(token)
        root.handlers[:] = handlers
        for name in OURS:
            logging.getLogger(name).setLevel(logging.NOTSET)


def test_an_id_that_could_forge_lines_is_replaced() -> None:
    assert usable_id("a.b-C_9") == "a.b-C_9"
    for wrong in ("", "a\nb", "a b", "x" * 65, "é"):
        assert re.fullmatch(r"[0-9a-f]{16}", usable_id(wrong))
