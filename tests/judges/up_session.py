"""`ottla up` as a user runs it: a process, a folder of YAML files, and what it prints."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from ottla.client.admin import AdminClient
from ottla.client.admin_types import TopicDescription
from ottla.client.routing import ClusterUnreachable
from ottla.local.cluster import run_admin
from ottla.local.processes import port_in_use
from ottla.protocol.errors import KafkaError

READY = re.compile(r"^ready bootstrap=(\S+) zookeeper=(\S+)$")
HOST = "127.0.0.1"


def free_ports(count: int) -> int:
    """The first of `count` consecutive free ports, below the kernel's ephemeral range. The choice is random;
    other test processes draw from other ranges (tests/conftest.py)."""
    shared, _, last = os.environ.get("OTTLA_PORTS", "10000-19999").partition("-")
    blocks = range(int(shared) + 10_000, int(last) + 10_000 - count, count)
    for first in random.sample(blocks, len(blocks)):
        if not any(port_in_use(port) for port in range(first, first + count)):
            return first
    raise AssertionError("no free ports")


class UpSession:
    """A process of `ottla up` over folders of its own; a context manager that leaves no process behind."""

    def __init__(self, directory: Path, *, ports: int = 5, options: Sequence[str] = ()) -> None:
        """`options`: further ones of `ottla up`."""
        self._options = options
        self.files = directory / "resources"
        self.data = directory / "data"
        self.port = free_ports(ports)
        self.lines: list[str] = []
        self.environment: dict[str, str] | None = None
        """Of the next start: None is that of this process."""
        self.process: subprocess.Popen[str] | None = None
        self._collector: threading.Thread | None = None
        self._read = 0
        self.files.mkdir(parents=True, exist_ok=True)

    # ---- the resources

    def write(self, kind: str, name: str, spec: Mapping[str, Any]) -> None:
        """Replaces the resource's file atomically, as editors do; `wait_line` ignores lines from before."""
        self._read = len(self.lines)
        content = {"apiVersion": "ottla.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        partial = self.files / f".{kind.lower()}-{name}.yaml"
        partial.write_text(yaml.safe_dump(content))
        partial.replace(self.files / f"{kind.lower()}-{name}.yaml")

    def remove(self, kind: str, name: str) -> None:
        (self.files / f"{kind.lower()}-{name}.yaml").unlink()

    def resource(self, key: str) -> dict[str, Any] | None:
        state = json.loads((self.data / "state.json").read_text())
        for resource in state["resources"]:
            if f"{resource['kind']}/{resource['metadata']['name']}" == key:
                found: dict[str, Any] = resource
                return found
        return None

    def condition(self, key: str, type_: str = "Ready") -> tuple[str, str, str]:
        resource = self.resource(key)
        for condition in resource["status"].get("conditions", []) if resource else []:
            if condition["type"] == type_:
                return condition["status"], condition["reason"], condition.get("message", "")
        return "", "", ""

    def cluster_status(self) -> dict[str, Any]:
        resource = self.resource("BrokerCluster/demo")
        assert resource is not None
        status: dict[str, Any] = resource["status"]
        return status

    # ---- the process

    def command(self, *more: str) -> list[str]:
        return [
            *(sys.executable, "-m", "ottla.cli.main", "up"),
            *("-f", str(self.files), "--data", str(self.data), "--port", str(self.port)),
            *self._options,
            *more,
        ]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()

    def start(self) -> None:
        self._read = len(self.lines)
        self.process = subprocess.Popen(
            self.command(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
        )
        self._collector = threading.Thread(target=self._collect, args=(self.process,), daemon=True)
        self._collector.start()

    def _collect(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                self.lines.append(line.rstrip("\n"))

    def stop(self, number: int = signal.SIGINT, timeout_s: float = 120) -> int:
        assert self.process is not None
        assert self._collector is not None
        self.process.send_signal(number)
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._collector.join(60)  # its last lines may still be in the pipe
        return code

    def wait_line(self, pattern: str | re.Pattern[str], timeout_s: float = 180) -> re.Match[str]:
        """The next output line that matches."""
        deadline = time.monotonic() + timeout_s
        while True:
            while self._read < len(self.lines):
                match = re.search(pattern, self.lines[self._read])
                self._read += 1
                if match:
                    return match
            assert self.process is not None
            ended = self.process.poll() is not None and self._read >= len(self.lines)
            if time.monotonic() > deadline or ended:
                raise AssertionError(f"no line {pattern!r} in {timeout_s} s:\n" + "\n".join(self.lines[-60:]))
            time.sleep(0.05)

    def wait_ready(self, timeout_s: float = 180) -> tuple[str, str]:
        """(bootstrap, zookeeper) of the next ready line."""
        match = self.wait_line(READY, timeout_s)
        return match[1], match[2]

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
        """Waits for a condition; errors of an unreachable broker or a missing file count as false."""

        def holds() -> bool:
            try:
                return condition()
            except (ClusterUnreachable, KafkaError, LookupError, OSError, ValueError):
                return False

        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {timeout_s} s for {what}\n" + "\n".join(self.lines[-60:]))
            time.sleep(0.05)

    # ---- the cluster

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    def topic(self, name: str, broker: int = 0) -> TopicDescription | None:
        """The topic as one broker describes it; that broker may apply a change later than the operator's."""

        async def describe(client: AdminClient) -> TopicDescription | None:
            return (await client.describe_topics([name])).get(name)

        return run_admin([(HOST, self.port + broker)], describe)

    def broker_pid(self, broker: int) -> int:
        return int((self.data / "brokers" / str(broker) / "broker.pid").read_text())
