"""Options that several commands have: a bundle, a cloud, and how the two work together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from acespec_edge import cores
from acespec_edge.errors import UsageError

BundleFolder = Annotated[Path, typer.Option("--bundle", metavar="DIR", help="The draft bundle.")]
CloudAddresses = Annotated[
    list[str] | None,
    typer.Option(
        "--cloud",
        metavar="URL[#cost=N]",
        help="ws(s):// address of the cloud, or local; of several the best that answers serves.",
    ),
]
ModeName = Annotated[
    str, typer.Option("--mode", help="auto speculates, cloud is the target alone, edge the drafter alone.")
]
TargetSource = Annotated[
    str | None, typer.Option("--target", metavar="SOURCE", help="The target model, for --cloud local.")
]
PolicyName = Annotated[
    str,
    typer.Option("--policy", help="What speculation may do: auto takes whatever is faster by its estimates."),
]


def thread_count(text: str | int) -> cores.Threads:
    """Raises UsageError unless it is a number or auto."""
    if text == "auto":
        return "auto"
    if not str(text).isdecimal():
        raise UsageError(f"--threads is {text!r}: it must be 1 or more, or auto")
    return int(text)


# Any: typer takes no union. The parser makes it cores.Threads.
Threads = Annotated[
    Any,
    typer.Option(
        "--threads",
        parser=thread_count,
        metavar="N|auto",
        help="Threads of the drafter; auto: the big cores.",
    ),
]
DrafterKind = Annotated[
    str,
    typer.Option(
        "--drafter",
        help="model is the bundle's; lookup repeats what followed the same tokens, without a model; both.",
    ),
]
PowerName = Annotated[
    str, typer.Option("--power", help="full, or save: draft ahead only what is worth its energy.")
]
CacheMb = Annotated[int, typer.Option("--cache-mb", help="MiB of keys and values for branches.")]
Context = Annotated[int, typer.Option("--context", help="Tokens that the drafter holds.")]
ReconnectFor = Annotated[
    float,
    typer.Option(
        "--reconnect-for",
        metavar="SECONDS",
        help="How long a request tries to get a lost connection back; 0 ends it at once.",
    ),
]
OfflineAfter = Annotated[
    float | None,
    typer.Option(
        "--offline-after",
        metavar="SECONDS",
        help="Without a cloud for so long, the drafter goes on alone, which is told; by default it waits.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", metavar="FILE", help="Holds the cloud's bearer token; else ACESPEC_TOKEN does."
    ),
]
Authority = Annotated[
    Path | None,
    typer.Option("--ca", metavar="FILE", help="PEM file of a private certificate authority."),
]
ClientCert = Annotated[
    Path | None,
    typer.Option("--client-cert", metavar="FILE", help="PEM file of this device's certificate."),
]
ClientKey = Annotated[
    Path | None,
    typer.Option("--client-key", metavar="FILE", help="PEM file of its key."),
]
