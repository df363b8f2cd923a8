"""docs/guides/kafka-tools.md as data, and whether a command line that the documentation names exists.

Called by the tests that hold the page against Kafka's tools and against our commands.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from ottla.cli.main import main

PAGE = Path(__file__).parents[1] / "docs/guides/kafka-tools.md"
COMMON = "Every script"
OTHERS = "Other scripts"
_CODE = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    section: str
    kafka: tuple[str, ...]
    """Options and commands of the script; in the table of other scripts, the script."""
    ottla: str

    @property
    def commands(self) -> list[str]:
        """The command lines of `ottla` that it names."""
        return [code for code in _CODE.findall(self.ottla) if code.startswith("ottla ")]

    @property
    def offered(self) -> bool:
        return not self.ottla.startswith("not offered: ")


def rows() -> Iterator[Row]:
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("|") and not line.startswith(("|---", "| Kafka |", "| script |")):
            kafka, ottla = (cell.strip() for cell in line.strip("|").split("|"))
            names = (kafka,) if section == OTHERS else tuple(_CODE.findall(kafka))
            yield Row(section, names, ottla)


def scripts() -> set[str]:
    """All scripts on the page."""
    sections = {line.removeprefix("## ") for line in PAGE.read_text().splitlines() if line.startswith("## ")}
    return {each for each in sections if each.endswith(".sh")} | {
        name for row in rows() if row.section == OTHERS for name in row.kafka
    }


def command_lines() -> set[str]:
    """All command lines of `ottla` on the page."""
    return {code for code in _CODE.findall(PAGE.read_text()) if code.startswith("ottla ")}


def examples(page: Path) -> set[str]:
    """The command lines of `ottla` in a page's blocks of code, the last one of a pipe."""
    blocks = re.findall(r"^```\n(.*?)^```|((?:^    .*\n)+)", page.read_text(), re.M | re.S)
    lines = [line.strip() for block in blocks for text in block for line in text.splitlines()]
    found = (re.search(r"(?:^|\| )(ottla [^|#>`]+)(?!.*`)", line) for line in lines)
    return {each[1].strip() for each in found if each is not None}


def missing_of(command_line: str) -> str | None:
    """The first part of a command line that `ottla` does not have; None if it has all of it."""
    command: click.Command = main
    words = shlex.split(command_line)[1:]
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        name = words.pop(0)
        found = command.get_command(click.Context(command), name)
        if found is None:
            return name
        command = found
    params = command.get_params(click.Context(command, help_option_names=["-h", "--help"]))
    options = {name: param for param in params for name in param.opts if isinstance(param, click.Option)}
    arguments = [param.nargs for param in params if isinstance(param, click.Argument)]
    given = 0
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            given += 1
        elif word not in options:
            return word
        elif words and not words[0].startswith("--") and not getattr(options[word], "is_flag", False):
            words.pop(0)
    return None if -1 in arguments or given <= len(arguments) else f"{given} arguments"
