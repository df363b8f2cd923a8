"""Kills the broker that leads partitions and is the controller, and measures what the cluster makes of it.

Called by `demo.run`, half-way through the events; runs in a thread of its own beside the producer. It only
kills, once, by SIGKILL: `ottla up` starts the broker again by itself. The new process ends the session of the
dead one, and comes back only when the others have taken over.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from demo.produce import AckClock, Partition

POLL_S = 0.05
GIVE_UP_S = 240.0
REQUEST_S = 3.0
FIRST_LOOK_S = 30.0


class NoTarget(Exception):
    """No broker can be killed as the demo wants it; the message says why."""


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as its metadata tells it at one moment. A leader of -1 is none."""

    controller: int
    leaders: dict[Partition, int]
    in_sync: dict[Partition, frozenset[int]]

    def led_by(self, broker: int) -> list[Partition]:
        return sorted(partition for partition, leader in self.leaders.items() if leader == broker)

    def led_without(self, broker: int) -> bool:
        """Every partition has a leader, and it is another broker."""
        return all(leader not in (-1, broker) for leader in self.leaders.values())

    def in_every_isr(self, broker: int) -> bool:
        return all(broker in replicas for replicas in self.in_sync.values())


def look(admin: AdminClient, topics: Sequence[str]) -> View:
    """Asks the cluster; KafkaException when no broker answers in time, or knows of the topics."""
    cluster = admin.list_topics(timeout=REQUEST_S)
    leaders: dict[Partition, int] = {}
    in_sync: dict[Partition, frozenset[int]] = {}
    for topic in topics:
        if topic not in cluster.topics:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))  # this broker is new to it all
        for number, partition in cluster.topics[topic].partitions.items():
            leaders[topic, number] = partition.leader
            in_sync[topic, number] = frozenset(partition.isrs)
    return View(cluster.controller_id, leaders, in_sync)


def target(view: View) -> int:
    """The controller, if it leads a partition as well; NoTarget otherwise."""
    if view.controller < 0:
        raise NoTarget("the cluster has no controller")
    if not view.led_by(view.controller):
        raise NoTarget(f"broker {view.controller} is the controller, but leads no partition of the demo")
    return view.controller


def broker_pid(data: Path, broker: int) -> int:
    """The process that `ottla up` runs a broker in, by the pid file in the broker's folder."""
    return int((data / "brokers" / str(broker) / "broker.pid").read_text())


@dataclass(slots=True)
class Failover:
    """What happened, in seconds from the kill; None for what has not happened."""

    broker: int = -1
    led: int = 0
    controller_after: int = -1
    leaders_back_s: float | None = None
    in_sync_s: float | None = None
    problem: str = ""


class Killer:
    """Kills once, then watches until the broker is back in every ISR. `finished` is set when it is over."""

    def __init__(
        self, bootstrap: str, data: Path, topics: Sequence[str], clock: AckClock, say: Callable[[str], None]
    ) -> None:
        self.result = Failover()
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        self._data = data
        self._topics = topics
        self._clock = clock
        self._say = say
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="failover", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Until the broker is back; False if it is not by then, or something failed."""
        self._thread.join(timeout_s)
        return self.result.in_sync_s is not None

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(REQUEST_S + 1)

    def _run(self) -> None:
        try:
            self._kill_and_watch()
        except (NoTarget, OSError, ValueError, KafkaException) as error:
            self.result.problem = f"{type(error).__name__}: {error}"
            self._say(f"fail-over: {self.result.problem}")

    def _first_look(self) -> View:
        """A broker may have heard of less than the one that was asked before, and the machine may have kept a
        broker from its ZooKeeper: ask again for a while."""
        deadline_s = time.monotonic() + FIRST_LOOK_S
        while True:
            try:
                view = look(self._admin, self._topics)
                target(view)
                return view
            except (KafkaException, NoTarget):
                if time.monotonic() > deadline_s or self._stop.wait(POLL_S):
                    raise

    def _kill_and_watch(self) -> None:
        result = self.result
        view = self._first_look()
        result.broker = target(view)
        led = view.led_by(result.broker)
        result.led = len(led)
        pid = broker_pid(self._data, result.broker)
        killed_at_s = time.monotonic()
        self._clock.watch(led, killed_at_s)
        os.kill(pid, signal.SIGKILL)
        told = f"the controller, leader of {len(led)} partitions"
        self._say(f"killed broker {result.broker} (process {pid}), {told}")
        while not self._stop.wait(POLL_S) and time.monotonic() - killed_at_s < GIVE_UP_S:
            try:
                view = look(self._admin, self._topics)
            except KafkaException:
                continue  # asked the one that is dead: ask again
            after_s = time.monotonic() - killed_at_s
            if result.leaders_back_s is None:
                if not view.led_without(result.broker) or view.controller in (-1, result.broker):
                    continue
                result.leaders_back_s, result.controller_after = after_s, view.controller
                self._say(f"every partition is led again, controller {view.controller}: {after_s:.1f} s")
            if view.in_every_isr(result.broker):
                result.in_sync_s = after_s
                self._say(f"broker {result.broker} is back in every ISR: {after_s:.1f} s")
                return
        result.problem = f"broker {result.broker} was not back in every ISR after {GIVE_UP_S:.0f} s"
