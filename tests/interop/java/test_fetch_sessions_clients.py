"""Consumers that use fetch sessions, Apache Kafka's own and kafka-python, on a broker in this process.

librdkafka and aiokafka have none: they ask whole, as test_single_broker.py has them do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import kafka
import pytest

from bench.apache_kafka import run_tool
from ottla.client.admin import AdminClient
from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore
from ottla.protocol.records import Record, build_batch
from ottla.server.assembly.broker import Broker, new_event_loop
from ottla.server.dispatch.fetch_sessions import FetchSession
from tests.oracles import needs_kafka_jars

PARTITIONS, ROUNDS = 20, 3
COUNT = PARTITIONS * ROUNDS
SETTINGS = {
    "broker.id": "0",
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "86400000",  # the records are of long ago
}
pytestmark = pytest.mark.timeout(420)


def java(bootstrap: str) -> list[str]:
    arguments = ["--bootstrap-server", bootstrap, "--topic", "t", "--from-beginning"]
    ran = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        [*arguments, "--max-messages", str(COUNT), "--timeout-ms", "90000"],
        timeout_s=150,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def kafka_python(bootstrap: str) -> list[str]:
    with kafka.KafkaConsumer(
        "t",
        bootstrap_servers=bootstrap,
        group_id=None,
        auto_offset_reset="earliest",
        consumer_timeout_ms=90_000,
        fetch_max_wait_ms=100,
    ) as consumer:
        values: list[str] = []
        for message in consumer:
            values.append(message.value.decode())
            if len(values) == COUNT:
                break
    return values


@pytest.mark.parametrize("consume", [java, kafka_python])
def test_a_consumer_reads_by_fetch_session_and_continues_after_its_loss(
    tmp_path: Path, consume: Callable[[str], list[str]]
) -> None:
    if consume is java:
        needs_kafka_jars()

    async def scenario(broker: Broker) -> None:
        bootstrap = f"127.0.0.1:{broker.endpoints[0].port}"
        async with AdminClient(bootstrap_servers=[("127.0.0.1", broker.endpoints[0].port)]) as admin:
            await admin.create_topic("t", partitions=PARTITIONS, replication_factor=1)
        sent: list[str] = []
        reading = asyncio.create_task(asyncio.to_thread(consume, bootstrap))
        cache = broker.replication.purgatory.sessions
        for number in range(ROUNDS):
            for index in range(PARTITIONS):
                sent.append(f"{number}-{index}")
                batch = build_batch([Record(0, 1000, None, sent[-1].encode())])
                broker.replication.replicas.partition("t", index).append_as_leader(
                    batch, required_acks=1, now_ms=1000
                )

            def has_read(number: int = number) -> FetchSession | None:
                """The session, once it has come to the end of what there is, and gone on."""
                for session in cache._sessions.values():
                    asked = [wanted.asked.fetch_offset for wanted in session.partitions.values()]
                    if asked == [number + 1] * PARTITIONS and not session.dirty and session.epoch > 2:
                        return session
                return None

            if number < ROUNDS - 1:
                while not has_read():
                    assert not reading.done(), reading.result()
                    await asyncio.sleep(0.01)
            if number == 0:
                cache._remove(has_read())
        assert sorted(await reading) == sorted(sent)

    async def main() -> None:
        settings = {**SETTINGS, "log.dirs": str(tmp_path)}
        broker = Broker(BrokerConfig.from_properties(settings), store=MemoryStore())
        await broker.start()
        try:
            async with asyncio.timeout(200):
                await scenario(broker)
        finally:
            await broker.stop()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
