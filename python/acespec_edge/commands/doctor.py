"""`acespec doctor`: will it run here, and how well?"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from acespec_edge import cores
from acespec_edge.commands.configured import config_file
from acespec_edge.commands.options import (
    Authority,
    CacheMb,
    ClientCert,
    ClientKey,
    CloudAddresses,
    Context,
    Threads,
    TokenFile,
)
from acespec_edge.commands.program import STATUS_FAILED
from acespec_edge.commands.serve import serve

if TYPE_CHECKING:
    from acespec_edge.doctor.report import Report
    from acespec_edge.endpoints import Endpoint
    from acespec_edge.transport import WebSocketLink

_WIDTH: Final = 72
"""Longer words do not move the column behind them."""


def doctor(
    bundle: Annotated[
        Path | None, typer.Option("--bundle", metavar="DIR", help="The draft bundle to check and time.")
    ] = None,
    cloud: CloudAddresses = None,
    context: Context = 2048,
    cache_mb: CacheMb = 32,
    threads: Threads = 1,
    token_file: TokenFile = None,
    ca: Authority = None,
    client_cert: ClientCert = None,
    client_key: ClientKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    config: Annotated[Path | None, config_file("edge", lambda: serve, lambda: doctor)] = None,
) -> None:
    """Check this device, and with --bundle and --cloud the drafter, the network and the target. The last line
    is the verdict; status 1 when it cannot run."""
    from acespec_edge.endpoints import Endpoint

    common = Endpoint("", token_file=token_file, ca=ca, client_cert=client_cert, client_key=client_key)
    # A verifier in this process has no network before it.
    clouds = [Endpoint.parse(address, common) for address in cloud or [] if address != "local"]
    report = examine(bundle, clouds, context, cache_mb, threads)
    if as_json:
        print(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        for line in lines(report):
            print(line)
    if report.verdict == "cannot":
        raise typer.Exit(STATUS_FAILED)


def examine(
    bundle: Path | None,
    clouds: Sequence[Endpoint],
    context: int,
    cache_mb: int,
    threads: cores.Threads,
    root: Path = Path("/"),
) -> Report:
    """Runs every probe that there is something to probe for; of the clouds the first that answers decides.
    ``root``: where /proc and /sys are. Raises UsageError for ``threads`` below 1, and a token file that
    does not do."""
    from acespec_edge.address import read_token
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
    from acespec_edge.transport import connect

    system = System(root)
    usable = os.sched_getaffinity(0)
    placed = cores.placement(threads, cores.cores(root / "sys"), usable)
    findings = [probe_cpu(system, usable, placed.threads), probe_clock(system, time.time())]
    findings.append(probe_accelerator(system, *installed_runtime()))
    opened = pace = network = target = None
    if bundle is not None:
        finding, opened, pace = probe_bundle(bundle, placed, load_drafter)
        findings.append(finding)
    needed = None if opened is None else needed_bytes(opened, context, cache_mb)
    findings.insert(1, probe_memory(system, needed))
    for cloud in clouds:
        if opened is None:
            advice = "give --bundle too: the cloud is asked for the drafter's tokenizer"
            findings.append(Finding("network", "slow", "not checked", {"url": cloud.url}, advice))
            continue
        token = read_token(cloud.token_file)

        def open_link(cloud: Endpoint = cloud, token: str | None = token) -> WebSocketLink:
            return connect(
                cloud.url,
                token=token,
                ca=cloud.ca,
                client_cert=cloud.client_cert,
                client_key=cloud.client_key,
            )

        found, reached, judged = probe_cloud(cloud.url, opened, open_link)
        findings += found
        if target is None:
            network, target = reached, judged
    return conclude(findings, pace, network, target)


def lines(report: Report) -> list[str]:
    """The report for people: a line a fact, advice below it, the verdict last."""
    width = max(
        (len(finding.words) for finding in report.findings if len(finding.words) <= _WIDTH), default=0
    )
    shown = [f"{finding.name:<11}{finding.words:<{width}}  {finding.status}" for finding in report.findings]
    shown += [f"{'advice':<11}{advice}" for advice in report.advice]
    return [*shown, f"{'verdict':<11}{report.sentence}"]
