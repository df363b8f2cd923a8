"""`ottla completion`: the script with which a shell completes `ottla`.

The names of topics and groups come from the cluster (`session.complete_topics`, `session.complete_groups`).
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_PROGRAM = "ottla"


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes commands, options, topics and groups of ottla.

    \b
    bash (4.4 or later), in ~/.bashrc:      eval "$(ottla completion bash)"
    zsh, in ~/.zshrc after compinit:        eval "$(ottla completion zsh)"
    fish, once:  ottla completion fish > ~/.config/fish/completions/ottla.fish

    Topics and groups are those of the cluster that the command line or OTTLA_BOOTSTRAP names; without
    an answer within a second there are none.
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ctx.find_root().command, {}, _PROGRAM, "_OTTLA_COMPLETE").source())
