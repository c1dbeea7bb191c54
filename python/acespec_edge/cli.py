"""The `acespec` command and its subcommands."""

from __future__ import annotations

from acespec_edge.commands.chat import chat
from acespec_edge.commands.configured import config_commands
from acespec_edge.commands.doctor import doctor
from acespec_edge.commands.export import export
from acespec_edge.commands.generate import generate
from acespec_edge.commands.models import app as models
from acespec_edge.commands.plan import plan
from acespec_edge.commands.program import Program
from acespec_edge.commands.serve import serve
from acespec_edge.commands.simulate import simulate
from acespec_edge.commands.top import top
from acespec_edge.commands.wan import wan

_program = Program("acespec", "Speculative decoding across a WAN: this device drafts, the cloud verifies.")
_program.app.command(short_help="Generate text from a prompt.")(generate)
_program.app.command(short_help="Chat in the terminal.")(chat)
_program.app.command(short_help="Serve OpenAI's API on this device.")(serve)
_program.app.command(short_help="Check device, bundle, network and cloud.")(doctor)
_program.app.command(short_help="Watch a running gateway.")(top)
_program.app.command(short_help="Make a draft bundle from a model.")(export)
_program.app.add_typer(models, name="models")
_program.app.command(short_help="Emulate a wide-area network.")(wan)
_program.app.command(short_help="Say whether speculation will pay.")(plan)
_program.app.command(short_help="Compare policies in virtual time.")(simulate)
_program.app.add_typer(
    config_commands("edge", serve), name="config", short_help="Check and show a configuration."
)


def main() -> None:
    """Runs the command line; exit statuses as of Program.run."""
    _program.run()
