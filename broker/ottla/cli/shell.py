"""`ottla shell`: reads commands of `ottla` line by line, all for one cluster.

In a terminal, with history and with completion of commands, options and arguments by Tab. From a pipe or a
file, the first command that fails ends the shell with its exit code.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click
from click.shell_completion import ShellComplete

_WELCOME = "Commands of ottla, without `ottla`. help lists them, Tab completes them, Ctrl-D ends the shell."
_WORD_ENDS = " \t\n"


@click.command(short_help="Run commands one by one, all for one cluster.")
@click.option("-b", "--bootstrap", metavar="HOST:PORT[,…]", help="Bootstrap servers of all commands.")
@click.option(
    "--command-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Properties of Kafka's clients, or a broker's server.properties, of all commands.",
)
@click.pass_context
def shell(ctx: click.Context, bootstrap: str | None, command_config: Path | None) -> None:
    """Run commands of ottla one by one, all for one cluster: `topics list`, `consume clicks --tail 10`.

    Commands from a pipe end with the first one that fails, and with its exit code.
    """
    # The options of a command have these as their defaults.
    for name, value in (("OTTLA_BOOTSTRAP", bootstrap), ("OTTLA_COMMAND_CONFIG", command_config)):
        if value is not None:
            os.environ[name] = str(value)
    commands = ctx.find_root().command
    if not sys.stdin.isatty():
        for line in sys.stdin:
            code = run_line(commands, line)
            if code:
                ctx.exit(code)
        return
    _complete_lines(commands)
    click.echo(_WELCOME)
    while True:
        try:
            line = input("ottla> ")
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo()
            continue
        if line.strip() in ("exit", "quit"):
            return
        run_line(commands, line)


def run_line(commands: click.Command, line: str) -> int:
    """Run one line. Returns its exit code; an error is printed."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        click.echo(f"Error: {error}", err=True)
        return 2
    if not words:
        return 0
    if words[0] == "shell":
        click.echo("Error: this is the shell", err=True)
        return 2
    if words[0] == "help":
        words = [*words[1:], "--help"]
    try:
        code = commands.main(words, prog_name="ottla", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo()
        return 130
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return code if isinstance(code, int) else 0


def completions(commands: click.Command, line: str) -> list[str]:
    """The words that may follow, or complete the last word of, the line."""
    try:
        words = shlex.split(line)
    except ValueError:
        return []
    incomplete = "" if not line or line[-1] in _WORD_ENDS else words.pop()
    found = ShellComplete(commands, {}, "ottla", "").get_completions(words, incomplete)
    return [item.value for item in found if item.type == "plain"]


def _complete_lines(commands: click.Command) -> None:
    try:
        import readline
    except ImportError:  # a Python without it: lines can still be typed
        return

    def complete(text: str, state: int) -> str | None:
        found = completions(commands, readline.get_line_buffer()[: readline.get_endidx()])
        return f"{found[state]} " if state < len(found) else None

    readline.set_completer_delims(_WORD_ENDS)
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
