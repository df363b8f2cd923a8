"""A group member that is Kafka's own consumer: `Member.java` as a process, and its output."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.apache_kafka import java_command
from ottla.local.processes import wait_until
from tests.judges.kafka_tools import compiled

_WAIT_S = 90.0


class JavaMember:
    def __init__(self, process: subprocess.Popen[bytes], out: Path, errors: Path) -> None:
        self._process = process
        self._out = out
        self._errors = errors

    def lines(self, word: str) -> list[str]:
        """The rest of the output lines that begin with this word."""
        printed = self._out.read_text().splitlines()
        return [line.removeprefix(f"{word} ") for line in printed if line.startswith(word)]

    def wait_for(self, word: str, last: str | None = None) -> str:
        """Waits for a line of this word, with `last` for this very line, and returns the last one."""

        def printed() -> bool:
            found = self.lines(word)
            return bool(found) and last in (None, found[-1])

        assert wait_until(printed, timeout_s=_WAIT_S), f"{self._out.read_text()}\n{self._errors.read_text()}"
        return self.lines(word)[-1]

    @property
    def owned(self) -> set[int]:
        found = self.lines("owns")
        return {int(number) for number in found[-1].split(",") if number} if found else set()

    def end(self) -> None:
        """Makes the member leave the group."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(_WAIT_S) == 0, self._errors.read_text()


@contextmanager
def java_member(directory: Path, bootstrap: str, topic: str, **settings: object) -> Iterator[JavaMember]:
    """`_` in the names of settings is `.`."""
    given = {"bootstrap_servers": bootstrap, "group_id": "group", **settings}
    words = [f"{name.replace('_', '.')}={value}" for name, value in given.items()]
    number = len(list(directory.glob("member-*.out")))
    out, errors = directory / f"member-{number}.out", directory / f"member-{number}.err"
    command = java_command("Member", topic, *words, classes=compiled("Member"))
    with out.open("wb") as to, errors.open("wb") as problems:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=to, stderr=problems, env={**os.environ}
        )
    try:
        yield JavaMember(process, out, errors)
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
