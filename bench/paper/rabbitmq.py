"""RabbitMQ from Debian's package, as a private node under the current user.

The system's RabbitMQ service is not affected: node name, cookie, data, logs and the port mapper (epmd) belong
to this run, on loopback. The client is RabbitMQ's PerfTest. AMQP has no batches; the closest equivalent is a
publisher with at most 50 unconfirmed messages. RabbitMQ confirms a persistent message after it is on disk,
and has no setting for less.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.maven import Artifact, fetch_jars
from bench.paper.systems import BATCH, CLIENT_TIMEOUT_S, MESSAGE_BYTES, System, Unavailable
from bench.sides import on_core
from bench.tools import BROKER_CORE, ToolFailed, run_client
from ottla.local.processes import ChildProcess, StartFailed, free_port, port_in_use, wait_until
from ottla.local.zookeeper import find_java

_SERVER: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_PERF_TEST: Final = (Artifact("com.rabbitmq", "perf-test", "2.22.1"),)
_CONF: Final = "listeners.tcp.default = 127.0.0.1:{port}\nlog.file.level = warning\n"
_RATE: Final = re.compile(r"(sending|receiving) rate avg: (\d+) msg/s")
_START_TIMEOUT_S: Final = 90


class RabbitMq(System):
    name = "RabbitMQ"
    settings = (
        "durable classic queue, persistent messages; confirmed: at most 50 unconfirmed; consumer with autoAck"
    )

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._port_mapper: ChildProcess | None = None
        self._server: ChildProcess | None = None

    def __enter__(self) -> Self:
        if not _SERVER.exists():
            raise Unavailable("RabbitMQ is not installed: apt-get install rabbitmq-server")
        self._classpath = f"{fetch_jars('rabbitmq-perf-test', _PERF_TEST)}/*"
        try:
            with on_core(BROKER_CORE):
                self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.stop(timeout_s=60)
        if self._port_mapper is not None:
            self._port_mapper.stop(timeout_s=5)

    def _start(self) -> None:
        folder, mapper_port = self._directory, free_port()
        for name in ("home", "mnesia", "log"):
            (folder / name).mkdir(parents=True)
        (folder / "rabbitmq.conf").write_text(_CONF.format(port=self._port))
        (folder / "plugins").write_text("[].\n")
        # A port mapper as a child process: the node would start one that outlives it.
        self._port_mapper = ChildProcess(
            "epmd", ["epmd", "-address", "127.0.0.1", "-port", str(mapper_port)], log=folder / "epmd.log"
        )
        self._port_mapper.start()
        wait_until(lambda: port_in_use(mapper_port), timeout_s=10)
        settings = {
            "HOME": folder / "home",  # place of the cookie
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": mapper_port,
            "RABBITMQ_NODENAME": "ottla-bench@localhost",
            "RABBITMQ_DIST_PORT": free_port(),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": folder / "mnesia",
            "RABBITMQ_LOG_BASE": folder / "log",
            "RABBITMQ_CONFIG_FILE": folder / "rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": folder / "no-such-file",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
            "RUNNING_UNDER_SYSTEMD": "1",  # no shell in between: the child is the Erlang machine
        }
        command = ["/usr/bin/env", *(f"{name}={value}" for name, value in settings.items()), str(_SERVER)]
        self._server = server = ChildProcess("RabbitMQ", command, log=folder / "rabbitmq.log")
        server.start()
        wait_until(lambda: not server.running or port_in_use(self._port), timeout_s=_START_TIMEOUT_S)
        if not server.running or not port_in_use(self._port):
            raise StartFailed(f"RabbitMQ did not come up:\n{server.log_tail()}")

    @property
    def pids(self) -> list[int]:
        assert self._server is not None
        return [self._server.pid] if self._server.pid is not None else []

    def make_queue(self, queue: str) -> None:
        """Nothing: the client declares the queue."""

    def produce_singly(self, queue: str, count: int) -> float:
        return self._produce(queue, count)

    def produce_batches(self, queue: str, count: int) -> None:
        return None

    def produce_confirmed(self, queue: str, count: int) -> float:
        return self._produce(queue, count, "--confirm", str(BATCH))

    def _produce(self, queue: str, count: int, *more: str) -> float:
        arguments = ("--consumers", "0", "--producers", "1", "--pmessages", str(count), *more)
        return self._run(queue, "sending", *arguments, "--size", str(MESSAGE_BYTES), "--flag", "persistent")

    def consume(self, queue: str, count: int) -> float:
        arguments = ("--consumers", "1", "--producers", "0", "--cmessages", str(count), "--autoack")
        return self._run(queue, "receiving", *arguments)

    def _run(self, queue: str, which: str, *arguments: str) -> float:
        uri = f"amqp://127.0.0.1:{self._port}"
        names = ("--queue", queue, "--routing-key", queue, "--auto-delete", "false", "--flag", "persistent")
        command = [str(find_java()), "-Xmx512m", "-cp", self._classpath, "com.rabbitmq.perf.PerfTest"]
        output = run_client([*command, "--uri", uri, *names, *arguments], CLIENT_TIMEOUT_S)
        return average_rate(output, which)


def average_rate(output: str, which: str) -> float:
    """PerfTest's average over the run; `which` is "sending" or "receiving". Raises ToolFailed."""
    rates = [float(rate) for what, rate in _RATE.findall(output) if what == which]
    if not rates or not rates[-1]:
        raise ToolFailed(f"PerfTest printed no {which} rate:\n{output[-500:]}")
    return rates[-1]
