"""`acespec doctor`: will it run here, and how well?"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from acespec_edge.commands.configured import config_file
from acespec_edge.commands.options import Authority, CacheMb, Context, TokenFile
from acespec_edge.commands.program import STATUS_FAILED
from acespec_edge.commands.serve import serve
from acespec_edge.errors import UsageError

if TYPE_CHECKING:
    from acespec_edge.doctor.report import Report
    from acespec_edge.transport import WebSocketLink

_MOST_THREADS: Final = 4
"""Beyond, a drafter of a few hundred million weights gains nothing."""


def doctor(
    bundle: Annotated[
        Path | None, typer.Option("--bundle", metavar="DIR", help="The draft bundle to check and time.")
    ] = None,
    cloud: Annotated[
        list[str] | None, typer.Option("--cloud", metavar="URL", help="A ws(s):// address; may be repeated.")
    ] = None,
    context: Context = 2048,
    cache_mb: CacheMb = 32,
    threads: Annotated[
        str, typer.Option("--threads", metavar="N|auto", help="Threads of the drafter; auto: the big cores.")
    ] = "1",
    token_file: TokenFile = None,
    ca: Authority = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    config: Annotated[Path | None, config_file("edge", lambda: serve, lambda: doctor)] = None,
) -> None:
    """Check this device, and with --bundle and --cloud the drafter, the network and the target. The last line
    is the verdict; status 1 when it cannot run."""
    report = examine(bundle, cloud or [], context, cache_mb, threads, token_file, ca)
    if as_json:
        print(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        for line in lines(report):
            print(line)
    if report.verdict == "cannot":
        raise typer.Exit(STATUS_FAILED)


def examine(
    bundle: Path | None,
    clouds: Sequence[str],
    context: int,
    cache_mb: int,
    threads: str,
    token_file: Path | None,
    ca: Path | None,
    root: Path = Path("/"),
) -> Report:
    """Runs every probe that there is something to probe for; of the clouds the first that answers decides.
    ``root``: where /proc and /sys are. Raises UsageError for ``threads`` that are no number, and a token file
    that does not do."""
    from acespec_edge.doctor.accelerator import installed_runtime, probe_accelerator
    from acespec_edge.doctor.clock import probe_clock
    from acespec_edge.doctor.cloud import probe_cloud
    from acespec_edge.doctor.cpu import cores, fast_cores, probe_cpu
    from acespec_edge.doctor.draft_bundle import probe_bundle
    from acespec_edge.doctor.finding import Finding
    from acespec_edge.doctor.memory import needed_bytes, probe_memory
    from acespec_edge.doctor.report import conclude
    from acespec_edge.doctor.system import System
    from acespec_edge.drafting import load_drafter
    from acespec_edge.transport import connect, read_token

    system = System(root)
    usable = os.sched_getaffinity(0)
    if threads == "auto":
        count = min(_MOST_THREADS, len(usable.intersection(fast_cores(cores(system)))) or 1)
    elif threads.isdecimal() and int(threads) > 0:
        count = int(threads)
    else:
        raise UsageError(f"--threads is {threads!r}: it must be 1 or more, or auto")
    findings = [probe_cpu(system, usable, count), probe_clock(system, time.time())]
    findings.append(probe_accelerator(system, *installed_runtime()))
    opened = pace = network = target = None
    if bundle is not None:
        finding, opened, pace = probe_bundle(bundle, count, load_drafter)
        findings.append(finding)
    needed = None if opened is None else needed_bytes(opened, context, cache_mb)
    findings.insert(1, probe_memory(system, needed))
    token = read_token(token_file) if clouds else None
    for url in clouds:
        if opened is None:
            advice = "give --bundle too: the cloud is asked for the drafter's tokenizer"
            findings.append(Finding("network", "slow", "not checked", {"url": url}, advice))
            continue

        def open_link(url: str = url) -> WebSocketLink:
            return connect(url, token=token, ca=ca)

        found, reached, judged = probe_cloud(url, opened, open_link)
        findings += found
        if target is None:
            network, target = reached, judged
    return conclude(findings, pace, network, target)


def lines(report: Report) -> list[str]:
    """The report for people: a line a fact, advice below it, the verdict last."""
    shown = [f"{finding.name:<11}{finding.words}  {finding.status}" for finding in report.findings]
    shown += [f"{'advice':<11}{advice}" for advice in report.advice]
    return [*shown, f"{'verdict':<11}{report.sentence}"]
