"""The checks at the end of a simulated run find what is wrong with a broker's files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ottla.client import Producer
from ottla.client.admin import NewTopic
from ottla.protocol.records import Record, build_batch, parse_batch_header
from ottla.simulation.cluster import Cluster, Violation
from ottla.simulation.final_checks import check_files

TOPIC = "orders"
PATH = "/data-1/orders-0/00000000000000000000.log"


def run(damage: Callable[[Cluster], None]) -> None:
    """Write to a cluster, damage a replica, and check what the brokers leave."""
    cluster = Cluster(1)

    async def produce() -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for number in range(5):
                await producer.send_and_wait(TOPIC, b"%d" % number)

    async def scenario() -> None:
        await cluster.start()
        await cluster.admin(lambda admin: admin.create_topics([NewTopic(TOPIC, 1, 3)]))
        await cluster.in_process("producer", produce())
        await asyncio.sleep(1.0)
        damage(cluster)
        await check_files(cluster)

    cluster.run(scenario())


def test_the_files_of_a_whole_cluster_pass() -> None:
    run(lambda cluster: None)


def test_a_changed_bit_is_found() -> None:
    with pytest.raises(Violation, match=rf"files are whole: .*{PATH}: offset 1: byte 69: the checksum"):
        run(lambda cluster: cluster.machines[1].disk.flip_bit(PATH, 69 + 65, 3))


def test_replicas_with_different_records_are_found() -> None:
    def damage(cluster: Cluster) -> None:
        data = cluster.machines[1].disk.names[PATH].data
        first = parse_batch_header(data)
        data[: first.size] = build_batch(
            [Record(0, first.base_timestamp, None, b"X")], leader_epoch=first.partition_leader_epoch,
            producer_id=first.producer_id, producer_epoch=first.producer_epoch, base_sequence=0,
        )  # fmt: skip

    with pytest.raises(Violation, match="same records: offset 0 of orders-0 differs"):
        run(damage)
