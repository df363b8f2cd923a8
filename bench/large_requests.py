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
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from bench.connection import SIZE
from bench.interpreter import say_interpreter
from bench.requests import TOPIC, MeasuredBroker, measured_broker
from ottla.protocol import frames
from ottla.protocol import messages as m
from ottla.protocol.types import FieldType, Message, Struct, fields_of

MIB = 1 << 20
KEPT_AFTER_S = 1.0


class Large(NamedTuple):
    """A large request; `make(n)` has n items."""

    name: str
    version: int
    make: Callable[[int], Message]


def _large(
    version: int, kind: type[Message], values: Callable[[int], dict[str, Any]], name: str | None = None
) -> Large:
    """A request with the values of n items as plain data: a dictionary stands for a struct. `name`: by
    default that of the API."""
    return Large(name or kind.__name__.removesuffix("Request"), version, lambda n: _built(kind, values(n)))


def _built(kind: type[Struct], values: dict[str, Any]) -> Any:
    types = {field.name: field.type for field in fields_of(kind)}
    return kind(**{name: _converted(types[name], value) for name, value in values.items()})


def _converted(kind: FieldType, value: Any) -> Any:
    if isinstance(value, list) and kind.element is not None:
        return [_converted(kind.element, item) for item in value]
    return _built(kind.struct, value) if kind.struct is not None else value


def _names(n: int) -> list[str]:
    return [f"n{i:06}" for i in range(n)]


def _named(n: int, field: str = "name", **others: object) -> list[dict[str, Any]]:
    """n structs with a name of their own."""
    return [{field: name, **others} for name in _names(n)]


def _numbered(n: int, field: str = "partition_index", **others: object) -> list[dict[str, Any]]:
    """n structs with a number of their own."""
    return [{field: i, **others} for i in range(n)]


def _fetch(n: int, epoch: int) -> dict[str, Any]:
    partitions = _numbered(n, "partition", fetch_offset=0, partition_max_bytes=1)
    topics = [{"topic": "absent", "partitions": partitions}]
    return {"max_wait_ms": 100, "min_bytes": 1, "session_epoch": epoch, "topics": topics}


def _topic(field: str, partitions: object, name: str = "name") -> list[dict[str, Any]]:
    """The broker's topic, with partitions in a field."""
    return [{name: TOPIC, field: partitions}]


def _offsets(n: int) -> list[dict[str, Any]]:
    return _topic("partitions", _numbered(n, committed_offset=0, committed_metadata=""))


LARGE = [
    _large(
        9,
        m.MetadataRequest,
        lambda n: {"topics": _named(n), "allow_auto_topic_creation": False},
        "Metadata, names",
    ),
    _large(9, m.MetadataRequest, lambda n: {"topics": _named(n)}, "Metadata, names, auto-creation"),
    _large(12, m.FetchRequest, lambda n: _fetch(n, epoch=-1), "Fetch without a session"),
    _large(12, m.FetchRequest, lambda n: _fetch(n, epoch=0), "Fetch, new session"),
    _large(
        7,
        m.ListOffsetsRequest,
        lambda n: {"replica_id": -1, "topics": _topic("partitions", _numbered(n, timestamp=-1))},
        "ListOffsets, one topic",
    ),
    _large(
        7,
        m.ListOffsetsRequest,
        lambda n: {
            "replica_id": -1,
            "topics": _named(n // 2, partitions=[{"partition_index": 0, "timestamp": -1}]),
        },
        "ListOffsets, topics",
    ),
    _large(
        4,
        m.OffsetForLeaderEpochRequest,
        lambda n: {"topics": _topic("partitions", _numbered(n, "partition", leader_epoch=0), "topic")},
    ),
    _large(
        6,
        m.OffsetFetchRequest,
        lambda n: {"group_id": "g", "topics": _topic("partition_indexes", list(range(n)))},
    ),
    _large(
        8, m.OffsetFetchRequest, lambda n: {"groups": _named(n, "group_id", topics=[])}, "OffsetFetch, groups"
    ),
    _large(8, m.OffsetCommitRequest, lambda n: {"group_id": "g", "topics": _offsets(n)}),
    _large(
        0, m.OffsetDeleteRequest, lambda n: {"group_id": "g", "topics": _topic("partitions", _numbered(n))}
    ),
    _large(
        3,
        m.TxnOffsetCommitRequest,
        lambda n: {"transactional_id": "x", "group_id": "g", "topics": _offsets(n)},
    ),
    _large(
        3,
        m.AddPartitionsToTxnRequest,
        lambda n: {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_topics": _topic("partitions", list(range(n))),
        },
    ),
    _large(4, m.FindCoordinatorRequest, lambda n: {"coordinator_keys": _names(n)}),
    _large(5, m.DescribeGroupsRequest, lambda n: {"groups": _names(n)}),
    _large(2, m.DeleteGroupsRequest, lambda n: {"groups_names": _names(n)}),
    _large(4, m.ListGroupsRequest, lambda n: {"states_filter": _names(n)}),
    _large(
        6,
        m.JoinGroupRequest,
        lambda n: {
            "group_id": "g",
            "session_timeout_ms": 10_000,
            "protocol_type": "consumer",
            "protocols": _named(n, metadata=b""),
        },
    ),
    _large(4, m.SyncGroupRequest, lambda n: {"group_id": "g", "assignments": _named(n, "member_id")}),
    _large(4, m.LeaveGroupRequest, lambda n: {"group_id": "g", "members": _named(n, "member_id")}),
    _large(
        4,
        m.DescribeConfigsRequest,
        lambda n: {"resources": _named(n, "resource_name", resource_type=2, configuration_keys=[])},
        "DescribeConfigs, no such topics",
    ),
    _large(
        4,
        m.DescribeConfigsRequest,
        lambda n: {
            "resources": [{"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}]
            * (n // 100)
        },
        "DescribeConfigs, one topic again and again",
    ),
    _large(
        1,
        m.AlterConfigsRequest,
        lambda n: {"validate_only": True, "resources": _named(n, "resource_name", resource_type=2)},
    ),
    _large(
        1,
        m.IncrementalAlterConfigsRequest,
        lambda n: {"validate_only": True, "resources": _named(n, "resource_name", resource_type=2)},
    ),
    _large(
        6,
        m.CreateTopicsRequest,
        lambda n: {
            "validate_only": True,
            "topics": _named(n // 10, num_partitions=1, replication_factor=1),
        },
        "CreateTopics, validate only",
    ),
    _large(
        6,
        m.CreateTopicsRequest,
        lambda n: {
            "topics": [{"name": f"{x}!", "num_partitions": 1, "replication_factor": 1} for x in _names(n)]
        },
        "CreateTopics, no legal names",
    ),
    _large(5, m.DeleteTopicsRequest, lambda n: {"topic_names": _names(n)}),
    _large(2, m.CreatePartitionsRequest, lambda n: {"topics": _named(n, count=2, assignments=None)}),
    _large(
        2,
        m.DeleteRecordsRequest,
        lambda n: {"timeout_ms": 100, "topics": _topic("partitions", _numbered(n, offset=0))},
    ),
    _large(0, m.DescribeProducersRequest, lambda n: {"topics": _topic("partition_indexes", list(range(n)))}),
    _large(0, m.DescribeTransactionsRequest, lambda n: {"transactional_ids": _names(n)}),
    _large(0, m.ListTransactionsRequest, lambda n: {"state_filters": _names(n)}),
    _large(2, m.DescribeLogDirsRequest, lambda n: {"topics": _topic("partitions", list(range(n)), "topic")}),
    _large(
        2,
        m.AlterReplicaLogDirsRequest,
        lambda n: {"dirs": [{"path": "/x", "topics": _topic("partitions", list(range(n)))}]},
    ),
    _large(
        2,
        m.ElectLeadersRequest,
        lambda n: {
            "timeout_ms": 100,
            "topic_partitions": [{"topic": "absent", "partitions": list(range(n))}],
        },
    ),
    _large(0, m.AlterPartitionReassignmentsRequest, lambda n: {"topics": _topic("partitions", _numbered(n))}),
    _large(
        0,
        m.ListPartitionReassignmentsRequest,
        lambda n: {"topics": _topic("partition_indexes", list(range(n)))},
    ),
    _large(
        1,
        m.AlterClientQuotasRequest,
        lambda n: {
            "validate_only": True,
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": x}],
                    "ops": [{"key": "producer_byte_rate", "value": 1e9}],
                }
                for x in _names(n // 4)
            ],
        },
    ),
    _large(
        9,
        m.ProduceRequest,
        lambda n: {
            "acks": 1,
            "timeout_ms": 100,
            "topic_data": _topic("partition_data", _numbered(n, "index", records=b"")),
        },
        "Produce, no batches",
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
    say_interpreter()
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
