"""Broker ids, addresses and folders that Kafka and Ottla brokers take in turn.

Called by the tests of mixed clusters. Both kinds use the same folder, id and address; one kind may replace
the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from bench.apache_kafka import KafkaBroker
from ottla.local.brokers import BrokerProcess
from ottla.local.processes import free_port

Kind = Literal["kafka", "ottla"]


class Seat:
    """An id, an address and a folder, for a broker of either kind. `prefix`: the command that enters its host
    (`network.Host`)."""

    def __init__(
        self,
        broker: int,
        directory: Path,
        zookeeper: str,
        settings: Mapping[str, str],
        *,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        self.broker = broker
        self.directory = directory
        self.host, self.port = host, free_port()
        self._prefix = prefix
        self._kafka = KafkaBroker(
            directory,
            zookeeper,
            broker_id=broker,
            host=host,
            port=self.port,
            settings=settings,
        )
        self._ottla = BrokerProcess(broker, directory, self.port, host=host, prefix=prefix)
        self._ottla.write_properties(zookeeper, settings)
        self._properties = self._ottla.properties_file.read_text()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self, kind: Kind) -> None:
        """Starts a broker of this kind and waits until it listens."""
        if kind == "kafka":
            self._kafka.start(self._prefix)
        else:
            self._ottla.properties_file.write_text(self._properties)
            self._ottla.start_and_wait(timeout_s=120)

    def stop(self) -> None:
        """Stops the running broker by a controlled shutdown."""
        self._kafka.stop()
        assert not self._ottla.running or self._ottla.stop(timeout_s=60), "it had to be killed"

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self._kafka.kill()
        self._ottla.kill()
