"""Apache Kafka's command line tools, many commands in one virtual machine.

Called by the tests that compare what the same command prints on Apache Kafka and on Ottla: a JVM for each
command would take minutes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.apache_kafka import run_tool

_PROGRAMS = Path(__file__).with_name("java")
_OUR_OWN = ("Tools$Ended: ended", "ended", "Tools$Ended")
"""What the runner's own exception leaves in what a tool prints."""


class Command(NamedTuple):
    main_class: str
    arguments: Sequence[str]
    stdin: str = ""
    awaited: str = ""
    """A regular expression (`.` is any character): the command is run again, for at most a minute, until it
    prints that. What was changed just now need not be known everywhere."""


class Printed(NamedTuple):
    status: int
    out: str
    err: str


def program(name: str) -> str:
    """One of this folder's own, over Kafka's classes: to be run as a tool."""
    return str(_PROGRAMS / f"{name}.java")


def run_program(name: str, *arguments: str, timeout_s: float = 250) -> str:
    """What it printed; it must have ended well."""
    done = run_tool(program(name), arguments, timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_all(commands: Sequence[Command], directory: Path, timeout_s: float = 360) -> list[Printed]:
    """Run them one after the other; what each printed. `directory` gets the list of them."""
    asked = directory / "commands"
    rows = [(command.main_class, *command.arguments, command.stdin, command.awaited) for command in commands]
    asked.write_text("".join("\t".join(map(_base64, row)) + "\n" for row in rows))
    ran = run_tool(program("Tools"), [str(asked)], timeout_s=timeout_s)
    printed = [_printed(line) for line in ran.stdout.splitlines()]
    assert len(printed) == len(commands), f"ended after {len(printed)} of {len(commands)}: {ran.stderr}"
    for command, shown in zip(commands, printed, strict=True):
        assert re.search(command.awaited, shown.out, re.DOTALL), f"{command} never printed that: {shown}"
    return printed


def _base64(word: str) -> str:
    return base64.b64encode(word.encode()).decode()


def _printed(line: str) -> Printed:
    status, out, err = line.split(" ")
    texts = [base64.b64decode(text[:-1]).decode() for text in (out, err)]
    cleaned = [
        "".join(line for line in text.splitlines(keepends=True) if line.strip() not in _OUR_OWN)
        for text in texts
    ]
    return Printed(int(status), *cleaned)
