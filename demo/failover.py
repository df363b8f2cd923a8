"""Kills the controller, which leads partitions, and measures the failover.

Called by `demo.run`, half-way through the events; runs in a thread beside the producer. It sends SIGKILL
once; `ottla up` starts the broker again. The new process expires the former session, and registers after the
failover.
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
TARGET_WAIT_S = 30.0


class NoTarget(Exception):
    """The controller leads no partition, or there is no controller; the message says which."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The metadata of the cluster at one moment. Leader -1: none."""

    controller: int
    leaders: dict[Partition, int]
    in_sync: dict[Partition, frozenset[int]]

    def led_by(self, broker: int) -> list[Partition]:
        return sorted(partition for partition, leader in self.leaders.items() if leader == broker)

    def led_without(self, broker: int) -> bool:
        """Whether every partition has a leader other than `broker`."""
        return all(leader not in (-1, broker) for leader in self.leaders.values())

    def in_every_isr(self, broker: int) -> bool:
        return all(broker in replicas for replicas in self.in_sync.values())


def read_metadata(admin: AdminClient, topics: Sequence[str]) -> ClusterView:
    """Read the metadata. Raises KafkaException if no broker responds in time or has the topics."""
    cluster = admin.list_topics(timeout=REQUEST_S)
    leaders: dict[Partition, int] = {}
    in_sync: dict[Partition, frozenset[int]] = {}
    for topic in topics:
        if topic not in cluster.topics:
            raise KafkaException(
                KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            )  # a broker that has just started
        for number, partition in cluster.topics[topic].partitions.items():
            leaders[topic, number] = partition.leader
            in_sync[topic, number] = frozenset(partition.isrs)
    return ClusterView(cluster.controller_id, leaders, in_sync)


def target(view: ClusterView) -> int:
    """The controller. Raises NoTarget if it leads no partition."""
    if view.controller < 0:
        raise NoTarget("the cluster has no controller")
    if not view.led_by(view.controller):
        raise NoTarget(f"broker {view.controller} is the controller, but leads no partition of the demo")
    return view.controller


def broker_pid(data: Path, broker: int) -> int:
    """The process id of a broker of `ottla up`, from its pid file."""
    return int((data / "brokers" / str(broker) / "broker.pid").read_text())


@dataclass(slots=True)
class Failover:
    """The events of the failover, in seconds from the kill; None if they did not happen."""

    broker: int = -1
    led: int = 0
    controller_after: int = -1
    leaders_back_s: float | None = None
    in_sync_s: float | None = None
    problem: str = ""


class Killer:
    """Kills the broker once, then waits until it is back in every ISR."""

    def __init__(
        self, bootstrap: str, data: Path, topics: Sequence[str], clock: AckClock, log: Callable[[str], None]
    ) -> None:
        self.result = Failover()
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        self._data = data
        self._topics = topics
        self._clock = clock
        self._log = log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="failover", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the broker is back in every ISR; False after `timeout_s` or an error."""
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
            self._log(f"fail-over: {self.result.problem}")

    def _metadata_with_target(self) -> ClusterView:
        """The first metadata with a target; retries for TARGET_WAIT_S, because brokers' metadata may lag."""
        deadline_s = time.monotonic() + TARGET_WAIT_S
        while True:
            try:
                view = read_metadata(self._admin, self._topics)
                target(view)
                return view
            except (KafkaException, NoTarget):
                if time.monotonic() > deadline_s or self._stop.wait(POLL_S):
                    raise

    def _kill_and_watch(self) -> None:
        result = self.result
        view = self._metadata_with_target()
        result.broker = target(view)
        led = view.led_by(result.broker)
        result.led = len(led)
        pid = broker_pid(self._data, result.broker)
        killed_at_s = time.monotonic()
        self._clock.watch(led, killed_at_s)
        os.kill(pid, signal.SIGKILL)
        role = f"the controller, leader of {len(led)} partitions"
        self._log(f"killed broker {result.broker} (process {pid}), {role}")
        while not self._stop.wait(POLL_S) and time.monotonic() - killed_at_s < GIVE_UP_S:
            try:
                view = read_metadata(self._admin, self._topics)
            except KafkaException:
                continue  # the request went to the dead broker: retry
            after_s = time.monotonic() - killed_at_s
            if result.leaders_back_s is None:
                if not view.led_without(result.broker) or view.controller in (-1, result.broker):
                    continue
                result.leaders_back_s, result.controller_after = after_s, view.controller
                self._log(f"every partition is led again, controller {view.controller}: {after_s:.1f} s")
            if view.in_every_isr(result.broker):
                result.in_sync_s = after_s
                self._log(f"broker {result.broker} is back in every ISR: {after_s:.1f} s")
                return
        result.problem = f"broker {result.broker} was not back in every ISR after {GIVE_UP_S:.0f} s"
