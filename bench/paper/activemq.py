"""ActiveMQ classic from Maven Central, with the launcher beside this file (ActiveMq.java).

The journal (KahaDB, as in the paper) is flushed once a second instead of with every message: the paper had
all brokers flush asynchronously. JMS has no batches, but transactions whose commit is confirmed.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.maven import Artifact, fetch_jars
from bench.paper.systems import BATCH, CLIENT_TIMEOUT_S, MESSAGE_BYTES, System
from bench.sides import on_core
from bench.tools import BROKER_CORE, run_client
from ottla.local.processes import ChildProcess, StartFailed, free_port, port_in_use, wait_until
from ottla.local.zookeeper import find_java

VERSION: Final = "5.18.6"
_JARS: Final = (
    Artifact("org.apache.activemq", "activemq-broker", VERSION),
    Artifact("org.apache.activemq", "activemq-kahadb-store", VERSION),
    Artifact("org.slf4j", "slf4j-nop", "2.0.13"),
)
_LAUNCHER: Final = Path(__file__).with_name("ActiveMq.java")
_ASYNCHRONOUS: Final = "0"
_FLUSH: Final = "periodic"


class ActiveMq(System):
    name = "ActiveMQ"
    settings = (
        "persistent messages, KahaDB flushed once a second; batches of 1: useAsyncSend, confirmed: "
        "transactions of 50; consumer with AUTO_ACKNOWLEDGE"
    )

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._broker: ChildProcess | None = None

    def __enter__(self) -> Self:
        self._classpath = f"{fetch_jars(f'activemq-{VERSION}', _JARS)}/*"
        command = [*self._java("1G"), "broker", str(self._directory), str(self._port), _FLUSH]
        self._broker = broker = ChildProcess("ActiveMQ", command, log=self._directory / "activemq.log")
        with on_core(BROKER_CORE):
            broker.start()
        wait_until(lambda: not broker.running or port_in_use(self._port), timeout_s=60)
        if not broker.running or not port_in_use(self._port):
            broker.stop(timeout_s=5)
            raise StartFailed(f"ActiveMQ did not come up:\n{broker.log_tail()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._broker is not None:
            self._broker.stop(timeout_s=30)

    def _java(self, heap: str) -> list[str]:
        return [str(find_java()), f"-Xmx{heap}", "-cp", self._classpath, str(_LAUNCHER)]

    @property
    def pids(self) -> list[int]:
        assert self._broker is not None
        return [self._broker.pid] if self._broker.pid is not None else []

    def make_queue(self, queue: str) -> None:
        """Nothing: the broker creates the queue on first use."""

    def produce_singly(self, queue: str, count: int) -> float:
        return self._run("produce", queue, str(count), str(MESSAGE_BYTES), _ASYNCHRONOUS)

    def produce_batches(self, queue: str, count: int) -> None:
        return None

    def produce_confirmed(self, queue: str, count: int) -> float:
        return self._run("produce", queue, str(count), str(MESSAGE_BYTES), str(BATCH))

    def consume(self, queue: str, count: int) -> float:
        return self._run("consume", queue, str(count))

    def _run(self, what: str, *arguments: str) -> float:
        command = [*self._java("512m"), what, str(self._port), *arguments]
        return float(run_client(command, CLIENT_TIMEOUT_S).split()[-1])
