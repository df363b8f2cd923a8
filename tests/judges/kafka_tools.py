"""Apache Kafka's command line tools, many commands in one JVM.

Called by the tests that compare the output of a command on Apache Kafka and on Ottla: a JVM for each command
would take minutes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bench.apache_kafka import kafka_classpath, run_tool
from ottla.local.zookeeper import find_java
from tests.oracles import JAVA

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


def run_program(name: str, *arguments: str, timeout_s: float = 250) -> str:
    """The output of a Java program of this folder with Kafka's classes; it must succeed."""
    done = run_tool(name, arguments, timeout_s=timeout_s, classes=compiled(name))
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def compiled(name: str) -> Path:
    """The folder of a program's classes. Compilation at each start (Java's source launcher) takes half the
    CPU time."""
    source, java, jars = JAVA / f"{name}.java", find_java(), Path(kafka_classpath()).parent
    release = java.resolve().parents[1] / "release"
    made_of = source.read_bytes() + (release.read_bytes() if release.is_file() else b"")
    folder = jars.with_name(f"{jars.name}-{name}-{hashlib.sha256(made_of).hexdigest()[:12]}")
    if folder.exists():
        return folder
    part = Path(tempfile.mkdtemp(dir=jars.parent))
    compiler = ("-XX:TieredStopAtLevel=1", "-m", "jdk.compiler/com.sun.tools.javac.Main", "-proc:none")
    classpath = os.pathsep.join(map(str, jars.glob("*.jar")))
    ran = subprocess.run(
        [java, *compiler, "-d", part, "-cp", classpath, source],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    try:
        part.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(part)
    return folder


def run_all(commands: Sequence[Command], directory: Path, timeout_s: float = 360) -> list[Printed]:
    """Runs commands one after the other, and returns their outputs. `directory` gets the list of commands."""
    asked = directory / "commands"
    rows = [(command.main_class, *command.arguments, command.stdin, command.awaited) for command in commands]
    asked.write_text("".join("\t".join(map(_base64, row)) + "\n" for row in rows))
    ran = run_tool("Tools", [str(asked)], timeout_s=timeout_s, classes=compiled("Tools"))
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
