"""Kafka 0.8.2's own clients and tools, from Maven Central, in child processes.

Called by test_clients_082. `Clients` is one JVM (java/Clients082.java) that holds producers and consumers;
`run_tool_082` runs one of the tools to its end.
"""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, Self

import pytest

from bench.apache_kafka import LEAN_JVM
from bench.maven import JarsUnavailable
from tests.oracles import JAVA, java, kafka_082

ANSWER_TIMEOUT_S: Final = 150
"""For one line: a rebalance of old consumers may take many tries of half a second."""
_SOURCE: Final = JAVA / "Clients082.java"
_LOG4J: Final = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{1} %m%n
"""


@lru_cache
def _jars() -> Path:
    folder = kafka_082()
    settings = folder / "log4j.properties"
    if not settings.exists():
        settings.write_text(_LOG4J)
    return folder


def needs_jars_082() -> None:
    """Skip the test where Kafka 0.8.2 cannot be had."""
    java()
    try:
        _jars()
    except JarsUnavailable as missing:
        pytest.skip(str(missing))


def _command(*words: str) -> list[str]:
    folder = _jars()
    options = [*LEAN_JVM, f"-Dlog4j.configuration=file:{folder / 'log4j.properties'}"]
    return [java(), *options, "-cp", f"{folder}/*", *words]


def run_tool_082(main_class: str, *arguments: str, stdin: str | None = None) -> str:
    """The output of the tool, which must succeed."""
    command = _command(main_class, *arguments)
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, input=stdin, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def start_tool_082(log: Path, main_class: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A tool that runs until it is killed."""
    with log.open("wb") as output:
        return subprocess.Popen(
            _command(main_class, *arguments), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


class Clients:
    """One JVM of clients. `do` sends a command line, and returns the answer."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._answers: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> Self:
        with self._log.open("wb") as errors:
            pipe, command = subprocess.PIPE, _command(str(_SOURCE))
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join(30)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("> "):
                self._answers.put(line[2:].rstrip("\n"))

    def do(self, *words: object) -> str:
        assert self._process.stdin is not None
        line = " ".join(str(word) for word in words)
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        try:
            answer = self._answers.get(timeout=ANSWER_TIMEOUT_S)
        except queue.Empty:
            raise AssertionError(f"no answer to {line!r}:\n{self._log.read_text()[-3000:]}") from None
        assert not answer.startswith("!"), f"{line!r}: {answer}\n{self._log.read_text()[-3000:]}"
        return answer

    def start(self, name: str, group: str, what: str, zookeeper: str, *settings: str) -> None:
        """Starts a high-level consumer of `topic:…` or `filter:…`, with one stream; it reads nothing yet."""
        self.do("start", name, zookeeper, group, what, 1, *settings)

    def allow(self, name: str, count: int) -> None:
        self.do("allow", name, count)

    def seen(self, *names: str) -> Sequence[str]:
        """`topic/partition/offset=value` of all messages that these consumers took, in order."""
        return [item for name in names for item in self.do("seen", name).split()]

    def values(self, *names: str) -> list[int]:
        return [int(item.rpartition("=")[2]) for item in self.seen(*names)]
