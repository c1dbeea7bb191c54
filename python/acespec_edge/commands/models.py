"""`acespec models`: the registry of pinned weights, and fetching from it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from acespec_edge import draft_heads
from acespec_edge.commands.bar import download_bar
from acespec_edge.model_registry import MODELS
from acespec_edge.models import cached_file, pull

app = typer.Typer(help="Fetch pinned model weights.", no_args_is_help=True)

_JSON = typer.Option("--json", help="One JSON object on stdout, no progress bar.")


@app.command("list")
def list_models(as_json: Annotated[bool, _JSON] = False) -> None:
    """List the models that can be pulled by name."""
    rows: list[dict[str, object]] = [
        {
            "name": model.name,
            "title": model.title,
            "bytes": model.bytes,
            "licence": model.licence,
            "sha256": model.sha256,
            "path": None if (path := cached_file(model)) is None else str(path),
        }
        for model in MODELS.values()
    ]
    rows += [_head_row(head) for head in draft_heads.HEADS.values()]
    if as_json:
        print(json.dumps({"models": rows}, indent=2))
        return
    for model in MODELS.values():
        state = cached_file(model) or "not fetched"
        print(f"{model.name:<20} {model.title:<28} {model.bytes / 1e6:>6.0f} MB  {model.licence:<11} {state}")
    for head in draft_heads.HEADS.values():
        size = f"{head.bytes / 1e6:>6.0f} MB"
        print(f"{head.name:<20} {head.title:<28} {size}  {head.licence:<11} {head.folder}")


@app.command("pull")
def pull_model(
    name: Annotated[str, typer.Argument(help="A name that `acespec models list` shows.")],
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Fetch a model into the cache, check it, and print where it is. Can be interrupted, and goes on the next
    time. Draft heads come with the package: they are checked only."""
    if name in draft_heads.HEADS:
        head = draft_heads.HEADS[name]
        folder = draft_heads.checked(head)
        print(json.dumps(_head_row(head)) if as_json else folder)
        return
    with download_bar(name, shown=not as_json) as progress:
        path = pull(name, progress=progress)
    model = MODELS[name]
    if as_json:
        print(json.dumps({"name": name, "path": str(path), "bytes": model.bytes, "sha256": model.sha256}))
    else:
        print(path)


def _head_row(head: draft_heads.DraftHead) -> dict[str, object]:
    return {
        "name": head.name,
        "title": head.title,
        "bytes": head.bytes,
        "licence": head.licence,
        "sha256": head.sha256,
        "path": str(head.folder),
    }
