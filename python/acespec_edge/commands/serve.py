"""`acespec serve`: an OpenAI-compatible server on this device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from acespec_edge.commands.configured import config_file
from acespec_edge.commands.link import log
from acespec_edge.commands.options import (
    Authority,
    BundleFolder,
    CacheMb,
    ClientCert,
    ClientKey,
    CloudAddresses,
    Context,
    DrafterKind,
    OfflineAfter,
    PolicyName,
    PowerName,
    ReconnectFor,
    TargetSource,
    Threads,
    TokenFile,
)
from acespec_edge.commands.serving import DrainSeconds, LogForm, LogFrom
from acespec_edge.errors import UsageError
from acespec_edge.logs import LogFormat, LogLevel, configure_logs
from acespec_edge.printable import printable

if TYPE_CHECKING:
    from acespec_edge.drafting import DrafterName
    from acespec_edge.policy import Power
    from acespec_edge.request import Mode


def serve(
    bundle: BundleFolder,
    cloud: CloudAddresses = None,
    mode: Annotated[
        str, typer.Option(help="Of requests that say none: auto speculates, cloud and edge are one alone.")
    ] = "auto",
    target: TargetSource = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8080,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="API keys of clients, one a line: KEY [name=NAME] [LIMIT=N]...; without it none is asked.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM file of the gateway's certificate chain.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="PEM file of its key.")] = None,
    model_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What clients call the model [default: the bundle's]")
    ] = None,
    max_requests: Annotated[int, typer.Option(min=1, help="Requests running and waiting at a time.")] = 32,
    context: Context = 2048,
    cache_mb: CacheMb = 32,
    policy: PolicyName = "auto",
    drafter: DrafterKind = "model",
    threads: Threads = 1,
    power: PowerName = "full",
    reconnect_for: ReconnectFor = 60.0,
    offline_after: OfflineAfter = None,
    token_file: TokenFile = None,
    ca: Authority = None,
    client_cert: ClientCert = None,
    client_key: ClientKey = None,
    drain_seconds: DrainSeconds = 20.0,
    log_format: LogForm = LogFormat.text,
    log_level: LogFrom = LogLevel.warning,
    config: Annotated[Path | None, config_file("edge", lambda: serve)] = None,
) -> None:
    """Serve OpenAI's API on this device until interrupted: any client of it can use the pair of models."""
    configure_logs(log_format, log_level)
    try:
        from acespec_edge.gateway.access import read_keys
        from acespec_edge.gateway.listening import Listener
        from acespec_edge.gateway.server import GatewayServer
        from acespec_edge.gateway.service import Gateway
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'acespec-edge[gateway]'") from error
    from acespec_edge.edge import EdgeRuntime

    if model_name is not None and not model_name.strip():
        raise UsageError("model_name is empty: give a name, or leave it out for the bundle's")
    keys = None if api_key_file is None else read_keys(api_key_file)
    # Before anything is loaded, so that what is wrong is said at once.
    listener = Listener(host, port, keys is not None, tls_cert, tls_key)
    with (
        listener.bind() as listening,
        EdgeRuntime(
            bundle,
            cloud,
            target=target,
            token_file=token_file,
            ca=ca,
            client_cert=client_cert,
            client_key=client_key,
            mode=cast("Mode", mode),
            policy=policy,
            drafter=cast("DrafterName", drafter),
            threads=threads,
            power=cast("Power", power),
            cache_mb=cache_mb,
            context=context,
            reconnect_for=reconnect_for,
            offline_after=offline_after,
            on_link=log,
        ) as edge,
    ):
        gateway = Gateway(edge, name=model_name, mode=cast("Mode", mode), context=context, room=max_requests)
        _say("model", f"{gateway.name}, mode {mode}")
        if (welcome := edge.welcome) is not None:
            _say("cloud", f"{welcome.target or 'a target'}, {welcome.max_context:,} tokens of context")
        _say(
            "access",
            f"with one of {len(keys)} API keys" if keys is not None else "this machine only, no API key",
        )
        server = GatewayServer(
            gateway,
            listener,
            keys,
            on_ready=lambda address: _say("ready", f"{address}, Ctrl-C ends it"),
            drain_seconds=drain_seconds,
        )
        server.run([listening])


def _say(what: str, fact: str) -> None:
    print(f"{what:<10}{printable(fact)}", flush=True)
