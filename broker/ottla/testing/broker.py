"""The broker that a test talks to: a process of its own, whose life and failures the test decides.

Called by tests and by ottla.pytest. A process, and not a thread of the test's: it can be killed, it does not
share the test's interpreter lock, logging or coverage, and it is what clusters run. Its port, topics and
records outlive `kill` and `restart`; with the object, all is gone.

Invariants: the process ends with the one that started it, whatever happens; faults end with the process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ottla.client import errors
from ottla.client.core.types import ConsumerRecord
from ottla.local.ports import free_port
from ottla.local.processes import ChildProcess, StartFailed
from ottla.protocol import messages as m
from ottla.testing import reading
from ottla.testing.faults import ControlSocket, Fault
from ottla.testing.wire import Wire

_HOST: Final = "127.0.0.1"
_START_S: Final = 30.0
_STOP_S: Final = 10.0
_ANSWER_S: Final = 30.0
_POLL_S: Final = 0.005
_PORTS_TRIED: Final = 3
_IN_USE: Final = "Address already in use"


class RecordsMissing(AssertionError):
    """What a test waited for did not come; the message has what did."""


class DevBroker:
    """Start it by `with` or `start()`. `settings` are Kafka's, as in server.properties."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._settings = dict(settings or {})
        self._folder = tempfile.TemporaryDirectory(prefix="ottla-")
        self._path = Path(self._folder.name)
        self._control = ControlSocket(self._path / "control")
        self._process: ChildProcess | None = None
        self._paused = False
        self._faulty = False
        self.port = 0

    # --- its life -----------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """HOST:PORT, the same for as long as the object lives. Started first."""
        assert self.port, "the broker was never started"
        return f"{_HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """None while it is down."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> DevBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start, or start again on the same port with the topics and records it had; returns once it serves.

        Raises StartFailed, with the end of its log.
        """
        assert self.pid is None, "the broker runs already"
        for _ in range(_PORTS_TRIED):
            chosen = self.port or free_port(_HOST)
            if self._came_up(chosen):
                self.port = chosen
                return
            if self.port or _IN_USE not in self.log_tail():
                break
        raise StartFailed(f"the broker did not come up on port {chosen}:\n{self.log_tail()}")

    def _came_up(self, port: int) -> bool:
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
            return "bootstrap" in self._control.order(do="about")
        except OSError:
            return False

    def stop(self) -> None:
        """A shutdown in order, as for a rolling restart; `start` goes on from there."""
        if self._process is not None:
            self.resume()
            self._process.stop(_STOP_S)
            self._process = None

    def kill(self) -> None:
        """SIGKILL, as a crash would: connections break, and nobody answers until `start`."""
        if self._process is not None:
            self._process.kill()
            self._process, self._paused = None, False

    def restart(self) -> None:
        """`stop` and `start`; after `kill`, call `start` alone."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay, answers do not come, until `resume`."""
        assert self._process is not None, "the broker is down"
        self._process.signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        if self._process is not None and self._paused:
            self._process.signal(signal.SIGCONT)
            self._paused = False

    def close(self) -> None:
        """End the process and remove all it kept."""
        self.kill()
        self._folder.cleanup()

    def log_tail(self, lines: int = 15) -> str:
        """The end of what the broker logged."""
        try:
            return "\n".join((self._path / "broker.log").read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    # --- what goes wrong ----------------------------------------------------------------------------

    def fail(
        self,
        api: str | int | None,
        error: str | int,
        *,
        times: int | None = 1,
        topic: str | None = None,
        client_id: str | None = None,
    ) -> Fault:
        """Answer the next `times` requests (None: all) with an error, and do nothing of what they ask.

        `api` and `error` are Kafka's names or numbers ("PRODUCE", "NOT_LEADER_OR_FOLLOWER"); None for `api`:
        whichever comes. `topic` and `client_id` choose among requests: those that name the topic (never a
        Fetch, whose session names them once), those of one client. Raises ValueError for an unknown name.
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
        """Handle requests so much later; those behind them on their connection wait."""
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
        """Close the connection in place of handling the request; with `after`, handle it and close in place
        of the answer, so that the client cannot know whether it was done."""
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
        """Let nothing go wrong any more; a broker that was paused goes on, one that is down starts again."""
        if self.pid is None:
            self.start()
        self.resume()
        if self._faulty:
            self._control.order(do="heal")
            self._faulty = False

    # --- topics and records -------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Raises errors.BrokerError, say TopicAlreadyExistsError."""
        kind = m.CreateTopicsRequest
        configs = [kind.CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()]
        topic = kind.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=configs
        )
        with self._wire() as wire:
            (result,) = wire.ask(kind(topics=[topic]), 7).topics
        _check(result.error_code, result.error_message)

    def delete_topic(self, name: str) -> None:
        """Raises errors.BrokerError."""
        with self._wire() as wire:
            request = m.DeleteTopicsRequest(topic_names=[name], timeout_ms=int(_ANSWER_S * 1000))
            (result,) = wire.ask(request, 5).responses
        _check(result.error_code, result.error_message)

    def records(self, topic: str, *, committed: bool = True) -> list[ConsumerRecord]:
        """All that the topic holds now, by partition and offset; of transactions those committed, unless
        `committed` is False. Raises errors.BrokerError."""
        with self._wire() as wire:
            return reading.records(wire, topic, committed=committed)

    def wait_for_records(
        self, topic: str, count: int, *, timeout_s: float = 10.0, committed: bool = True
    ) -> list[ConsumerRecord]:
        """Wait until the topic holds so many, or more, and return them as `records` does. The topic need not
        be there yet. Raises RecordsMissing when the time is over."""
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

    def _wire(self) -> Wire:
        return Wire(_HOST, self.port, _ANSWER_S)


def _check(code: int, message: str | None) -> None:
    if code:
        raise errors.for_code(code, message)
