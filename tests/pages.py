"""Runs a page of docs/ as its reader would: writes its files, runs its commands, compares what they print.

Called by the tests of get-started and tutorials, and by `make lint`. A page has

- files: a fence in a language other than `console`, whose first line is a comment with the file's name
  (`# send.py`, `# ~/shop/cluster.yaml`), in the folder of the terminal;
- terminals: `console` fences. `$ ` begins a command, `> ` continues it, the lines below are what it prints. A
  title (`title="Terminal 2"`) names the terminal, which keeps its folder and variables. A command keeps
  running if the next block of its terminal begins with `^C`, which interrupts it, or with lines, which are
  what it prints later;
- addresses to open in a browser (`<http://127.0.0.1:…>`), which have to answer.

`…` stands for anything. Of the other lines, spaces, times, durations and UUIDs may differ. A command that
only reads (`_READS`) is repeated until it prints what the page shows. A command may fail if the output that
the page shows has an error. A block is left out after a paragraph that begins with "Not run by the test" and
has the reason. A block that is none of these fails the test.

The commands run in a network namespace of their own, so that the ports are those of the page, and with an
empty HOME, in which only the folders of downloaded jars are those of the user.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.selection import ROOT

DOCS = ROOT / "docs"
COMMAND_S_MAX = 600.0  # Spark, on a busy machine
READS_S_MAX = 180.0
"""How long a command that only reads is repeated."""
_READS = re.compile(
    r"^(kubectl (get|top|ottla status|exec .* ottla \w+ describe)|ottla \w+ (describe|list)|curl"
    r"|ottla-pipeline audit-report) "
)
_DOWNLOADS = (".ivy2.5.2", ".ivy2", ".m2", ".cache/ottla")
_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"(?:#|//|--) (\S+\.\w+)\n")
_BROWSER = re.compile(r"<(http://127\.0\.0\.1:\d+[^>]*)>")
_VARYING = {
    "…": r".*?",
    r" {2,}|\t": r"\s+",
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}": r"[0-9a-f-]{36}",
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?Z?": r"[\d-]{10}[T ][\d:.,]+Z?",
    r"\b(?:\d+[dhm])*\d+(?:\.\d+)? ?m?s\b": r"(?:\d+[dhm])*(?:\d+(?:\.\d+)? ?m?s|\d+[dhm])",
}


class Command(NamedTuple):
    text: str
    """`^C`, or empty: the command that runs prints more."""
    printed: str


class Session(NamedTuple):
    terminal: str
    commands: Sequence[Command]


class File(NamedTuple):
    name: str
    text: str


class Address(NamedTuple):
    url: str


Step = Session | File | Address


@dataclass
class Page:
    path: Path
    until: str = ""
    """A heading of the page; it and what follows is left out."""
    steps: list[Step] = field(init=False)

    def __post_init__(self) -> None:
        text = self.path.read_text(encoding="utf-8")
        if self.until:
            text, found, _ = text.partition(f"\n{self.until}\n")
            assert found, f"{self.path} has no line {self.until!r}"
        self.steps = list(_steps(text, self.path))

    @property
    def first_terminal(self) -> str:
        return next((step.terminal for step in self.steps if isinstance(step, Session)), "")

    def next_in(self, terminal: str, index: int) -> Command | None:
        """The first command of a terminal after a step."""
        later = (step for step in self.steps[index + 1 :] if isinstance(step, Session))
        return next((step.commands[0] for step in later if step.terminal == terminal), None)

    @property
    def files(self) -> list[File]:
        return [step for step in self.steps if isinstance(step, File)]


def _steps(text: str, path: Path) -> Iterator[Step]:
    end = 0
    for fence in _FENCE.finditer(text):
        prose, end = text[end : fence.start()], fence.end()
        yield from _addresses(prose, path)
        language, info, content = fence.groups()
        last = prose.strip().rpartition("\n\n")[2]
        if last.startswith("Not run by the test"):
            continue
        if language == "console":
            title = re.search(r'title="(.*?)"', info)
            yield Session(title[1] if title else "", list(_commands(content)))
        elif named := _NAME.match(content):
            yield File(named[1], content)
        else:
            raise AssertionError(f"{path}: a block that is neither a terminal nor a named file:\n{fence[0]}")
    yield from _addresses(text[end:], path)


def _addresses(prose: str, path: Path) -> Iterator[Address]:
    assert not re.search(r"^(?: {4}|\t)\$? ?(ottla|pip|python3?|kubectl|helm) ", prose, re.MULTILINE), (
        f"{path}: a command in an indented block, which no test runs: write it in a `console` fence"
    )
    yield from (Address(url) for url in _BROWSER.findall(prose))


def _commands(content: str) -> Iterator[Command]:
    text, printed = "", list[str]()
    for line in content.splitlines():
        if line.startswith("> ") and not printed:
            text += f"\n{line[2:]}"
        elif line.startswith("$ ") or line == "^C":
            if text or printed:
                yield Command(text, "\n".join(printed))
            text, printed = line.removeprefix("$ "), []
        else:
            printed.append(line)
    yield Command(text, "\n".join(printed))


def pattern_of(printed: str) -> re.Pattern[str]:
    """What matches the output that a page shows."""
    parts = re.split(f"({'|'.join(_VARYING)})", printed.strip())

    def as_regex(part: str) -> str:
        for varying, regex in _VARYING.items():
            if re.fullmatch(varying, part):
                return regex
        return re.escape(part)

    return re.compile("".join(as_regex(part) for part in parts), re.DOTALL)


class Mismatch(AssertionError):
    def __init__(self, what: str, expected: str, found: str) -> None:
        super().__init__(f"{what}\n--- the page shows\n{expected}\n--- it printed\n{found}")


class Terminal:
    """A bash that keeps its folder and variables; the foreground command may keep running."""

    _MARK = "--- the command has ended with "

    def __init__(self, prefix: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [*prefix, "bash", "--noprofile", "--norc"], cwd=folder, env=environment, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=0,
        )  # fmt: skip
        self._printed = ""
        self._changed = threading.Condition()
        self._running = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._send("set -m; trap : INT")  # jobs have process groups of their own, as on a terminal

    def _send(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while part := os.read(output.fileno(), 1 << 16).decode(errors="replace"):
                with self._changed:
                    self._printed += part
                    self._changed.notify_all()

    def _ended(self) -> re.Match[str] | None:
        return re.search(rf"\n{self._MARK}(\d+)\n", self._printed)

    def _wait(self, condition: object, timeout_s: float) -> bool:
        assert callable(condition)
        with self._changed:
            return bool(self._changed.wait_for(condition, timeout_s))

    def start(self, command: str) -> None:
        self._printed, self._running = "", True
        self._send(f"{{ {command}\n}} </dev/null; printf '\\n{self._MARK}%s\\n' $?")

    def finish(self, timeout_s: float = COMMAND_S_MAX) -> tuple[str, int]:
        """What the command has printed, and its exit status."""
        if not self._wait(self._ended, timeout_s):
            raise Mismatch(f"did not end within {timeout_s:g} s", "", self._printed)
        ended = self._ended()
        assert ended is not None
        self._running = False
        return self._printed[: ended.start()], int(ended[1])

    def expect(self, printed: str, timeout_s: float = COMMAND_S_MAX) -> None:
        """Waits until the command, which may keep running, has printed this."""
        pattern = pattern_of(printed)
        self._wait(lambda: pattern.search(self._printed) or self._ended(), timeout_s)
        if not pattern.search(self._printed):
            raise Mismatch("the running command", printed, self._printed)

    def interrupt(self) -> None:
        for child in psutil.Process(self._process.pid).children():
            os.killpg(os.getpgid(child.pid), signal.SIGINT)

    @property
    def folder(self) -> Path:
        return Path(os.readlink(f"/proc/{self._process.pid}/cwd"))

    @property
    def running(self) -> bool:
        return self._running and self._ended() is None

    def close(self) -> None:
        """Ends what runs as Ctrl-C does."""
        try:
            if self.running:
                self.interrupt()
                self.finish()
        finally:
            for process in psutil.Process(self._process.pid).children(recursive=True):
                process.kill()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.kill()
            self._process.wait()
            self._reader.join(10)


class Reader:
    """Who follows a page: a home, a network, terminals."""

    def __init__(
        self,
        home: Path,
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        path: Sequence[Path] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        """Without `folder`, the terminals open in HOME. `path`: folders of commands that come first."""
        home.mkdir(exist_ok=True)
        for name in _DOWNLOADS:
            if (found := Path.home() / name).exists():
                (home / name).parent.mkdir(exist_ok=True)
                (home / name).symlink_to(found)
        kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG") if name in os.environ}
        places = [*map(str, path), os.environ["PATH"]]
        self._environment = {
            "LANG": "C.UTF-8", "PYTHONUTF8": "1", "TERM": "dumb", **kept, "HOME": str(home),
            "PATH": os.pathsep.join(places), **(environment or {}),
        }  # fmt: skip
        self._home = home
        self._folder = folder or home
        self._prefix = prefix
        self._stack = ExitStack()
        self._terminals: dict[str, Terminal] = {}

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def terminal(self, title: str) -> Terminal:
        if title not in self._terminals:
            self._terminals[title] = Terminal(self._prefix, self._folder, self._environment)
            self._stack.callback(self._terminals[title].close)
        return self._terminals[title]

    def follow(self, page: Page) -> None:
        latest = self.terminal(page.first_terminal)
        for index, step in enumerate(page.steps):
            match step:
                case File(name, text):
                    file = latest.folder / name.replace("~", str(self._home), 1)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(text, encoding="utf-8")
                case Address(url):
                    self._open(url)
                case Session(title, commands):
                    latest = self.terminal(title)
                    later = [*commands[1:], page.next_in(title, index)]
                    for command, following in zip(commands, later, strict=True):
                        _run(latest, command, following)

    def _open(self, url: str) -> None:
        browser = [
            *self._prefix,
            "curl",
            "--silent",
            "--show-error",
            "--fail",
            "--location",
            "--output",
            os.devnull,
            url,
        ]
        done = subprocess.run(browser, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False)
        if done.returncode:
            raise Mismatch(f"{url} does not open", "", done.stderr)


def _run(terminal: Terminal, command: Command, following: Command | None) -> None:
    """Runs the command, which keeps running if the next line of its terminal is no command."""
    if command.text == "":
        terminal.expect(command.printed)
    elif command.text == "^C":
        terminal.interrupt()
        printed, _ = terminal.finish()
        if command.printed and not pattern_of(command.printed).search(printed):
            raise Mismatch("^C", command.printed, printed)
    elif following is not None and following.text in ("", "^C"):
        terminal.start(command.text)
        terminal.expect(command.printed)
    else:
        _run_to_its_end(terminal, command)


def _run_to_its_end(terminal: Terminal, command: Command) -> None:
    deadline = time.monotonic() + READS_S_MAX
    while True:
        terminal.start(command.text)
        printed, status = terminal.finish()
        printed = re.sub(r"[ \t]+$", "", printed, flags=re.MULTILINE).strip()
        matches = not command.printed or pattern_of(command.printed).fullmatch(printed)
        failed = status != 0 and not re.search(r"(?i)error|failed", command.printed)
        if matches and not failed:
            return
        if not _READS.match(command.text) or time.monotonic() > deadline:
            raise Mismatch(f"$ {command.text}\nexit status {status}", command.printed, printed)


INSTALLED = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
"""The environment of a reader who has installed Ottla, with BIN on the PATH."""
BIN = Path(sys.executable).parent


def empty_environment() -> dict[str, str]:
    """Of a reader who installs Ottla with pip from this tree: what it requires is found without an index."""
    site = next(place for place in sys.path if place.endswith("site-packages"))
    return {
        "PYTHONPATH": site,
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_NO_COMPILE": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def run_example(name: str, folder: Path, environment: Mapping[str, str] | None = None) -> None:
    """Runs `pytest` in a copy of examples/NAME; all its tests have to pass."""
    copy = shutil.copytree(ROOT / "examples" / name, folder / name)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=copy, check=False, timeout=800,
        capture_output=True, text=True, env={**os.environ, **INSTALLED, **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout


def spark_environment() -> dict[str, str]:
    """Of a reader whose Spark finds the connector without a network: what Ottla has downloaded, which has no
    jars that Spark has anyway."""
    from ottla_pipeline.spark import EXCLUDED
    from tests.judges.sparks import SUBMIT_ARGS

    return {"PYSPARK_SUBMIT_ARGS": f"--exclude-packages {','.join(EXCLUDED)} {SUBMIT_ARGS}"}


@contextmanager
def own_network() -> Iterator[Sequence[str]]:
    """A network namespace with a loopback interface alone: the prefix of commands in it."""
    root = os.geteuid() == 0
    enter = ["unshare", "-n"] if root else ["unshare", "-rn"]
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    holder = subprocess.Popen(
        [*enter, "sh", "-ec", "ip link set lo up; echo up; exec cat"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    with holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        line = holder.stdout.readline().strip()
        try:
            if line != "up":
                pytest.skip(f"Docker or root is needed for network namespaces: {line}")
            user = [] if root else ["-U", "--preserve-credentials"]
            yield ["nsenter", "-t", str(holder.pid), "-n", *user, "--"]
        finally:
            holder.stdin.close()


def main(folder: Path) -> None:
    """Writes the Python files of all pages to a folder, for `make lint`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in sorted([*DOCS.glob("get-started/*.md"), *DOCS.glob("tutorials/*.md")]):
        for name, text in Page(path).files:
            if name.endswith(".py"):
                assert Path(name).name == name, name
                (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
