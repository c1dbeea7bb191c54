"""`acespec doctor`: will it run here, and how well?"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acespec_edge.commands.configured import config_file
from acespec_edge.commands.options import Authority, CacheMb, CloudAddress, Context, Threads, TokenFile
from acespec_edge.commands.program import STATUS_FAILED
from acespec_edge.commands.serve import serve

if TYPE_CHECKING:
    from acespec_edge.doctor.report import Report


def doctor(
    bundle: Annotated[
        Path | None, typer.Option("--bundle", metavar="DIR", help="The draft bundle to check and time.")
    ] = None,
    cloud: CloudAddress = None,
    context: Context = 2048,
    cache_mb: CacheMb = 32,
    threads: Threads = 1,
    token_file: TokenFile = None,
    ca: Authority = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    config: Annotated[Path | None, config_file("edge", lambda: serve)] = None,
) -> None:
    """Check this device, and with --bundle and --cloud the drafter, the network and the target. The last line
    is the verdict; status 1 when it cannot run."""
    report = examine(bundle, cloud, context, cache_mb, threads, token_file, ca)
    if as_json:
        print(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        for line in lines(report):
            print(line)
    if report.verdict == "cannot":
        raise typer.Exit(STATUS_FAILED)


def examine(
    bundle: Path | None,
    cloud: str | None,
    context: int,
    cache_mb: int,
    threads: int,
    token_file: Path | None,
    ca: Path | None,
    root: Path = Path("/"),
) -> Report:
    """Runs every probe that there is something to probe for. ``root``: where /proc and /sys are."""
    from acespec_edge.doctor.accelerator import installed_runtime, probe_accelerator
    from acespec_edge.doctor.clock import probe_clock
    from acespec_edge.doctor.cloud import probe_cloud
    from acespec_edge.doctor.cpu import probe_cpu
    from acespec_edge.doctor.draft_bundle import probe_bundle
    from acespec_edge.doctor.finding import Finding
    from acespec_edge.doctor.memory import needed_bytes, probe_memory
    from acespec_edge.doctor.report import conclude
    from acespec_edge.doctor.system import System
    from acespec_edge.drafting import load_drafter
    from acespec_edge.transport import connect, read_token

    system = System(root)
    findings = [probe_cpu(system, os.sched_getaffinity(0), threads), probe_clock(system, time.time())]
    findings.append(probe_accelerator(system, *installed_runtime()))
    opened = pace = network = target = None
    if bundle is not None:
        finding, opened, pace = probe_bundle(bundle, threads, load_drafter)
        findings.append(finding)
    needed = None if opened is None else needed_bytes(opened, context, cache_mb)
    findings.insert(1, probe_memory(system, needed))
    if cloud is not None and opened is None:
        advice = "give --bundle too: the cloud is asked for the drafter's tokenizer"
        findings.append(Finding("network", "slow", "not checked", {"url": cloud}, advice))
    elif cloud is not None and opened is not None:
        token = read_token(token_file)
        found, network, target = probe_cloud(cloud, opened, lambda: connect(cloud, token=token, ca=ca))
        findings += found
    return conclude(findings, pace, network, target)


def lines(report: Report) -> list[str]:
    """The report for people: a line a fact, advice below it, the verdict last."""
    shown = [f"{finding.name:<11}{finding.words}  {finding.status}" for finding in report.findings]
    shown += [f"{'advice':<11}{advice}" for advice in report.advice]
    return [*shown, f"{'verdict':<11}{report.sentence}"]
