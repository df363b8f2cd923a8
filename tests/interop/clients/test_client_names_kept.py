"""What docs/reference/client-names.md promises, call by call: each name of our columns is called once, on
a broker of ours, with plain tuples wherever partitions are asked for."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiokafka
import aiokafka.abc
import kafka.consumer.fetcher
import pytest

from ottla.client import AdminClient, Consumer, Producer, TopicPartition, errors
from ottla.client.admin import (
    AclBinding,
    AclFilter,
    ConfigChange,
    ConfigResource,
    ConfigType,
    ElectionType,
    Entry,
    NewTopic,
    OffsetSpec,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    Results,
    ScramUpsertion,
    TopicPartitionReplica,
)
from ottla.client.core.config import ProducerConfig
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.testing import DevBroker
from tests.selection import ROOT

pytestmark = pytest.mark.timeout(300)
PAGE = ROOT / "docs/reference/client-names.md"
T0, T1 = ("orders", 0), ("orders", 1)
"""Plain tuples, as the page has it."""


def names_of_ours(title: str) -> set[str]:
    """In the last column of the table under a title, also those after a semicolon."""
    (part,) = re.findall(rf"^## {title}\n(.*?)(?=^## )", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    rows = [line.strip("|").split("|")[-1] for line in part.splitlines() if line.startswith("|")]
    return {name for row in rows[2:] for name in re.findall(r"`(\w+)`", row)}


class TokensOfAiokafka(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    async def token(self) -> str:
        return "a.b.c"


def takes_tokens_of(provider: object) -> bool:
    """test_oauth_clients authenticates with them."""
    given = ProducerConfig.of(
        bootstrap_servers="h:1",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=provider,
    )
    return given.sasl_oauth_token_provider is provider


def table_of_differences() -> dict[str, str]:
    (part,) = re.findall(r"^## What is different\n(.*)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    rows = [line.strip("|").split("|", 1) for line in part.splitlines() if line.startswith("|")][2:]
    return {name.strip(" `"): reported.strip() for name, reported in rows}


@pytest.fixture(scope="module")
def broker() -> Iterator[DevBroker]:
    with DevBroker() as running:
        running.create_topic("orders", partitions=2)
        yield running


@asynccontextmanager
async def clients(
    broker: DevBroker, **settings: Any
) -> AsyncIterator[tuple[Producer, Consumer, AdminClient]]:
    async with (
        Producer(bootstrap_servers=broker.bootstrap) as producer,
        Consumer(bootstrap_servers=broker.bootstrap, **settings) as consumer,
        AdminClient(bootstrap_servers=broker.bootstrap) as admin,
    ):
        yield producer, consumer, admin


async def call_all(given: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    found = {}
    for name, call in given.items():
        result = call()
        found[name] = await result if inspect.isawaitable(result) else result
    return found


# --- tables of calls ---


def test_the_producers_calls(broker: DevBroker) -> None:
    async def scenario() -> None:
        settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "names"}
        producer = Producer(settings)

        async def block() -> None:
            async with producer.transaction():
                await producer.send("orders", b"in a block", partition=0)

        delivered: list[Any] = []
        try:
            called = await call_all(
                {
                    "start": producer.start,
                    "partitions_for": lambda: producer.partitions_for("orders"),
                    "leave_partition": lambda: producer.leave_partition("orders"),
                    "begin_transaction": producer.begin_transaction,
                    "send": lambda: producer.send("orders", b"one", partition=0),
                    "send_nowait": lambda: producer.send_nowait(
                        "orders", b"two", partition=0, on_delivery=lambda *outcome: delivered.append(outcome)
                    ),
                    "send_and_wait": lambda: producer.send_and_wait("orders", b"three", partition=0),
                    "send_offsets_to_transaction": lambda: producer.send_offsets_to_transaction(
                        {T0: 1, T1: 2}, "names"
                    ),
                    "flush": producer.flush,
                    "commit_transaction": producer.commit_transaction,
                    "transaction": block,
                    "metrics": producer.metrics,
                    "measurements": producer.measurements,
                }
            )
            producer.begin_transaction()
            await producer.abort_transaction()
        finally:
            await producer.stop()
        assert called.keys() | {"abort_transaction", "stop"} == names_of_ours("Producer")
        assert called["partitions_for"] == 2
        assert (await called["send"]).offset == 0
        assert called["send_and_wait"].offset == 2
        assert len(delivered) == 1, "callbacks come by themselves"
        async with AdminClient(bootstrap_servers=broker.bootstrap) as admin:
            assert await admin.group_offsets("names") == {T0: 1, T1: 2}

    asyncio.run(scenario())


def test_the_consumers_calls(broker: DevBroker) -> None:
    async def scenario() -> None:
        broker.create_topic("read", partitions=2)
        r0, r1 = ("read", 0), ("read", 1)
        async with clients(broker, group_id="readers") as (producer, consumer, _):
            for number in range(4):
                await producer.send_and_wait("read", b"%d" % number, partition=0, timestamp_ms=1000 + number)
            consumer.subscribe(["read"])
            assert consumer.subscription() == {"read"}
            await consumer.unsubscribe()
            consumer.assign([r0, r1])
            consumer.seek(r0, 0)
            called = await call_all(
                {
                    "assignment": consumer.assignment,
                    "getone": consumer.getone,
                    "position": lambda: consumer.position(r0),
                    "poll": lambda: consumer.poll(5),
                    "lag": lambda: consumer.lag(r0),
                    "commit": lambda: consumer.commit({r0: 2}),
                    "committed": lambda: consumer.committed([r0, r1]),
                    "offsets_for_times": lambda: consumer.offsets_for_times({r0: 1002, r1: 0}),
                    "beginning_offsets": lambda: consumer.beginning_offsets([r0, r1]),
                    "end_offsets": lambda: consumer.end_offsets([r0, r1]),
                    "pause": lambda: consumer.pause(r0),
                    "paused": consumer.paused,
                    "resume": lambda: consumer.resume(r0),
                    "partitions_for": lambda: consumer.partitions_for("read"),
                    "group_metadata": consumer.group_metadata,
                    "metrics": consumer.metrics,
                    "measurements": consumer.measurements,
                }
            )
            positions = {}
            for name, move in {
                "seek_to_beginning": lambda: consumer.seek_to_beginning(r0),
                "seek_to_end": lambda: consumer.seek_to_end(r0),
                "seek_to_time": lambda: consumer.seek_to_time(1003, r0),
                "seek": lambda: consumer.seek(r0, 1),
            }.items():
                move()
                positions[name] = await consumer.position(r0)
            reported: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            consumer.commit_nowait({r1: 0}, lambda *outcome: reported.set_result(outcome))
            while not reported.done():
                await consumer.poll(0.05)
            assert reported.result()[1] is None
        elsewhere = {
            "start", "stop", "subscribe", "unsubscribe", "subscription", "assign", "commit_nowait",
        }  # fmt: skip
        assert called.keys() | positions.keys() | elsewhere == names_of_ours("Consumer")
        assert called["assignment"] == {r0, r1}
        assert called["getone"].value == b"0"
        assert called["position"] == 1
        assert [record.value for record in called["poll"][r0]] == [b"1", b"2", b"3"]
        assert called["lag"] == 0
        committed = called["committed"]
        assert (committed[r0].offset, committed[r1]) == (2, None)
        times = called["offsets_for_times"]
        assert (times[r0].offset, times[r1]) == (2, None)
        assert (called["beginning_offsets"], called["end_offsets"]) == ({r0: 0, r1: 0}, {r0: 4, r1: 0})
        assert called["paused"] == {r0}
        assert called["partitions_for"] == [0, 1]
        assert called["group_metadata"].group_id == "readers"
        assert positions == {"seek_to_beginning": 0, "seek_to_end": 4, "seek_to_time": 3, "seek": 1}

    asyncio.run(scenario())


UNSERVED = errors.ClientError
"""By a broker for development, some of which are refused there; the call itself is right."""


def test_the_admin_clients_calls(broker: DevBroker) -> None:
    """Those about partitions with plain tuples; keys of what they give back are TopicPartition."""

    async def scenario() -> None:
        broker.create_topic("kept", partitions=2)
        k0, k1 = ("kept", 0), ("kept", 1)
        async with clients(broker) as (producer, _, admin):
            for number in range(4):
                await producer.send_and_wait("kept", b"%d" % number, partition=0, timestamp_ms=1000 + number)
            binding = AclBinding(
                ResourcePattern(ResourceType.TOPIC, "kept", PatternType.LITERAL),
                Entry("User:alice", "*", Operation.READ, Permission.ALLOW),
            )
            kept = ConfigResource(ConfigType.TOPIC, "kept")
            by_partition = await call_all(
                {
                    "list_offsets": lambda: admin.list_offsets({k0: OffsetSpec.LATEST, k1: 0}),
                    "alter_group_offsets": lambda: admin.alter_group_offsets("old", {k0: 3, k1: 0}),
                    "delete_group_offsets": lambda: admin.delete_group_offsets("old", [k1]),
                    "delete_records": lambda: admin.delete_records({k0: 2, k1: -1}),
                    "describe_producers": lambda: admin.describe_producers([k0, k1]),
                    "elect_leaders": lambda: admin.elect_leaders(ElectionType.PREFERRED, [k0]),
                    "alter_partition_reassignments": lambda: admin.alter_partition_reassignments({k0: [0]}),
                }
            )
            others = {
                "list_partition_reassignments": lambda: admin.list_partition_reassignments([k0, k1]),
                "list_group_offsets": lambda: admin.list_group_offsets({"old": [k0, k1], "none": None}),
                "abort_transaction": lambda: admin.abort_transaction(k0, 7, 0, 0),
                "create_topics": lambda: admin.create_topics([NewTopic("made", 1, 1)]),
                "delete_topics": lambda: admin.delete_topics(["made"]),
                "list_topics": admin.list_topics,
                "describe_topics": lambda: admin.describe_topics(["kept"]),
                "create_partitions": lambda: admin.create_partitions({"kept": 3}),
                "describe_log_dirs": admin.describe_log_dirs,
                "describe_cluster": admin.describe_cluster,
                "describe_configs": lambda: admin.describe_configs([kept]),
                "incremental_alter_configs": lambda: admin.incremental_alter_configs(
                    {kept: [ConfigChange("retention.ms", "1000")]}
                ),
                "alter_configs": lambda: admin.alter_configs({kept: {"retention.ms": "2000"}}),
                "list_groups": admin.list_groups,
                "describe_groups": lambda: admin.describe_groups(["old"]),
                "delete_groups": lambda: admin.delete_groups(["old"]),
                "remove_group_members": lambda: admin.remove_group_members("absent"),
                "create_acls": lambda: admin.create_acls([binding]),
                "describe_acls": admin.describe_acls,
                "delete_acls": lambda: admin.delete_acls([AclFilter()]),
                "describe_user_scram_credentials": admin.describe_user_scram_credentials,
                "alter_user_scram_credentials": lambda: admin.alter_user_scram_credentials(
                    [ScramUpsertion("alice", "SCRAM-SHA-256", "secret")]
                ),
                "list_transactions": admin.list_transactions,
                "describe_transactions": lambda: admin.describe_transactions(["names"]),
                "metrics": admin.metrics,
                "measurements": admin.measurements,
            }
            found: dict[str, Any] = {}
            for name, call in others.items():
                try:
                    found |= await call_all({name: call})
                except UNSERVED as problem:
                    found[name] = problem
            assert by_partition.keys() | found.keys() == names_of_ours("Administration")

            for name, results in by_partition.items():
                assert isinstance(results, Results), name
                keys = [*results, *results.errors]
                assert keys, name
                assert set(keys) <= {k0, k1}, name
                assert all(isinstance(key, TopicPartition) for key in keys), name
            assert by_partition["list_offsets"][k0].offset == 4
            assert by_partition["delete_records"] == {k0: 2, k1: 0}
            committed = found["list_group_offsets"]["old"]
            assert (committed[k0].offset, committed[k1]) == (3, None)
            assert found["list_partition_reassignments"] == {}
            many = {
                name for name in others
                if re.match(r"(create|delete|describe|list|alter|remove|incremental)_", name)
            } - {
                "list_partition_reassignments", "list_topics", "describe_cluster", "describe_acls",
            }  # fmt: skip
            refused = {name for name in found if isinstance(found[name], UNSERVED)}
            assert {name for name in many - refused if not isinstance(found[name], Results)} == set()
            assert refused <= {
                "abort_transaction", "describe_acls", "describe_user_scram_credentials",
                "remove_group_members",
            }, found  # fmt: skip

            # The calls beside those of the page take tuples as well.
            assert await admin.end_offsets([k0]) == {k0: 5}, "the marker of the abort is one"
            assert await admin.start_offsets([k0]) == {k0: 2}
            assert await admin.offsets_for_time([k0], 1003) == {k0: 3}
            replica = ("kept", 0, 0)
            where = await admin.describe_replica_log_dirs([replica])
            assert [type(key) for key in where] == [TopicPartitionReplica]
            moved = await admin.alter_replica_log_dirs({replica: where[replica].current})
            assert moved.errors == {}
            await admin.elect_preferred_leaders([k0])

    asyncio.run(scenario())


# --- what it says beside the tables ---


def test_a_record_has_the_fields_of_kafka_pythons_and_aiokafkas(broker: DevBroker) -> None:
    theirs = set(kafka.consumer.fetcher.ConsumerRecord._fields) & set(
        aiokafka.ConsumerRecord.__dataclass_fields__
    )
    named = {"topic", "partition", "offset", "key", "value", "headers", "timestamp_type"}
    assert named <= theirs

    async def scenario() -> None:
        async with clients(broker) as (producer, consumer, _):
            await producer.send_and_wait("orders", b"v", b"k", partition=1, headers=[("h", b"x")])
            consumer.assign([T1])
            consumer.seek_to_beginning(T1)
            record = await consumer.getone()
            assert (record.topic, record.partition, record.key, record.value) == ("orders", 1, b"k", b"v")
            assert list(record.headers) == [("h", b"x")]
            assert all(hasattr(record, name) for name in named)

    asyncio.run(scenario())


def test_the_differences_are_the_documented_ones(broker: DevBroker) -> None:
    async def listeners(consumer: Consumer, producer: Producer) -> None:
        reported: list[str] = []

        async def assigned(partitions: list[TopicPartition]) -> None:
            reported.append(f"assigned {sorted(map(tuple, partitions))}")

        consumer.subscribe(
            ["orders"],
            on_assigned=assigned,
            on_revoked=lambda partitions: reported.append("revoked"),
            on_lost=lambda partitions: reported.append("lost"),
        )
        while not reported:
            await consumer.poll(0.1)
        await consumer.unsubscribe()
        assert reported == [f"assigned {[T0, T1]}", "revoked"]

    async def raised(consumer: Consumer, producer: Producer) -> None:
        consumer.assign([T0])
        consumer.seek(T0, 10**6)
        with pytest.raises(errors.OffsetOutOfRangeError):
            await consumer.getone()

    async def buffer(consumer: Consumer, producer: Producer) -> None:
        async with Producer(
            bootstrap_servers=broker.bootstrap, buffer_memory=100_000, batch_size=50_000, max_block_ms=60_000
        ) as small:
            with broker.delay("PRODUCE", 0.2, times=1):
                sent = [await small.send("orders", b"x" * 40_000, partition=0) for _ in range(6)]
                assert sent[0].done(), "the later ones waited for the first"
            await small.flush()

    checks: dict[str, Callable[[Consumer, Producer], Awaitable[None]] | bool] = {
        "Rebalance listeners": listeners,
        "Errors": raised,
        "enable.idempotence": ProducerConfig.of(bootstrap_servers="h:1").enable_idempotence,
        "acks": ProducerConfig.of(bootstrap_servers="h:1").acks == -1,
        "auto.offset.reset": all(
            ConsumerConfig.of(bootstrap_servers="h:1", auto_offset_reset=reset).auto_offset_reset == reset
            for reset in ("latest", "earliest", "none")
        )
        and ConsumerConfig.of(bootstrap_servers="h:1").auto_offset_reset == "latest",
        "partitioner": bool(ProducerConfig.of(bootstrap_servers="h:1", partitioner="consistent_random")),
        "Backpressure": buffer,
        "OAuth tokens": all(takes_tokens_of(provider) for provider in (TokensOfAiokafka(), lambda: "a.b.c")),
    }
    assert checks.keys() == table_of_differences().keys()

    async def scenario() -> None:
        for name, check in checks.items():
            if isinstance(check, bool):
                assert check, name
                continue
            async with clients(broker, group_id="told", auto_offset_reset="none") as (
                producer,
                consumer,
                admin,
            ):
                await admin.alter_group_offsets("told", {T0: 0, T1: 0})
                await check(consumer, producer)

    asyncio.run(scenario())
