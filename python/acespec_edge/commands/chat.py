"""`acespec chat`: a conversation in the terminal, or line by line through a pipe."""

from __future__ import annotations

import contextlib
import re
import select
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from acespec_edge.commands.link import say
from acespec_edge.commands.options import (
    Authority,
    BundleFolder,
    ClientCert,
    ClientKey,
    CloudAddresses,
    Context,
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
from acespec_edge.errors import AcespecError, UsageError

if TYPE_CHECKING:
    from acespec_edge.drafting import DrafterName
    from acespec_edge.edge import EdgeRuntime
    from acespec_edge.policy import Power
    from acespec_edge.request import Mode
    from acespec_edge.result import Result
    from acespec_edge.stats import Stats

_COMMANDS: Final = "/reset forgets, /system TEXT tells the model who it is, /stats, /quit"
_COMMAND: Final = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)
_ENDS: Final = {
    "length": "cut at --max-tokens",
    "context": "the context is full; /reset starts anew",
    "cancelled": "stopped",
}
_PASTE_GAP: Final = 0.02
"""Seconds within which the next line of a paste is there."""


def chat(
    bundle: BundleFolder,
    cloud: CloudAddresses = None,
    mode: ModeName = "auto",
    target: TargetSource = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.")] = 1024,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep the smallest head of this mass.")] = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same answers; drawn when not given.")
    ] = None,
    context: Context = 2048,
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
) -> None:
    """Chat with the target. Ctrl-C stops an answer, Ctrl-D ends; commands are /reset, /system, /stats, /quit.
    Through a pipe, every line is a message."""
    from acespec_edge.edge import EdgeRuntime

    with EdgeRuntime(
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
        context=context,
        reconnect_for=reconnect_for,
        offline_after=offline_after,
        on_link=say,
    ) as edge:
        if edge.bundle.chat_template is None:
            raise UsageError(
                f"bundle is {edge.bundle.name}, which has no chat template: use acespec generate"
            )
        options = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
        conversation = Conversation(edge, options, system)
        if sys.stdin.isatty() and sys.stdout.isatty():
            _in_terminal(conversation)
        else:
            for line in sys.stdin:
                if line.strip() and not conversation.take(line.rstrip("\n")):
                    break


class Conversation:
    """The messages so far, and what happens with the next line. For one thread.

    An answer that was stopped stays in the history as far as it was shown; one that failed does not, nor does
    its question.
    """

    def __init__(self, edge: EdgeRuntime, options: dict[str, Any], system: str | None) -> None:
        """``options``: of EdgeRuntime.stream."""
        self._edge = edge
        self._options = options
        self._system = system
        self._stats: Stats | None = None
        self.messages: list[dict[str, str]] = []
        self.ended = ""
        """Why the last answer ended early, in words; empty when it did not."""

    def take(self, line: str, *, stoppable: bool = False) -> bool:
        """Obeys a command or prints the answer to a message; False when the conversation is over.

        ``stoppable``: an interrupt ends the answer, and is not passed on. Raises what EdgeRuntime raises.
        """
        self.ended = ""
        command = _COMMAND.fullmatch(line.strip())
        if command is not None:
            return self._obey(command[1], command[2] or "")
        question = {"role": "user", "content": line}
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        result = self._answer([*system, *self.messages, question], stoppable)
        self._stats = result.stats
        self.ended = _ENDS.get(result.finish_reason, "")
        self.messages += [question, {"role": "assistant", "content": result.text}]
        return True

    def _answer(self, messages: list[dict[str, str]], stoppable: bool) -> Result:
        stream = self._edge.stream(messages, **cast("Any", self._options))
        try:
            for piece in stream:
                print(piece.text, end="", flush=True)
        except KeyboardInterrupt:
            if not stoppable:
                raise
            stream.close()
        finally:
            print(flush=True)
        return stream.result

    def _obey(self, command: str, text: str) -> bool:
        if command == "quit":
            return False
        if command == "reset":
            self.messages.clear()
        elif command == "system":
            # What was said before was said to somebody else.
            self._system = text or None
            self.messages.clear()
        elif command == "stats":
            if self._stats is None:
                print("acespec: no answer yet", file=sys.stderr)
            else:
                show_stats(self._stats)
        else:
            print(f"acespec: there is no /{command}: {_COMMANDS}", file=sys.stderr)
        return True


def _in_terminal(conversation: Conversation) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    console.print(f"Ctrl-C stops an answer, Ctrl-D ends; {_COMMANDS}", style="dim")
    for message in _typed():
        try:
            if not conversation.take(message, stoppable=True):
                return
            if conversation.ended:
                console.print(f"({conversation.ended})", style="dim")
        except AcespecError as error:
            console.print(f"acespec: {error}", style="red")


def _typed() -> Iterator[str]:
    """Messages from the terminal until Ctrl-D; Ctrl-C drops the line that is being typed."""
    # Importing it gives input() line editing, history, and pastes in one piece.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    while True:
        try:
            lines = [input("> ")]
            # Where the terminal does not mark pastes, their lines come one by one.
            while select.select([sys.stdin], [], [], _PASTE_GAP)[0]:
                lines.append(input())
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            print()
            return
        message = "\n".join(lines)
        if message.strip():
            yield message
