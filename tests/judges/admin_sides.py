"""Apache Kafka 3.9.1 and Ottla side by side under our own admin client: the same calls have the same results.

Called by the tests of `ottla.client.admin`. A scenario is a coroutine that calls one broker and returns notes
of the results; `Sides.same` runs it on both brokers, and compares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.apache_kafka import KafkaBroker
from ottla.client.admin import AdminClient, Results
from ottla.local.brokers import BrokerProcess
from ottla.local.processes import free_port
from ottla.local.zookeeper import EmbeddedZooKeeper
from tests.judges.secured import JAAS, PLAIN_MODULE, SCRAM_MODULE

_SETTINGS = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS;User:bert",
    "delegation.token.secret.key": "the secret of all brokers",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "log.retention.check.interval.ms": "86400000",
    "log.initial.task.delay.ms": "86400000",
}
_OURS_HAS_NOT = "log.initial.task.delay.ms"


class Side(NamedTuple):
    """One broker."""

    bootstrap: str
    """Of anybody."""
    logged_in: Mapping[str, str]
    """Settings of a client that is bert."""
    disks: tuple[str, str]


Scenario = Callable[[AdminClient, Side], Awaitable[list[Any]]]


class Sides(NamedTuple):
    """Both brokers by name."""

    by_name: Mapping[str, Side]

    def same(self, scenario: Scenario) -> list[Any]:
        """The notes of both brokers, which must be the same."""

        async def call(side: Side) -> list[Any]:
            async with asyncio.timeout(120), AdminClient(bootstrap_servers=side.bootstrap) as admin:
                return await scenario(admin, side)

        async def call_all() -> dict[str, list[Any]]:
            outcomes = await asyncio.gather(*map(call, self.by_name.values()))
            return dict(zip(self.by_name, outcomes, strict=True))

        found = asyncio.run(call_all())
        differences = [
            f"{number}:\n  Ottla        {ours}\n  Apache Kafka {kafkas}"
            for number, (ours, kafkas) in enumerate(zip(found["Ottla"], found["Apache Kafka"], strict=True))
            if ours != kafkas
        ]
        assert not differences, "\n".join(differences)
        return found["Ottla"]


@contextmanager
def both_brokers(directory: Path) -> Iterator[Sides]:
    """One broker of each kind, over one ZooKeeper, each with two disks."""
    with ExitStack() as running:
        zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        running.callback(zookeeper.stop)
        zookeeper.start()
        sides, settings = {}, {}
        for name in ("Apache Kafka", "Ottla"):
            plain, sasl = free_port(), free_port()
            disks = (str(directory / name / "one"), str(directory / name / "two"))
            settings[name] = {
                **_SETTINGS,
                "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}",
                "log.dirs": ",".join(disks),
            }
            login = {
                "bootstrap.servers": f"127.0.0.1:{sasl}",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f'{PLAIN_MODULE} required username="bert" password="bert";',
            }
            sides[name] = Side(f"127.0.0.1:{plain}", login, disks)
        at = {name: int(side.bootstrap.rpartition(":")[2]) for name, side in sides.items()}
        java = KafkaBroker(
            directory / "kafka", f"{zookeeper.connect}/kafka",
            port=at["Apache Kafka"], settings=settings["Apache Kafka"],
        )  # fmt: skip
        ours = BrokerProcess(0, directory / "ottla", at["Ottla"])
        running.callback(java.stop)
        running.callback(ours.stop)
        del settings["Ottla"][_OURS_HAS_NOT]
        ours.write_properties(f"{zookeeper.connect}/ottla", settings["Ottla"])
        ours.start_and_wait()
        java.start()
        yield Sides(sides)


def outcomes(
    results: Results[Any, Any], look: Callable[[Any], Any] = lambda result: result
) -> dict[str, Any]:
    """The result of each item, converted by `look`, or the name of its error."""
    found = {str(key): look(result) for key, result in results.items()}
    return {**found, **{str(key): error.name for key, error in results.errors.items()}}


async def until(condition: Callable[[], Awaitable[object]], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
