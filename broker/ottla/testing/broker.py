"""DevBroker: a broker process for tests, with methods to stop, kill and pause it, and to inject faults.

Used by tests and by ottla.pytest. It is a process instead of a thread: it can be killed, and does not share
the test's interpreter lock, logging or coverage. Port, topics and records are kept over `kill` and `restart`,
and deleted with the object.

Invariants: the process ends with the one that started it; faults end with the process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from ottla.client import errors
from ottla.client.core.types import ConsumerRecord
from ottla.local.processes import ChildProcess, StartFailed, free_port
from ottla.protocol import messages as m
from ottla.testing.connection import BlockingConnection, read_records

_TIMEOUT_S = 10.0


class ControlSocket:
    """Sends commands to the control socket, each over a new connection, so that a broker may be restarted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send_command(self, **order: Any) -> dict[str, Any]:
        """Send a command and return the response. Raises ValueError for an invalid command, OSError
        without a broker."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(str(self._path))
            connection.sendall(json.dumps(order).encode() + b"\n")
            with connection.makefile("rb") as answers:
                answer: dict[str, Any] = json.loads(answers.readline() or b"{}")
        if "problem" in answer:
            raise ValueError(answer["problem"])
        return answer


class Fault:
    """An active fault, until it has applied `times` times, it is healed, or the `with` block ends."""

    def __init__(self, control: ControlSocket, order: dict[str, Any]) -> None:
        self._control = control
        self._id = int(control.send_command(do="fault", **order)["id"])

    @property
    def hits(self) -> int:
        """The number of requests that it has applied to; 0 after `heal`."""
        return int(self._control.send_command(do="hits", id=self._id)["hits"])

    def heal(self) -> None:
        self._control.send_command(do="heal", id=self._id)

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # the broker is down, and the fault with it
            self.heal()


_HOST: Final = "127.0.0.1"
_START_S: Final = 30.0
_STOP_S: Final = 10.0
_ANSWER_S: Final = 30.0
_POLL_S: Final = 0.005
_PORTS_TRIED: Final = 3
_IN_USE: Final = "Address already in use"


class RecordsMissing(AssertionError):
    """The expected records were not written in time; the message has the existing ones."""


class DevBroker:
    """A broker process, started by `with` or `start()`. `settings`: as in server.properties."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._settings = dict(settings or {})
        self._folder = tempfile.TemporaryDirectory(prefix="ottla-")
        self._path = Path(self._folder.name)
        self._control = ControlSocket(self._path / "control")
        self._process: ChildProcess | None = None
        self._paused = False
        self._faulty = False
        self.port = 0

    # --- start and stop -----------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """HOST:PORT, constant after the first start."""
        assert self.port, "the broker was never started"
        return f"{_HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id; None while the broker is down."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> DevBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start, or start again with the same port, topics and records. Returns when the broker serves.

        Raises StartFailed, with the end of its log.
        """
        assert self.pid is None, "the broker runs already"
        for _ in range(_PORTS_TRIED):
            chosen = self.port or free_port(_HOST)
            if self._started(chosen):
                self.port = chosen
                return
            if self.port or _IN_USE not in self.log_tail():
                break
        raise StartFailed(f"the broker did not come up on port {chosen}:\n{self.log_tail()}")

    def _started(self, port: int) -> bool:
        options = {
            "data": str(self._path / "data"),
            "keep": True,
            "host": _HOST,
            "port": port,
            "settings": self._settings,
            "control": str(self._path / "control"),
            "parent": os.getpid(),
        }
        (self._path / "data").mkdir(exist_ok=True)
        command = [sys.executable, "-m", "ottla.dev", json.dumps(options)]
        log = self._path / "broker.log"
        process = ChildProcess("ottla dev", command, log=log, watches_parent=True)
        process.start()
        deadline = time.monotonic() + _START_S
        while process.running and time.monotonic() < deadline:
            if self._serves():
                self._process, self._paused, self._faulty = process, False, False
                return True
            time.sleep(_POLL_S)
        process.kill()
        return False

    def _serves(self) -> bool:
        try:
            return "bootstrap" in self._control.send_command(do="about")
        except OSError:
            return False

    def stop(self) -> None:
        """Shut the broker down gracefully; `start` starts it again."""
        if self._process is not None:
            self.resume()
            self._process.stop(_STOP_S)
            self._process = None

    def kill(self) -> None:
        """SIGKILL, which simulates a crash: connections break until `start`."""
        if self._process is not None:
            self._process.kill()
            self._process, self._paused = None, False

    def restart(self) -> None:
        """`stop` and `start`; after `kill`, call `start` alone."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open without responses until `resume`."""
        assert self._process is not None, "the broker is down"
        self._process.signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        if self._process is not None and self._paused:
            self._process.signal(signal.SIGCONT)
            self._paused = False

    def close(self) -> None:
        """Kill the process and delete its data."""
        self.kill()
        self._folder.cleanup()

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the broker's log."""
        try:
            return "\n".join((self._path / "broker.log").read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    # --- faults -------------------------------------------------------------------------------------

    def fail(
        self,
        api: str | int | None,
        error: str | int,
        *,
        times: int | None = 1,
        topic: str | None = None,
        client_id: str | None = None,
    ) -> Fault:
        """Respond to the next `times` requests (None: all) with an error, without executing them.

        `api` and `error` are Kafka's names or numbers ("PRODUCE", "NOT_LEADER_OR_FOLLOWER"); `api` None: any
        API. `topic` selects requests with the topic (never a Fetch, which has topics once per session),
        `client_id` those of one client. Raises ValueError for an unknown name.
        """
        return self._fault("error", api, times, topic, client_id, error=error)

    def delay(
        self,
        api: str | int | None,
        seconds: float,
        *,
        times: int | None = None,
        topic: str | None = None,
        client_id: str | None = None,
    ) -> Fault:
        """Handle requests `seconds` later; later requests of the same connection wait."""
        return self._fault("delay", api, times, topic, client_id, delay_s=seconds)

    def drop(
        self,
        api: str | int | None,
        *,
        times: int | None = 1,
        after: bool = False,
        topic: str | None = None,
        client_id: str | None = None,
    ) -> Fault:
        """Close the connection instead of handling the request. `after`: handle it, and close the
        connection instead of responding, so that the client does not know the result."""
        return self._fault("drop_answer" if after else "drop", api, times, topic, client_id)

    def _fault(
        self,
        effect: str,
        api: str | int | None,
        times: int | None,
        topic: str | None,
        client_id: str | None,
        **more: Any,
    ) -> Fault:
        order = {"effect": effect, "api": api, "times": times, "topic": topic, "client_id": client_id}
        fault = Fault(self._control, order | more)
        self._faulty = True
        return fault

    def heal(self) -> None:
        """Remove all faults; a paused broker is resumed, a stopped one is started."""
        if self.pid is None:
            self.start()
        self.resume()
        if self._faulty:
            self._control.send_command(do="heal")
            self._faulty = False

    # --- topics and records -------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic. Raises errors.BrokerError, such as TopicAlreadyExistsError."""
        kind = m.CreateTopicsRequest
        configs = [kind.CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()]
        topic = kind.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=configs
        )
        with self._connect() as connection:
            (result,) = connection.send(kind(topics=[topic]), 7).topics
        _check(result.error_code, result.error_message)

    def delete_topic(self, name: str) -> None:
        """Raises errors.BrokerError."""
        with self._connect() as connection:
            request = m.DeleteTopicsRequest(topic_names=[name], timeout_ms=int(_ANSWER_S * 1000))
            (result,) = connection.send(request, 5).responses
        _check(result.error_code, result.error_message)

    def records(self, topic: str, *, committed: bool = True) -> list[ConsumerRecord]:
        """All current records of the topic, by partition and offset. `committed`: only records of
        committed transactions. Raises errors.BrokerError."""
        with self._connect() as connection:
            return read_records(connection, topic, committed=committed)

    def wait_for_records(
        self, topic: str, count: int, *, timeout_s: float = 10.0, committed: bool = True
    ) -> list[ConsumerRecord]:
        """Wait until the topic has at least `count` records, and return them as `records` does. The topic
        may not exist yet. Raises RecordsMissing after the time-out."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                found = self.records(topic, committed=committed)
            except errors.InvalidMetadataError:
                found = []
            if len(found) >= count:
                return found
            if time.monotonic() >= deadline:
                came = "".join(f"\n  {record!r}" for record in found[-10:])
                raise RecordsMissing(f"{topic} holds {len(found)} of {count} after {timeout_s} s{came}")
            time.sleep(0.02)

    def _connect(self) -> BlockingConnection:
        return BlockingConnection(_HOST, self.port, _ANSWER_S)


def _check(code: int, message: str | None) -> None:
    if code:
        raise errors.for_code(code, message)
