"""`acespec-cloud`: serves a target model to edges."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from acespec_edge.errors import AcespecError, UsageError
from acespec_edge.transport import read_token
from cloud_stub.scheduler import Pacing
from cloud_stub.server import CloudServer, Listener
from cloud_stub.service import Service, ServiceOptions

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def _root() -> None:
    """The cloud side of AceSpec: a large model that judges what small ones draft."""


@app.command()
def serve(
    model: Annotated[
        str, typer.Option(metavar="SOURCE", help="A registry name, folder, .gguf file or Hugging Face id.")
    ],
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda where there is one.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 (cpu), bfloat16 (cuda) or float16.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8443,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the bearer token edges must show.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the certificate chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its key.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the model.")] = None,
    emulate_verify_ms: Annotated[
        str,
        typer.Option(metavar="BASE,PER_NODE", help="Shortest forward in ms: stands in for a larger model."),
    ] = "0,0",
    max_context: Annotated[int | None, typer.Option(help="Prompt and output tokens of one request.")] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Sessions at a time.")] = 64,
    debug: Annotated[bool, typer.Option(help="Show tracebacks.")] = False,
) -> None:
    """Serve a model until interrupted."""
    # What is wrong with the options is said before anything heavy is imported or loaded.
    pacing = parse_pacing(emulate_verify_ms)
    token = None if token_file is None else read_token(token_file)
    listener = Listener(host, port, token, tls_cert, tls_key)

    from cloud_stub.verifiers.loading import load_verifier

    _say("model", f"{model}, loading")
    verifier = load_verifier(model, device=device, dtype=dtype, threads=threads, max_context=max_context)
    service = Service(verifier, ServiceOptions(pacing=pacing, max_sessions=max_sessions))
    target = service.target
    _say("target", f"{target.name} on {verifier.device}, {verifier.dtype}")
    _say("tokenizer", f"{target.vocabulary:,} tokens, fingerprint {target.fingerprint.hex()[:8]}")
    _say("limits", f"{target.max_context:,} tokens of context, {max_sessions} sessions")
    if pacing != Pacing():
        _say("pacing", f"a forward takes at least {pacing.base_ms:g} ms + {pacing.per_node_ms:g} ms a node")
    _say("access", "this machine only, no token" if token is None else "with the bearer token")
    CloudServer(service, listener, on_ready=lambda address: _say("ready", f"{address}, Ctrl-C ends it")).run()
    _say("stopped", f"{service.counters.read()['committed_tokens']:,.0f} tokens served")


def parse_pacing(text: str) -> Pacing:
    """ "150,1" (or "150") as milliseconds per forward and per node. Raises UsageError."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 2 or not all(0 <= number < 60_000 for number in numbers):
        raise UsageError(
            f"emulate_verify_ms is {text!r}: BASE,PER_NODE in milliseconds would be right, as in 150,1"
        )
    return Pacing(*numbers)


def main() -> None:
    """Entry point: exit status 0, 1 (the run failed) or 2 (the command was wrong)."""
    debug = "--debug" in sys.argv
    try:
        app(standalone_mode=True)
    except AcespecError as error:
        if debug:
            raise
        print(f"acespec-cloud: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


def _say(what: str, fact: str) -> None:
    print(f"{what:<10}{fact}", flush=True)
