# ruff: noqa: E501 (a query is one line)
"""Writes the Grafana dashboard: `python -m tools.dashboard > deploy/grafana/acespec.json`."""

from __future__ import annotations

import json
from typing import Any, Final

Panel = tuple[str, str, dict[str, str]]
"""Title, unit, and queries by legend."""

_EDGE: Final[list[Panel]] = [
    ("Tokens", "tokens/s", {"{{mode}}": "sum by (mode) (rate(acespec_edge_tokens_total[$__rate_interval]))",
                            "without a cloud": "rate(acespec_edge_offline_tokens_total[$__rate_interval])",
                            "target alone": "acespec_edge_target_tokens_per_second"}),
    ("Time to the first token", "s", {
        "median": "histogram_quantile(0.5, sum by (le) (rate(acespec_gateway_first_token_seconds_bucket[$__rate_interval])))",
        "95 %": "histogram_quantile(0.95, sum by (le) (rate(acespec_gateway_first_token_seconds_bucket[$__rate_interval])))"}),
    ("Hit rate and acceptance", "percentunit", {
        "verdicts foreseen": "rate(acespec_edge_foreseen_verdicts_total[$__rate_interval]) / rate(acespec_edge_verdicts_total[$__rate_interval])",
        "drafted tokens accepted": "rate(acespec_edge_accepted_nodes_total[$__rate_interval]) / rate(acespec_edge_drafted_nodes_total[$__rate_interval])"}),
    ("Tokens a round", "short", {
        "accepted": "rate(acespec_edge_accepted_nodes_total[$__rate_interval]) / rate(acespec_edge_rounds_total[$__rate_interval])",
        "drafted": "rate(acespec_edge_drafted_nodes_total[$__rate_interval]) / rate(acespec_edge_drafts_total[$__rate_interval])"}),
    ("Round trip and what it hides", "s", {
        "round trip": "acespec_edge_round_trip_seconds",
        "deviation": "acespec_edge_round_trip_deviation_seconds",
        "verification": "acespec_edge_verify_seconds",
        "verification, each token more": "acespec_edge_verify_node_seconds",
        "drafter's forward": "acespec_edge_forward_seconds"}),
    ("Goodput", "Bps", {
        "{{direction}}, possible": "acespec_edge_goodput_bytes_per_second",
        "up, used": "rate(acespec_edge_sent_bytes_total[$__rate_interval])",
        "down, used": "rate(acespec_edge_received_bytes_total[$__rate_interval])"}),
    ("K and B", "short", {"K, tokens of a chain": "acespec_edge_chain_length_tokens",
                          "B, nodes until the verdict": "acespec_edge_tree_budget_nodes"}),
    ("What the policy chose", "ops", {"{{choice}}": "sum by (choice) (rate(acespec_edge_choices_total[$__rate_interval]))"}),
    ("Requests", "reqps", {
        "{{path}} {{status}}": "sum by (path, status) (rate(acespec_gateway_requests_total[$__rate_interval]))",
        "running and waiting": "acespec_gateway_inside_requests"}),
    ("Generations that failed", "ops", {
        "{{outcome}}": 'sum by (outcome) (rate(acespec_edge_requests_total{outcome!="ok"}[$__rate_interval]))',
        "connections opened": "rate(acespec_edge_connections_total[$__rate_interval])",
        "connections lost by a request": "rate(acespec_edge_outages_total[$__rate_interval])"}),
]  # fmt: skip

_CLOUD: Final[list[Panel]] = [
    ("Committed tokens", "tokens/s", {"{{instance}}": "rate(acespec_cloud_committed_tokens_total[$__rate_interval])"}),
    ("Sessions and work", "short", {"sessions": "acespec_cloud_open_sessions",
                                    "jobs that wait": "acespec_cloud_waiting_jobs"}),
    ("Queue", "s", {
        "median": "histogram_quantile(0.5, sum by (le) (rate(acespec_cloud_queue_seconds_bucket[$__rate_interval])))",
        "95 %": "histogram_quantile(0.95, sum by (le) (rate(acespec_cloud_queue_seconds_bucket[$__rate_interval])))"}),
    ("Verification", "s", {
        "median": "histogram_quantile(0.5, sum by (le) (rate(acespec_cloud_verify_seconds_bucket[$__rate_interval])))",
        "95 %": "histogram_quantile(0.95, sum by (le) (rate(acespec_cloud_verify_seconds_bucket[$__rate_interval])))"}),
    ("Nodes", "ops", {
        "verified": "rate(acespec_cloud_verified_nodes_total[$__rate_interval])",
        "accepted": "rate(acespec_cloud_accepted_nodes_total[$__rate_interval])",
        "drafted by the cloud, accepted": "rate(acespec_cloud_accepted_own_nodes_total[$__rate_interval])"}),
    ("Refusals", "ops", {
        "sessions": "rate(acespec_cloud_refused_sessions_total[$__rate_interval])",
        "faults": "rate(acespec_cloud_faults_total[$__rate_interval])",
        "drafts that no longer fitted": "rate(acespec_cloud_dropped_drafts_total[$__rate_interval])"}),
    ("KV reserved", "tokens", {"tokens": "acespec_cloud_reserved_kv_tokens"}),
    ("Traffic", "Bps", {
        "from edges": "rate(acespec_cloud_received_bytes_total[$__rate_interval])",
        "to edges": "rate(acespec_cloud_sent_bytes_total[$__rate_interval])"}),
]  # fmt: skip

_HEIGHT: Final = 7
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it: a row for each side, two panels beside each other."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, side in (("Edge", _EDGE), ("Cloud", _CLOUD)):
        row = {"x": 0, "y": top, "w": 24, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": row, "panels": []})
        top += 1
        for number, panel in enumerate(side):
            place = {"x": 12 * (number % 2), "y": top + _HEIGHT * (number // 2), "w": 12, "h": _HEIGHT}
            panels.append(_panel(len(panels) + 1, panel, place))
        top += _HEIGHT * -(-len(side) // 2)
    source = {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return {
        "uid": "acespec",
        "title": "AceSpec Edge",
        "tags": ["acespec"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source]},
        "panels": panels,
    }


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    title, unit, queries = panel
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "gridPos": place,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
            for index, (legend, expr) in enumerate(queries.items())
        ],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))
