"""Trains a DLite head: `recipe` does it all, with prompts of its own and yours beside them. With yours alone,
`generate` has the target answer them, `cache` keeps its hidden states along the answers, `train` makes the
head. `eval` says how much of a head's proposals the target accepts. Each but the last goes on where it was
interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from acespec_edge import draft_heads
from acespec_edge.errors import UsageError
from cloud_stub.dlite.checkpoint import load_head
from cloud_stub.dlite.identity import Identity
from cloud_stub.verifiers.loading import load_verifier
from cloud_stub.verifiers.torch_verifier import TorchVerifier
from tools.bench import command
from tools.train_dlite.collecting import collect
from tools.train_dlite.evaluate import WITHOUT, Walk, evaluate, leave_out
from tools.train_dlite.prompts import Speaker, all_prompts
from tools.train_dlite.settings import Settings, read_settings
from tools.train_dlite.states import fill, plan
from tools.train_dlite.texts import generate, read_texts


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_dlite", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    everything = _subcommand(commands, "recipe", "A head without a data set: the target makes it.")
    everything.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="where the head goes, the states in DIR/cache"
    )
    everything.add_argument(
        "--prompts",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="your own beside the invented ones; lines: id, kind, prompt",
    )
    generating = _subcommand(commands, "generate", "The target's answers to prompts.")
    generating.add_argument(
        "--prompts", type=Path, required=True, metavar="FILE", help="lines: id, kind, prompt"
    )
    generating.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the texts go")
    caching = _subcommand(commands, "cache", "The target's hidden states along texts.")
    caching.add_argument(
        "--texts", type=Path, required=True, metavar="FILE", help="as `generate` writes them"
    )
    caching.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the states go")
    training = _subcommand(commands, "train", "The head.")
    training.add_argument("--cache", type=Path, required=True, metavar="DIR", help="as `cache` writes it")
    training.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the head goes")
    evaluating = _subcommand(commands, "eval", "How much of a head's proposals the target accepts.")
    evaluating.add_argument(
        "--head", required=True, metavar="NAME|DIR", help="one that comes with the package, or of `train`"
    )
    evaluating.add_argument(
        "--prompts", type=Path, required=True, metavar="FILE", help="lines: id, kind, prompt"
    )
    evaluating.add_argument(
        "--tokens", type=int, default=128, metavar="N", help="of an answer, at most (128)"
    )
    evaluating.add_argument(
        "--limit", type=int, default=None, metavar="N", help="prompts of each kind, at most"
    )
    evaluating.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (0)")
    evaluating.add_argument(
        "--seed", type=int, default=1, metavar="N", help="of the first prompt's noise (1)"
    )
    evaluating.add_argument(
        "--without", action="append", default=[], choices=WITHOUT, help="leave a part out"
    )
    evaluating.add_argument(
        "--history", type=int, default=0, metavar="N", help="tokens of the past that a teacher is given (0)"
    )
    evaluating.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    return command.run(lambda: _COMMANDS[options.command](options, _settings(options)))


def _subcommand(commands: argparse._SubParsersAction, name: str, about: str) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    parser.add_argument(
        "--config", default="smollm2-135m", metavar="NAME", help="a built-in one or a file (smollm2-135m)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="PART.NAME=VALUE", help="another setting"
    )
    parser.add_argument("--device", default=None, help="cpu or cuda [default: cuda if there is one]")
    parser.add_argument("--threads", type=int, default=None, metavar="N", help="CPU threads")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    return read_settings(options.config, options.set)


def _load(options: argparse.Namespace, settings: Settings, dtype: str | None = None) -> TorchVerifier:
    return load_verifier(settings.target, device=options.device, threads=options.threads, dtype=dtype)


def _recipe(options: argparse.Namespace, settings: Settings) -> int:
    given = [prompt for path in options.prompts for prompt in all_prompts(path)]
    verifier = _load(options, settings, settings.collect.dtype)
    settings.model.check_target(
        verifier.model.config.get_text_config().num_hidden_layers, verifier.logits_width
    )
    cache, wanted = options.out / "cache", settings.collect.tokens
    with command.progress(100) as advance:
        kept = shown = 0

        def heard(count: int) -> None:
            nonlocal kept, shown
            kept += count
            while shown < min(100, 100 * kept // wanted):
                shown += 1
                advance("collecting")

        speaker = Speaker.open(settings.target)
        index = collect(verifier, speaker, settings.model.aux_layers, settings.collect, cache, heard, given)
    print(f"{cache}: {len(index.entries)} texts, {kept} tokens of answers")
    return _trained(settings, verifier, cache, options.out)


def _generate(options: argparse.Namespace, settings: Settings) -> int:
    prompts = all_prompts(options.prompts)
    speaker = Speaker.open(settings.target)
    verifier = _load(options, settings)
    with command.progress(len(prompts)) as advance:
        count = generate(verifier, speaker, prompts, settings.generate, options.out, advance)
    print(f"{options.out}: {count} texts")
    return 0


def _cache(options: argparse.Namespace, settings: Settings) -> int:
    verifier = _load(options, settings)
    target = Identity.of(verifier)
    settings.model.check_target(target.layers, target.width)
    texts = read_texts(options.texts)
    index, tokens = plan(texts, target, settings.model.aux_layers, settings.cache, verifier.max_context)
    with command.progress(len(tokens)) as advance:
        fill(verifier, index, tokens, options.out, advance)
    size = 2 * index.rows * index.shape[1] * index.shape[2] / 1e9
    kept = f"{len(tokens)} texts, {index.rows} positions, {size:.2f} GB"
    print(f"{options.out}: {kept}; {index.left_out} texts left out")
    return 0


def _train(options: argparse.Namespace, settings: Settings) -> int:
    # In single precision a CPU has no plain matrices for ``train.start``.
    verifier = _load(options, settings, settings.collect.dtype)
    return _trained(settings, verifier, options.cache, options.out)


def _trained(settings: Settings, verifier: TorchVerifier, cache: Path, out: Path) -> int:
    from tools.train_dlite.batches import Texts

    try:
        from tools.train_dlite.trainer import Trainer
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'acespec-edge[dev]'") from error
    trainer = Trainer(settings, verifier, Texts(cache, settings.model.block), out)
    with command.progress(trainer.steps()) as advance:
        trainer.run(advance)
    print(f"{out}: a head for {settings.target}, its losses in losses.png")
    return 0


def _evaluate(options: argparse.Namespace, settings: Settings) -> int:
    for name, least in (("tokens", 2), ("seed", 0), ("history", 0)):
        if getattr(options, name) < least:
            raise UsageError(f"{name} is {getattr(options, name)}: give {least} or more")
    speaker = Speaker.open(settings.target)
    verifier = _load(options, settings)
    head = load_head(draft_heads.resolve(options.head), verifier)
    leave_out(head, options.without)
    seen: dict[str, int] = {}
    prompts = []
    for prompt in all_prompts(options.prompts):
        seen[prompt.kind] = seen.get(prompt.kind, 0) + 1
        if options.limit is None or seen[prompt.kind] <= options.limit:
            prompts.append((prompt.kind, speaker.ids(prompt.text)))
    with command.progress(len(prompts)) as advance:
        found = evaluate(
            Walk(verifier, head, history=options.history),
            verifier,
            prompts,
            speaker.eos_ids,
            block=head.config.block,
            tokens=options.tokens,
            temperature=options.temperature,
            seed=options.seed,
            advance=advance,
        )
    settled = {
        "head": options.head,
        "target": verifier.name,
        "block": head.config.block,
        "temperature": options.temperature,
        "without": options.without,
        "history": options.history,
        "torch": torch.__version__,
    }
    if options.json:
        print(json.dumps(settled | found))
        return 0
    print(f"{'kind':<6}{'texts':>7}{'rounds':>8}{'length':>8}  accepted at each place")
    for kind, row in (*found["kinds"].items(), ("all", found["all"])):
        places = " ".join(f"{share:.2f}" for share in row["per_position"])
        print(f"{kind:<6}{row['texts']:>7}{row['rounds']:>8}{row['acceptance_length']:>8.2f}  {places}")
    return 0


_COMMANDS = {"recipe": _recipe, "generate": _generate, "cache": _cache, "train": _train, "eval": _evaluate}


if __name__ == "__main__":
    sys.exit(main())
