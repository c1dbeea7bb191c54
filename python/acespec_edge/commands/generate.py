"""`acespec generate`: a prompt in, text out as it is confirmed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from acespec_edge.commands.link import say
from acespec_edge.commands.options import (
    Authority,
    BundleFolder,
    CacheMb,
    ClientCert,
    ClientKey,
    CloudAddresses,
    DrafterKind,
    ModeName,
    OfflineAfter,
    PolicyName,
    PowerName,
    ReconnectFor,
    TargetSource,
    Threads,
    TokenFile,
)
from acespec_edge.commands.stats import show_stats
from acespec_edge.errors import LinkError, UsageError

if TYPE_CHECKING:
    from acespec_edge.drafting import DrafterName
    from acespec_edge.edge import EdgeRuntime
    from acespec_edge.policy import Power
    from acespec_edge.prompt import Prompt
    from acespec_edge.request import Mode
    from acespec_edge.result import Result


def generate(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The prompt; - reads it from standard input.")
    ],
    bundle: BundleFolder,
    cloud: CloudAddresses = None,
    mode: ModeName = "auto",
    target: TargetSource = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens generated at most.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the smallest head of this mass.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Drop tokens under this share of the likeliest.")] = 0.0,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same text; drawn when not given.")
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="Divides the logits of tokens in prompt or output.")
    ] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="Taken off tokens in the output.")] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="Taken off tokens as often as they are in the output.")
    ] = 0.0,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=BIAS", help="Added to the logit of a token; may be repeated."),
    ] = None,
    ban: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="A token that never comes; may be repeated.")
    ] = None,
    allow: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="No token but these comes; may be repeated.")
    ] = None,
    min_tokens: Annotated[int, typer.Option(help="Tokens before which the text does not end.")] = 0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the end of the text.")
    ] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --json: log-probabilities, and those of the N likeliest."),
    ] = None,
    json_schema: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE", help="The text is JSON of this schema.")
    ] = None,
    regex: Annotated[str | None, typer.Option(help="The text matches this as a whole.")] = None,
    sampling: Annotated[
        str, typer.Option(help="coupled shares random numbers with the target, residual accepts by p/q.")
    ] = "coupled",
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Ends the text before it; may be repeated.")
    ] = None,
    policy: PolicyName = "auto",
    drafter: DrafterKind = "model",
    draft_length: Annotated[
        int | None, typer.Option(help="Send chains of that length, instead of what auto finds best.")
    ] = None,
    width: Annotated[int, typer.Option(help="Tree nodes in one forward of the drafter, at most.")] = 16,
    cache_mb: CacheMb = 32,
    threads: Threads = 1,
    power: PowerName = "full",
    reconnect_for: ReconnectFor = 60.0,
    offline_after: OfflineAfter = None,
    token_file: TokenFile = None,
    ca: Authority = None,
    client_cert: ClientCert = None,
    client_key: ClientKey = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: continue the text as it is.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Show figures on standard error.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a stream.")] = False,
) -> None:
    """Generate text; tokens that the target confirmed in one verdict appear together."""
    from acespec_edge.edge import EdgeRuntime

    if logprobs is not None and not as_json:
        raise UsageError("--logprobs needs --json: a stream of text has no place for them")
    question = _prompt(sys.stdin.read() if prompt == "-" else prompt, system, raw)
    with EdgeRuntime(
        bundle,
        cloud,
        target=target,
        token_file=token_file,
        ca=ca,
        client_cert=client_cert,
        client_key=client_key,
        mode=cast("Mode", mode),
        threads=threads,
        power=cast("Power", power),
        policy=policy,
        drafter=cast("DrafterName", drafter),
        draft_length=draft_length,
        width=width,
        cache_mb=cache_mb,
        reconnect_for=reconnect_for,
        offline_after=offline_after,
        on_link=say,
    ) as edge:
        options: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "seed": seed,
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "logit_bias": _biases(logit_bias or []),
            "banned_tokens": ban,
            "allowed_tokens": allow,
            "min_tokens": min_tokens,
            "ignore_eos": ignore_eos,
            "logprobs": logprobs,
            "json_schema": _schema(json_schema),
            "regex": regex,
            "sampling": sampling,
            "stop": stop or [],
            "raw": raw,
        }
        result = _as_json(edge, question, options) if as_json else _as_text(edge, question, options)
    if stats:
        show_stats(result.stats)


def _prompt(text: str, system: str | None, raw: bool) -> Prompt:
    if system is None:
        return text
    if raw:
        raise UsageError("--system and --raw exclude each other: raw text has no system message")
    if not text:
        raise UsageError("prompt is empty: give a text")
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def _biases(pairs: list[str]) -> dict[int, float]:
    biases = {}
    for pair in pairs:
        token, _, bias = pair.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError:
            raise UsageError(f"--logit-bias is {pair!r}: it must be ID=BIAS, like 15=-2.5") from None
    return biases


def _schema(given: str | None) -> str | None:
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as problem:
        raise UsageError(f"--json-schema {given}: cannot be read ({problem})") from problem


def _as_json(edge: EdgeRuntime, prompt: Prompt, options: dict[str, Any]) -> Result:
    try:
        result = edge.generate(prompt, **options)
    except LinkError as error:
        if error.partial is not None:
            print(json.dumps(error.partial.to_dict(), ensure_ascii=False))
        raise
    print(json.dumps(result.to_dict(), ensure_ascii=False))
    return result


def _as_text(edge: EdgeRuntime, prompt: Prompt, options: dict[str, Any]) -> Result:
    stream = edge.stream(prompt, **options)
    try:
        for piece in stream:
            print(piece.text, end="", flush=True)
    finally:
        # Whatever comes next, a message or the shell's prompt, starts on a line of its own.
        print(flush=True)
    return stream.result
