"""The interface of a messaging system in the experiment, and its implementation for Ottla and Kafka.

Called by `python -m bench.paper`; `rabbitmq.py` and `activemq.py` have the others. A system is a context
manager. Its broker runs on the broker's core from its first instruction, in a folder of its own. Messages are
persistent, and the broker flushes them asynchronously, as in the paper.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.sides import Side
from bench.tools import consumed, consumer_command, produced, producer_command, run_client

MESSAGE_BYTES: Final = 200
BATCH: Final = 50
_RECORD_BYTES_MAX: Final = MESSAGE_BYTES + 10
_BATCH_HEADER_BYTES: Final = 61
BATCH_SIZE: Final = _BATCH_HEADER_BYTES + BATCH * _RECORD_BYTES_MAX
"""batch.size for batches of exactly 50 records in the Java producer."""
CLIENT_TIMEOUT_S: Final = 300


class Unavailable(Exception):
    """The system is not installed; the message says how to install it."""


class System(ABC):
    """A messaging system. Rates are in messages a second, measured by its client."""

    name: str
    settings: str
    """The settings, in one line for the report."""

    @abstractmethod
    def __enter__(self) -> Self:
        """Start it. Raises Unavailable."""

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    @abstractmethod
    def pids(self) -> list[int]:
        """The broker's processes."""

    @abstractmethod
    def make_queue(self, queue: str) -> None:
        """Create an empty topic or queue."""

    @abstractmethod
    def produce_singly(self, queue: str, count: int) -> float:
        """Send single messages without acknowledgements; the rate."""

    @abstractmethod
    def produce_batches(self, queue: str, count: int) -> float | None:
        """Send batches of 50 without acknowledgements; the rate, None if not supported."""

    @abstractmethod
    def produce_confirmed(self, queue: str, count: int) -> float:
        """Send batches of 50 that the broker acknowledges; the rate."""

    @abstractmethod
    def consume(self, queue: str, count: int) -> float:
        """Read the produced messages with one consumer and automatic acknowledgements; the rate."""


class KafkaSystem(System):
    """Ottla or Apache Kafka, with Kafka's own tools as clients."""

    settings = "one partition; batches of 1 and 50 with acks=0, confirmed: acks=1, five requests in flight"

    def __init__(self, side: type[Side], directory: Path) -> None:
        self._side = side(directory, 1)
        self.name = side.name

    def __enter__(self) -> Self:
        self._side.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._side.__exit__(kind, error, trace)

    @property
    def pids(self) -> list[int]:
        return self._side.pids

    def make_queue(self, queue: str) -> None:
        self._side.create_topic(queue)

    def produce_singly(self, queue: str, count: int) -> float:
        return self._produce(queue, count, "acks=0", "batch.size=1", "linger.ms=0")

    def produce_batches(self, queue: str, count: int) -> float:
        return self._produce(queue, count, "acks=0", f"batch.size={BATCH_SIZE}", "linger.ms=1000")

    def produce_confirmed(self, queue: str, count: int) -> float:
        return self._produce(queue, count, "acks=1", f"batch.size={BATCH_SIZE}", "linger.ms=1000")

    def _produce(self, queue: str, count: int, *settings: str) -> float:
        command = producer_command(
            self._side.bootstrap, queue, records=count, record_bytes=MESSAGE_BYTES, settings=settings
        )
        return produced(run_client(command, CLIENT_TIMEOUT_S), count)["records_per_s"]

    def consume(self, queue: str, count: int) -> float:
        command = consumer_command(self._side.bootstrap, queue, records=count)
        return consumed(run_client(command, CLIENT_TIMEOUT_S), count)["records_per_s"]
