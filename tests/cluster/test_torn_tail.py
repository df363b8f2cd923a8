"""A broker's last segment is torn by a crash: it is cut back to whole batches and refilled by the leader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.client.admin_types import TopicPartition
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import LocalCluster
from ottla.ports.files import OS_FILES
from ottla.protocol.records import iter_batches
from ottla.storage.log_dir_checks import check_log_dirs
from tests.judges.faults import (
    bring_back,
    cluster_for_faults,
    leader_of,
    make_the_first_lead,
    partition_of,
    present_leader,
)
from tests.judges.verify import VerifiableProducer, check_all_kept, read_topic
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    needs_kafka_jars()
    with cluster_for_faults(tmp_path_factory.mktemp("torn")) as running:
        yield running


def segments(broker: BrokerProcess, partition: int) -> list[Path]:
    return sorted((broker.data_dir / f"torn-{partition}").glob("*.log"))


def cut(segment: Path) -> None:
    """In the middle of a batch, and of its header for a small one."""
    os.truncate(segment, segment.stat().st_size * 2 // 3 + 7)


def cut_to_nothing(segment: Path) -> None:
    os.truncate(segment, 0)


def add_garbage(segment: Path) -> None:
    with segment.open("ab") as file:
        file.write(b"\xde\xad\xbe\xef" * 300)


def add_zeros(segment: Path) -> None:
    """What many file systems leave after a power cut."""
    with segment.open("ab") as file:
        file.write(bytes(4096))


def flip_a_bit(segment: Path) -> None:
    """In the records of a batch (its offset and its epoch are outside the CRC, as in Kafka); it and all
    that follow are gone."""
    content = bytearray(segment.read_bytes())
    batches = list(iter_batches(content))
    if not batches:
        return  # it was killed between a roll and the first batch
    position, header = batches[len(batches) * 2 // 3]
    content[position + header.size - 2] ^= 0x10
    segment.write_bytes(content)


DAMAGES: tuple[Callable[[Path], None], ...] = (cut, cut_to_nothing, add_garbage, add_zeros, flip_a_bit)
PARTITIONS = 3 * len(DAMAGES)


def test_torn_segments_are_truncated_and_replicated_again(cluster: LocalCluster, tmp_path: Path) -> None:
    """A broker that leads a third of the partitions and follows the others, each torn in another way."""
    # Small segments, so that there are sealed ones before the torn ones.
    settings = {"min_insync_replicas": "2", "segment_bytes": "2048"}
    cluster.create_topic("torn", partitions=PARTITIONS, replicas=3, **settings)
    # Small batches, so that all partitions get some: it goes on to the next when a batch is full.
    small = {"batch.size": "512"}
    with VerifiableProducer(
        cluster.bootstrap, "torn", tmp_path, per_second=2500, more_settings=small
    ) as producer:
        torn = cluster.brokers[present_leader(cluster, "torn")]
        cluster.wait_until(
            lambda: min(len(segments(torn, p)) for p in range(PARTITIONS)) > 1, "two segments of each"
        )
        make_the_first_lead(cluster, "torn", PARTITIONS)
        described = cluster.topic("torn")
        assert described is not None
        led = [p.partition for p in described.partitions if p.leader == torn.broker_id]
        followed = [p for p in range(PARTITIONS) if p not in led]
        torn.kill()
        # A process that is killed tears nothing that recovery would not mend.
        assert [
            str(finding) for finding in check_log_dirs(OS_FILES, [torn.data_dir]) if finding.is_error
        ] == []
        for partitions in (led, followed):
            for n, partition in enumerate(partitions):
                DAMAGES[n % len(DAMAGES)](segments(torn, partition)[-1])
        cluster.wait_until(lambda: leader_of(cluster, "torn") not in (torn.broker_id, -1), "a new leader")
        producer.wait_for_more(1000)
        torn.start()
        bring_back(cluster)
        producer.wait_for_more(500)
    assert len(led) == len(DAMAGES), "each damage was done to a leader's copy, too"
    stored = check_all_kept(producer, PARTITIONS)

    # Its own copies say the same, when it leads.
    everything = [TopicPartition("torn", p) for p in range(PARTITIONS)]
    others = [broker for broker in cluster.brokers if broker != torn.broker_id]
    order = (torn.broker_id, *others)
    moves = dict.fromkeys(everything, order)
    cluster.admin(lambda client: client.alter_partition_reassignments(moves)).raise_first()
    cluster.wait_until(
        lambda: all(partition_of(cluster, *place).replicas == order for place in everything),
        "the replicas to be in the wanted order",
    )

    def leads_everything() -> bool:
        cluster.admin(lambda client: client.elect_preferred_leaders(everything))  # where it is in sync
        return all(leader_of(cluster, *place) == torn.broker_id for place in everything)

    cluster.wait_until(leads_everything, "the torn broker to lead everything")
    assert read_topic(cluster.bootstrap, "torn", PARTITIONS, expected=stored) == stored
