"""`python -m bench.large_requests`: waits of other clients while a broker serves large requests.

A broker with the in-memory store; one connection sends the largest request of an API, another one sends small
ApiVersions requests one after the other. The results are the time of the large request, the longest wait for
a small one (wall time), the maximum CPU time of the broker's event loop during one small request (which other
work on the machine does not distort), and the growth of the broker's resident memory at its peak and a second
after the response.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from bench.connection import SIZE
from bench.requests import TOPIC, MeasuredBroker, measured_broker
from ottla.protocol import frames
from ottla.protocol import messages as m
from ottla.protocol.types import Message

MIB = 1 << 20
KEPT_AFTER_S = 1.0


class Large(NamedTuple):
    """A large request; `make(n)` has n items."""

    name: str
    version: int
    make: Callable[[int], Message]


def _names(n: int) -> list[str]:
    return [f"n{i:06}" for i in range(n)]


def _fetch(n: int, *, epoch: int, known: bool = False) -> Message:
    part = m.FetchRequest.FetchPartition
    return m.FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        session_epoch=epoch,
        topics=[
            m.FetchRequest.FetchTopic(
                topic=TOPIC if known else "absent",
                partitions=[part(partition=i, fetch_offset=0, partition_max_bytes=1) for i in range(n)],
            )
        ],
    )


LARGE = [
    Large(
        "Metadata, names",
        9,
        lambda n: m.MetadataRequest(
            topics=[m.MetadataRequest.MetadataRequestTopic(name=x) for x in _names(n)],
            allow_auto_topic_creation=False,
        ),
    ),
    Large(
        "Metadata, names, auto-creation",
        9,
        lambda n: m.MetadataRequest(
            topics=[m.MetadataRequest.MetadataRequestTopic(name=x) for x in _names(n)]
        ),
    ),
    Large("Fetch without a session", 12, lambda n: _fetch(n, epoch=-1)),
    Large("Fetch, new session", 12, lambda n: _fetch(n, epoch=0)),
    Large(
        "ListOffsets, one topic",
        7,
        lambda n: m.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                m.ListOffsetsRequest.ListOffsetsTopic(
                    name=TOPIC,
                    partitions=[
                        m.ListOffsetsRequest.ListOffsetsPartition(partition_index=i, timestamp=-1)
                        for i in range(n)
                    ],
                )
            ],
        ),
    ),
    Large(
        "ListOffsets, topics",
        7,
        lambda n: m.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                m.ListOffsetsRequest.ListOffsetsTopic(
                    name=x,
                    partitions=[m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)],
                )
                for x in _names(n // 2)
            ],
        ),
    ),
    Large(
        "OffsetForLeaderEpoch",
        4,
        lambda n: m.OffsetForLeaderEpochRequest(
            topics=[
                m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                    topic=TOPIC,
                    partitions=[
                        m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=i, leader_epoch=0)
                        for i in range(n)
                    ],
                )
            ]
        ),
    ),
    Large(
        "OffsetFetch",
        6,
        lambda n: m.OffsetFetchRequest(
            group_id="g",
            topics=[
                m.OffsetFetchRequest.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=list(range(n)))
            ],
        ),
    ),
    Large(
        "OffsetFetch, groups",
        8,
        lambda n: m.OffsetFetchRequest(
            groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=x, topics=[]) for x in _names(n)]
        ),
    ),
    Large(
        "OffsetCommit",
        8,
        lambda n: m.OffsetCommitRequest(
            group_id="g",
            topics=[
                m.OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[
                        m.OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=i, committed_offset=0, committed_metadata=""
                        )
                        for i in range(n)
                    ],
                )
            ],
        ),
    ),
    Large(
        "OffsetDelete",
        0,
        lambda n: m.OffsetDeleteRequest(
            group_id="g",
            topics=[
                m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=TOPIC,
                    partitions=[
                        m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=i)
                        for i in range(n)
                    ],
                )
            ],
        ),
    ),
    Large(
        "TxnOffsetCommit",
        3,
        lambda n: m.TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="g",
            topics=[
                m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[
                        m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=i, committed_offset=0, committed_metadata=""
                        )
                        for i in range(n)
                    ],
                )
            ],
        ),
    ),
    Large(
        "AddPartitionsToTxn",
        3,
        lambda n: m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_topics=[
                m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=TOPIC, partitions=list(range(n)))
            ],
        ),
    ),
    Large("FindCoordinator", 4, lambda n: m.FindCoordinatorRequest(coordinator_keys=_names(n))),
    Large("DescribeGroups", 5, lambda n: m.DescribeGroupsRequest(groups=_names(n))),
    Large("DeleteGroups", 2, lambda n: m.DeleteGroupsRequest(groups_names=_names(n))),
    Large("ListGroups", 4, lambda n: m.ListGroupsRequest(states_filter=_names(n))),
    Large(
        "JoinGroup",
        6,
        lambda n: m.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name=x, metadata=b"") for x in _names(n)],
        ),
    ),
    Large(
        "SyncGroup",
        4,
        lambda n: m.SyncGroupRequest(
            group_id="g",
            assignments=[m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=x) for x in _names(n)],
        ),
    ),
    Large(
        "LeaveGroup",
        4,
        lambda n: m.LeaveGroupRequest(
            group_id="g", members=[m.LeaveGroupRequest.MemberIdentity(member_id=x) for x in _names(n)]
        ),
    ),
    Large(
        "DescribeConfigs, no such topics",
        4,
        lambda n: m.DescribeConfigsRequest(
            resources=[
                m.DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=2, resource_name=x, configuration_keys=[]
                )
                for x in _names(n)
            ]
        ),
    ),
    Large(
        "DescribeConfigs, one topic again and again",
        4,
        lambda n: m.DescribeConfigsRequest(
            resources=[
                m.DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=2, resource_name=TOPIC, configuration_keys=None
                )
                for _ in range(n // 100)
            ]
        ),
    ),
    Large(
        "AlterConfigs",
        1,
        lambda n: m.AlterConfigsRequest(
            validate_only=True,
            resources=[
                m.AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name=x)
                for x in _names(n)
            ],
        ),
    ),
    Large(
        "IncrementalAlterConfigs",
        1,
        lambda n: m.IncrementalAlterConfigsRequest(
            validate_only=True,
            resources=[
                m.IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name=x)
                for x in _names(n)
            ],
        ),
    ),
    Large(
        "CreateTopics, validate only",
        6,
        lambda n: m.CreateTopicsRequest(
            validate_only=True,
            topics=[
                m.CreateTopicsRequest.CreatableTopic(name=x, num_partitions=1, replication_factor=1)
                for x in _names(n // 10)
            ],
        ),
    ),
    Large(
        "CreateTopics, no legal names",
        6,
        lambda n: m.CreateTopicsRequest(
            topics=[
                m.CreateTopicsRequest.CreatableTopic(name=f"{x}!", num_partitions=1, replication_factor=1)
                for x in _names(n)
            ]
        ),
    ),
    Large("DeleteTopics", 5, lambda n: m.DeleteTopicsRequest(topic_names=_names(n))),
    Large(
        "CreatePartitions",
        2,
        lambda n: m.CreatePartitionsRequest(
            topics=[
                m.CreatePartitionsRequest.CreatePartitionsTopic(name=x, count=2, assignments=None)
                for x in _names(n)
            ]
        ),
    ),
    Large(
        "DeleteRecords",
        2,
        lambda n: m.DeleteRecordsRequest(
            timeout_ms=100,
            topics=[
                m.DeleteRecordsRequest.DeleteRecordsTopic(
                    name=TOPIC,
                    partitions=[
                        m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=i, offset=0)
                        for i in range(n)
                    ],
                )
            ],
        ),
    ),
    Large(
        "DescribeProducers",
        0,
        lambda n: m.DescribeProducersRequest(
            topics=[m.DescribeProducersRequest.TopicRequest(name=TOPIC, partition_indexes=list(range(n)))]
        ),
    ),
    Large("DescribeTransactions", 0, lambda n: m.DescribeTransactionsRequest(transactional_ids=_names(n))),
    Large("ListTransactions", 0, lambda n: m.ListTransactionsRequest(state_filters=_names(n))),
    Large(
        "DescribeLogDirs",
        2,
        lambda n: m.DescribeLogDirsRequest(
            topics=[m.DescribeLogDirsRequest.DescribableLogDirTopic(topic=TOPIC, partitions=list(range(n)))]
        ),
    ),
    Large(
        "AlterReplicaLogDirs",
        2,
        lambda n: m.AlterReplicaLogDirsRequest(
            dirs=[
                m.AlterReplicaLogDirsRequest.AlterReplicaLogDir(
                    path="/x",
                    topics=[
                        m.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(
                            name=TOPIC, partitions=list(range(n))
                        )
                    ],
                )
            ]
        ),
    ),
    Large(
        "ElectLeaders",
        2,
        lambda n: m.ElectLeadersRequest(
            timeout_ms=100,
            topic_partitions=[
                m.ElectLeadersRequest.TopicPartitions(topic="absent", partitions=list(range(n)))
            ],
        ),
    ),
    Large(
        "AlterPartitionReassignments",
        0,
        lambda n: m.AlterPartitionReassignmentsRequest(
            topics=[
                m.AlterPartitionReassignmentsRequest.ReassignableTopic(
                    name=TOPIC,
                    partitions=[
                        m.AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=i)
                        for i in range(n)
                    ],
                )
            ]
        ),
    ),
    Large(
        "ListPartitionReassignments",
        0,
        lambda n: m.ListPartitionReassignmentsRequest(
            topics=[
                m.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(
                    name=TOPIC, partition_indexes=list(range(n))
                )
            ]
        ),
    ),
    Large(
        "AlterClientQuotas",
        1,
        lambda n: m.AlterClientQuotasRequest(
            validate_only=True,
            entries=[
                m.AlterClientQuotasRequest.EntryData(
                    entity=[m.AlterClientQuotasRequest.EntityData(entity_type="user", entity_name=x)],
                    ops=[m.AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=1e9)],
                )
                for x in _names(n // 4)
            ],
        ),
    ),
    Large(
        "Produce, no batches",
        9,
        lambda n: m.ProduceRequest(
            acks=1,
            timeout_ms=100,
            topic_data=[
                m.ProduceRequest.TopicProduceData(
                    name=TOPIC,
                    partition_data=[
                        m.ProduceRequest.PartitionProduceData(index=i, records=b"") for i in range(n)
                    ],
                )
            ],
        ),
    ),
]


class Measured(NamedTuple):
    took_s: float
    longest_ms: float
    """Longest wall time of a small request."""
    loop_cpu_ms: float
    """Maximum CPU time of the event loop during one small request."""
    peak_mib: float
    kept_mib: float
    response_bytes: int


def resident(broker: MeasuredBroker) -> float:
    """Resident MiB without pages of files."""
    _, total, shared, *_ = Path(f"/proc/{broker.pid}/statm").read_text().split()
    return (int(total) - int(shared)) * 4096 / MIB


def round_trip(sock: socket.socket, frame: bytes) -> int:
    """Send a request and discard the response; its size, -1 after the connection was closed."""
    try:
        sock.sendall(frame)
        head = sock.recv(4, socket.MSG_WAITALL)
        if len(head) < 4:
            return -1
        (left,) = size = SIZE.unpack(head)
        while left:
            got = len(sock.recv(min(left, MIB)))
            if not got:
                return -1
            left -= got
        return int(size[0])
    except OSError:
        return -1


def measure(broker: MeasuredBroker, frame: bytes) -> Measured:
    small = frames.encode_request(m.ApiVersionsRequest(), 2, 1, "bystander")
    address = ("127.0.0.1", broker.port)
    with socket.create_connection(address) as bystander, socket.create_connection(address) as attacker:
        bystander.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(20):
            round_trip(bystander, small)
        before_mib = resident(broker)
        sizes: list[int] = []
        began = time.perf_counter()
        attack = threading.Thread(target=lambda: sizes.append(round_trip(attacker, frame)))
        attack.start()
        longest = loop_cpu = peak = 0.0
        ended = 0.0
        while attack.is_alive() or time.perf_counter() < ended + KEPT_AFTER_S:
            if not ended and sizes:
                ended = time.perf_counter()
            cpu, at = broker.cpu_s(), time.perf_counter()
            if round_trip(bystander, small) < 0:
                raise click.ClickException("the bystander's connection was closed")
            longest = max(longest, time.perf_counter() - at)
            loop_cpu = max(loop_cpu, broker.cpu_s() - cpu)
            peak = max(peak, resident(broker))
            time.sleep(0.001)
        attack.join()
    return Measured(
        (ended or time.perf_counter()) - began,
        longest * 1e3,
        loop_cpu * 1e3,
        peak - before_mib,
        resident(broker) - before_mib,
        sizes[0],
    )


@click.command()
@click.argument("words", nargs=-1)
@click.option("--items", default=1_000_000, show_default=True)
@click.option(
    "--against", type=click.Path(path_type=Path, exists=True), help="Measure the broker of another checkout."
)
def main(words: tuple[str, ...], items: int, against: Path | None) -> None:
    """Measure the APIs whose names have one of WORDS, or all."""
    table = Table(
        "request", "MiB", "took s", "longest wait ms", "loop held, CPU ms", "peak MiB", "kept MiB", "answer"
    )
    with ExitStack() as stack:
        stack.callback(lambda: Console(width=140).print(table))
        checkout = Path(__file__).parent.parent if against is None else against
        for large in LARGE:
            if words and not any(word.lower() in large.name.lower() for word in words):
                continue
            frame = frames.encode_request(large.make(items), large.version, 1, "large")
            with ExitStack() as one:
                directory = Path(one.enter_context(tempfile.TemporaryDirectory(prefix="ottla-bench-")))
                broker = one.enter_context(measured_broker(large.name, checkout, directory))
                got = measure(broker, frame)
            row = [large.name, f"{len(frame) / MIB:.1f}", f"{got.took_s:.1f}", f"{got.longest_ms:.0f}"]
            row += [
                f"{got.loop_cpu_ms:.0f}",
                f"{got.peak_mib:.0f}",
                f"{got.kept_mib:.0f}",
                str(got.response_bytes),
            ]
            table.add_row(*row)
            click.echo("\t".join(row))


if __name__ == "__main__":
    main()
