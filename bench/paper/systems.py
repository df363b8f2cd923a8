"""What the experiment asks of a system under test, and the two that speak Kafka's protocol.

Called by `python -m bench.paper`; `rabbitmq.py` and `activemq.py` have the others. A system is a context
manager, on the broker's core from its first instruction, with a folder of its own. Its messages are
persistent, and its broker writes them to disk when it likes, as in the paper ("asynchronously flush").
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
"""batch.size at which the Java producer's batches have exactly 50 records: no room for one more."""
CLIENT_TIMEOUT_S: Final = 300


class Unavailable(Exception):
    """The system cannot be had on this machine; the message says how to get it."""


class System(ABC):
    """One messaging system. Rates are in messages a second, as its client measured them."""

    name: str
    settings: str
    """What the figures mean: in a line, for the report."""

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
        """An empty topic or queue."""

    @abstractmethod
    def produce_singly(self, queue: str, count: int) -> float:
        """One message at a time, and nobody waits for an answer."""

    @abstractmethod
    def produce_batches(self, queue: str, count: int) -> float | None:
        """50 at a time, and nobody waits. None: there is no such thing."""

    @abstractmethod
    def produce_confirmed(self, queue: str, count: int) -> float:
        """50 at a time, each 50 answered for by the broker."""

    @abstractmethod
    def consume(self, queue: str, count: int) -> float:
        """One consumer, acknowledging automatically, of what was produced before."""


class KafkaLike(System):
    """Ottla or Apache Kafka, under Kafka's own tools."""

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
