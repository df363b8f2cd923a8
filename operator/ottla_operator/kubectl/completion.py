"""`kubectl_complete-ottla`: completes `kubectl ottla …` for kubectl's own completion.

kubectl runs this program with the words of the line after `ottla`, of which the last is incomplete. It reads
a candidate a line, with a help text behind a tab, and at last a directive of Cobra.
"""

from __future__ import annotations

import sys

import click
from click.shell_completion import ShellComplete

from ottla_operator.kubectl.command import main as plugin

_FILES, _NO_FILES = ":0", ":4"


def lines(words: list[str]) -> list[str]:
    """What kubectl reads."""
    *before, incomplete = words or [""]
    found = ShellComplete(plugin, {}, "kubectl ottla", "").get_completions(before, incomplete)
    plain = [
        f"{each.value}\t{each.help}" if each.help else str(each.value)
        for each in found
        if each.type == "plain"
    ]
    return [*plain, _NO_FILES if len(plain) == len(found) else _FILES]


def main() -> None:
    for line in lines(sys.argv[1:]):
        click.echo(line)
