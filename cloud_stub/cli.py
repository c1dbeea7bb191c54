"""The `acespec-cloud` command: serves a target model to edges."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from acespec_edge import draft_heads
from acespec_edge.address import read_token
from acespec_edge.commands.bar import download_bar
from acespec_edge.commands.configured import config_commands, config_file
from acespec_edge.commands.program import Program
from acespec_edge.commands.serving import DrainSeconds, LogForm, LogFrom
from acespec_edge.errors import UsageError
from acespec_edge.keyring import Keyring
from acespec_edge.logs import LogFormat, LogLevel, configure_logs
from cloud_stub.clients import LIMITS
from cloud_stub.scheduler import Pacing

_LONGEST_PACING_MS = 60_000.0


_program = Program("acespec-cloud", "The cloud side of AceSpec: a large model judges what small ones draft.")


@_program.app.command(short_help="Serve a target model.")
def serve(
    model: Annotated[
        str, typer.Option(metavar="SOURCE", help="A registry name, folder, .gguf file or Hugging Face id.")
    ],
    device: Annotated[str | None, typer.Option(help="cpu or cuda [default: cuda if there is one]")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16 [default: float32 on cpu, else bfloat16]")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8443,
    token_file: Annotated[
        Path | None,
        typer.Option(help="Bearer tokens of edges, one a line: TOKEN [name=NAME] [LIMIT=NUMBER]..."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the certificate chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its key.")] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(help="PEM file of an authority: edges must show a certificate of it (mutual TLS)."),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the model.")] = None,
    emulate_verify_ms: Annotated[
        str,
        typer.Option(metavar="BASE,PER_NODE", help="Shortest forward in ms: stands in for a larger model."),
    ] = "0,0",
    dlite: Annotated[
        str | None,
        typer.Option(metavar="NAME|DIR", help="A DLite head: what drafts while the cloud goes on by itself."),
    ] = None,
    dlite_nodes: Annotated[
        float,
        typer.Option(min=0.0, max=256.0, help="Nodes of the head's verified for each token, at most."),
    ] = 4.0,
    max_context: Annotated[
        int | None, typer.Option(help="Prompt and output tokens of one request [default: the model's]")
    ] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Sessions at a time.")] = 64,
    idle_timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds after which a silent session ends.")
    ] = 600.0,
    session_timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds after which any session ends; the edge connects again.")
    ] = 86_400.0,
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, help="Tokens of all requests at a time [default: max-context for one session in 8]"
        ),
    ] = None,
    keep_kv: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=86400.0,
            metavar="SECONDS",
            help="Keep what a request has read for the next that begins alike; 0 keeps nothing.",
        ),
    ] = 300.0,
    drain_seconds: DrainSeconds = 20.0,
    log_format: LogForm = LogFormat.text,
    log_level: LogFrom = LogLevel.warning,
    config: Annotated[Path | None, config_file("cloud", lambda: serve)] = None,
) -> None:
    """Serve a target model until interrupted. The token may also come from ACESPEC_TOKEN."""
    configure_logs(log_format, log_level)
    try:
        from cloud_stub.continuation import SelfDrafting
        from cloud_stub.server import CloudServer, Listener
        from cloud_stub.service import Service, ServiceOptions
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'acespec-edge[cloud]'") from error

    pacing = parse_pacing(emulate_verify_ms)
    # Before the model is loaded, so that what is wrong is said at once.
    keys = read_keys(token_file)
    listener = Listener(host, port, keys, tls_cert, tls_key, tls_client_ca)
    with listener.bind() as listening:
        from cloud_stub.verifiers.loading import load_verifier

        _say("model", f"{model}, loading")
        with download_bar(model, shown=sys.stderr.isatty()) as progress:
            verifier = load_verifier(
                model, device=device, dtype=dtype, threads=threads, max_context=max_context, progress=progress
            )
        drafting = None
        if dlite is not None:
            from cloud_stub.dlite.head_runtime import HeadRuntime

            drafting = SelfDrafting(HeadRuntime.load(draft_heads.resolve(dlite), verifier), dlite_nodes)
        options = ServiceOptions(
            pacing=pacing,
            max_sessions=max_sessions,
            kv_tokens=kv_tokens,
            keep_kv=keep_kv,
            idle_timeout=idle_timeout,
            session_timeout=session_timeout,
        )
        service = Service(verifier, options, drafting)
        target = service.target
        _say("target", f"{target.name} on {verifier.device}, {verifier.dtype}")
        _say("tokenizer", f"{target.vocabulary:,} tokens, fingerprint {target.fingerprint.hex()[:8]}")
        if drafting is not None:
            block = f"blocks of {drafting.proposer.longest}, {dlite_nodes:g} nodes a token at most"
            _say("dlite", f"{dlite}, {block}")
        room = f"{service.kv.capacity:,} of all requests together"
        _say("limits", f"{target.max_context:,} tokens of context, {room}, {max_sessions} sessions")
        _say("kept", f"{keep_kv:g} s of what a request has read" if keep_kv else "nothing of a request")
        if pacing != Pacing():
            _say(
                "pacing", f"a forward takes at least {pacing.base_ms:g} ms + {pacing.per_node_ms:g} ms a node"
            )
        _say("access", _access(keys, mutual=tls_client_ca is not None))
        server = CloudServer(
            service,
            listener,
            on_ready=lambda address: _say("ready", f"{address}, Ctrl-C ends it"),
            drain_seconds=drain_seconds,
        )
        server.run([listening])
        _say("stopped", f"{service.counters.read()['committed_tokens']:,.0f} tokens served")


_program.app.add_typer(
    config_commands("cloud", serve), name="config", short_help="Check and show a configuration."
)


def read_keys(token_file: Path | None) -> Keyring | None:
    """The tokens of a file, else the one of the environment, if any. Raises UsageError."""
    if token_file is not None:
        return Keyring.read(token_file, "token_file", LIMITS)
    token = read_token(None)
    return None if token is None else Keyring.of(token)


def _access(keys: Keyring | None, *, mutual: bool) -> str:
    count = 0 if keys is None else len(keys)
    who = (
        ("this machine only, no token", "with the bearer token")[count]
        if count < 2
        else (f"with one of {count} bearer tokens")
    )
    return f"{who} and a client certificate" if mutual else who


def parse_pacing(text: str) -> Pacing:
    """Reads "150,1" (or "150"): milliseconds per forward and per node. Raises UsageError."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 2 or not all(0 <= number < _LONGEST_PACING_MS for number in numbers):
        raise UsageError(f"emulate_verify_ms is {text!r}: BASE,PER_NODE in ms would be right, as in 150,1")
    return Pacing(*numbers)


def main() -> None:
    """Runs the command line; exit statuses as of Program.run."""
    _program.run()


def _say(what: str, fact: str) -> None:
    print(f"{what:<10}{fact}", flush=True)
