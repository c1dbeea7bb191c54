"""Does the simulator agree with the clock? The same answers in the same paradigms and networks, once as
`python -m tools.bench.paradigms --json` measured them and once in virtual time, from a recording of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from acespec_edge.errors import UsageError
from acespec_edge.policy import POLICIES
from acespec_edge.simulate.link import Network
from acespec_edge.simulate.profiles import THIS_MACHINE, CloudProfile, EdgeProfile, edge_profile
from acespec_edge.simulate.runner import CLOUD, Setting, simulate
from acespec_edge.simulate.trace import Record, Trace
from cloud_stub.simulate import VirtualCloud
from tools.bench import command
from tools.bench.paradigms import report
from tools.bench.paradigms.compare import WARM_UP_TOKENS
from tools.bench.paradigms.paradigms import PARADIGMS

_WITHIN: Final = 0.1


@dataclass(frozen=True)
class Agreement:
    """Tokens a second of one paradigm in one cell."""

    paradigm: str
    rtt_ms: float
    up_bps: float
    real: float
    simulated: float

    @property
    def ratio(self) -> float:
        """Simulated by real."""
        return self.simulated / self.real


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.simulated", description=__doc__)
    add = parser.add_argument
    add("--real", type=Path, required=True, metavar="FILE", help="figures of tools.bench.paradigms, greedy")
    add("--trace", type=Path, required=True, metavar="FILE", help="tools.record_trace of the same prompts")
    add("--edge", default=THIS_MACHINE, metavar="NAME|FILE", help=f"the drafter's times ({THIS_MACHINE})")
    add("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    return command.run(lambda: _compare(options))


def _compare(options: argparse.Namespace) -> int:
    document, trace = report.load(options.real), Trace.load(options.trace)
    edge = edge_profile(options.edge, trace)
    rows = comparable(document)
    with command.progress(len(rows)) as advance:
        found = list(agreements(document, trace, edge, advance))
    within = sum(abs(one.ratio - 1) <= _WITHIN for one in found)
    if options.json:
        cells = [{**asdict(one), "ratio": one.ratio} for one in found]
        print(json.dumps({"cells": cells, "within_10_percent": within}))
        return 0
    print(f"{'RTT ms':>7} {'paradigm':18} {'real':>8} {'simulated':>10} {'ratio':>6}")
    for one in found:
        print(f"{one.rtt_ms:7g} {one.paradigm:18} {one.real:8.2f} {one.simulated:10.2f} {one.ratio:6.2f}")
    print(f"{within} of {len(found)} within {_WITHIN:.0%}")
    return 0


def comparable(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows whose paradigm the simulator has: a policy of the runtime, greedy, with nothing beside it."""
    return [
        row
        for row in document["rows"]
        if row["tokens_per_second"] and row["temperature"] == 0 and _simulated(row["paradigm"])
    ]


def _simulated(name: str) -> bool:
    paradigm = PARADIGMS[name]
    return paradigm.how == "runtime" and paradigm.text == "target" and paradigm.drafter == "model"


def agreements(
    document: dict[str, Any], trace: Trace, edge: EdgeProfile, advance: Callable[[str], None]
) -> Iterator[Agreement]:
    """Simulates each comparable row. A verification takes what it was padded to, else what the trace says;
    a prompt what the target alone took to its first token. Raises UsageError when the trace lacks a prompt.
    """
    answers = replace(trace, records=_asked(document, trace))
    first = {_cell(row): row["ttft_ms"] for row in document["rows"] if row["paradigm"] == CLOUD}
    for row in comparable(document):
        cloud = _cloud(document, answers, first[_cell(row)] - row["rtt_ms"])
        policy = CLOUD if row["paradigm"] == CLOUD else POLICIES[PARADIGMS[row["paradigm"]].policy]
        network = Network(row["rtt_ms"] / 1e3, row["up_bps"], row["down_bps"])
        outcome = simulate(Setting(answers, edge, cloud, network, policy), VirtualCloud)
        counted = outcome.answers[1:]
        rate = sum(len(one.tokens) for one in counted) / sum(one.stats.seconds for one in counted)
        advance(f"{row['rtt_ms']:g} ms, {row['paradigm']}")
        yield Agreement(row["paradigm"], row["rtt_ms"], row["up_bps"], row["tokens_per_second"], rate)


def _cell(row: dict[str, Any]) -> tuple[float, float]:
    return row["rtt_ms"], row["up_bps"]


def _asked(document: dict[str, Any], trace: Trace) -> list[Record]:
    """The answers in their order, behind a short one of the first prompt, which is not counted."""
    by_id = {record.id: record for record in trace.records}
    missing = [name for name in document["prompts"] if name not in by_id]
    if missing:
        raise UsageError(f"the trace has no answer to {missing[0]}: record it with the same prompts")
    records = [_cut(by_id[name], document["tokens"]) for name in document["prompts"]]
    return [_cut(records[0], WARM_UP_TOKENS), *records]


def _cut(record: Record, tokens: int) -> Record:
    return replace(record, text=record.text[:tokens], top=record.top[:tokens], scores=record.scores[:tokens])


def _cloud(document: dict[str, Any], trace: Trace, first_ms: float) -> CloudProfile:
    """``first_ms``: from the request to the first token, but for the network."""
    base, per_node = document["verify_ms"]
    verify = {0: base, 1: base + per_node} if base or per_node else dict(trace.timing.cloud_ms)
    if not verify:
        raise UsageError("the trace has no times of its machine, and the figures are of an unpadded target")
    prompt = sum(len(record.prompt) for record in trace.records[1:]) / (len(trace.records) - 1)
    return CloudProfile("measured", verify, max(0.0, first_ms - verify[0]) / prompt)


if __name__ == "__main__":
    sys.exit(main())
