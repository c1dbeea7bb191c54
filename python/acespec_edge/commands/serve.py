"""`acespec serve`: an OpenAI-compatible server on this device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from acespec_edge.commands.options import (
    Authority,
    BundleFolder,
    CacheMb,
    CloudAddress,
    Context,
    DrafterKind,
    PolicyName,
    TargetSource,
    Threads,
    TokenFile,
)
from acespec_edge.errors import UsageError

if TYPE_CHECKING:
    from acespec_edge.drafting import DrafterName
    from acespec_edge.request import Mode


def serve(
    bundle: BundleFolder,
    cloud: CloudAddress = None,
    mode: Annotated[
        str, typer.Option(help="Of requests that say none: auto speculates, cloud and edge are one alone.")
    ] = "auto",
    target: TargetSource = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8080,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="API keys of clients, one a line; without it, none are asked for."),
    ] = None,
    model_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What clients call the model [default: the bundle's]")
    ] = None,
    max_requests: Annotated[int, typer.Option(min=1, help="Requests running and waiting at a time.")] = 32,
    context: Context = 2048,
    cache_mb: CacheMb = 32,
    policy: PolicyName = "auto",
    drafter: DrafterKind = "model",
    threads: Threads = 1,
    token_file: TokenFile = None,
    ca: Authority = None,
) -> None:
    """Serve OpenAI's API on this device until interrupted: any client of it can use the pair of models."""
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
    keys = [] if api_key_file is None else read_keys(api_key_file)
    # Before anything is loaded, so that what is wrong is said at once.
    listener = Listener(host, port, guarded=bool(keys))
    with (
        listener.bind() as listening,
        EdgeRuntime(
            bundle,
            cloud,
            target=target,
            token_file=token_file,
            ca=ca,
            mode=cast("Mode", mode),
            policy=policy,
            drafter=cast("DrafterName", drafter),
            threads=threads,
            cache_mb=cache_mb,
            context=context,
        ) as edge,
    ):
        gateway = Gateway(edge, name=model_name, mode=cast("Mode", mode), context=context, room=max_requests)
        _say("model", f"{gateway.name}, mode {mode}")
        if (welcome := edge.welcome) is not None:
            _say("cloud", f"{welcome.target or 'a target'}, {welcome.max_context:,} tokens of context")
        _say("access", f"with one of {len(keys)} API keys" if keys else "this machine only, no API key")
        server = GatewayServer(
            gateway, listener, keys, on_ready=lambda address: _say("ready", f"{address}, Ctrl-C ends it")
        )
        server.run([listening])


def _say(what: str, fact: str) -> None:
    print(f"{what:<10}{fact}", flush=True)
