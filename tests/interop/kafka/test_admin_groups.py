"""Groups through our admin client and consumers: Apache Kafka 3.9.1 and Ottla give the same results.

Made by the first commit, described, listed, changed and deleted; and ephemeral ones, of which nothing is
stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from confluent_kafka.admin import AdminClient as Confluent

from ottla.client import Consumer, Producer, blocking, errors
from ottla.client.admin import AdminClient, MemberToRemove, NewTopic, OffsetToCommit, TopicPartition
from tests.judges.admin_sides import Side, Sides, both_brokers, outcomes, until
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(300)
OFFSETS_PARTITIONS = 2
OFFSET_KEYS = (0, 1)
"""The versions of keys of offset commits in __consumer_offsets; 2 is a group's."""


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    needs_kafka_jars()

    async def prepare(admin: AdminClient, side: Side) -> list[Any]:
        (await admin.create_topics([NewTopic("t", 2, 1), NewTopic("u", 1, 1)])).raise_first()
        async with Producer(bootstrap_servers=side.bootstrap) as producer:
            for partition in (0, 1):
                await producer.send_and_wait("t", b"v", partition=partition)
        # Its first commit makes the topic of the offsets.
        made = await admin.alter_group_offsets("first", {TopicPartition("u", 0): 0})
        return [outcomes(made)]

    with both_brokers(tmp_path_factory.mktemp("groups")) as running:
        running.same(prepare)
        yield running


ONE, OTHER, NONE = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("nope", 0)


async def listed(admin: AdminClient, **filters: Any) -> list[Any]:
    found = (await admin.list_groups(**filters)).raise_first()
    groups = [group for share in found.values() for group in share]
    return sorted((g.group_id, g.protocol_type, g.state, g.type, g.simple) for g in groups)


def test_groups_without_members(sides: Sides) -> None:
    async def scenario(admin: AdminClient, side: Side) -> list[Any]:
        offsets = {ONE: 1, OTHER: OffsetToCommit(1, "half way", 0), NONE: 5}
        notes: list[Any] = [outcomes(await admin.alter_group_offsets("by-admin", offsets))]
        # A consumer that assigns partitions itself makes its group by its first commit, too.
        async with Consumer(bootstrap_servers=side.bootstrap, group_id="by-consumer") as consumer:
            consumer.assign([ONE])
            await consumer.commit({ONE: 1})
        notes.append(await listed(admin))
        notes.append(await listed(admin, states=["Stable"]))
        notes.append(await listed(admin, states=["Empty"], types=["classic"]))
        notes.append(await listed(admin, types=["consumer"]))
        groups = ["by-admin", "nobody's", "by-consumer", ""]
        described = await admin.describe_groups(groups, authorized_operations=True)

        def shape(group: Any) -> Any:
            return group.state, group.protocol_type, group.members, group.authorized_operations

        notes.append(outcomes(described, shape))
        wanted = {"by-admin": None, "by-consumer": [ONE, OTHER, NONE], "nobody's": None}
        notes.append(outcomes(await admin.list_group_offsets(wanted, require_stable=True)))
        notes.append(await admin.group_offsets("by-admin"))
        asked = ConsumerGroupTopicPartitions("by-admin")
        confluent = Confluent({"bootstrap.servers": side.bootstrap})
        seen = confluent.list_consumer_group_offsets([asked])["by-admin"]
        stored = (await asyncio.to_thread(seen.result, 30)).topic_partitions
        # Not its metadata: of these confluent-kafka at times reads bytes past the end, and fails.
        notes.append(sorted((tp.partition, tp.offset) for tp in stored))
        notes.append(outcomes(await admin.delete_group_offsets("by-admin", [OTHER, NONE])))
        notes.append(outcomes(await admin.delete_group_offsets("nobody's", [OTHER, NONE])))
        notes.append(await admin.group_offsets("by-admin"))
        notes.append(outcomes(await admin.delete_groups(["by-admin", "by-consumer", "nobody's", ""])))
        notes.append(await listed(admin))
        return notes

    notes = sides.same(scenario)
    assert [row[0] for row in notes[1]] == ["by-admin", "by-consumer", "first"]
    assert notes[-1] == [("first", "", "Empty", "classic", True)]


def test_groups_with_members(sides: Sides) -> None:
    async def scenario(admin: AdminClient, side: Side) -> list[Any]:
        settings = {"bootstrap.servers": side.bootstrap, "group.id": "members"}
        async with (
            Consumer(settings) as dynamic,
            Consumer(settings, group_instance_id="seat-1") as static,
        ):
            dynamic.subscribe(["t"])
            static.subscribe(["t"])

            async def shared() -> bool:
                await asyncio.gather(dynamic.poll(0.2), static.poll(0.2))
                return len(dynamic.assignment()) == len(static.assignment()) == 1

            await until(shared)
            group = await admin.describe_group("members")
            notes: list[Any] = [(group.state, group.protocol, group.protocol_type)]
            seats = [(m.group_instance_id or "", m.client_id, m.host) for m in group.members]
            notes.append(sorted(seats))
            notes.append([len(member.partitions) for member in group.members])
            assert {tp for m in group.members for tp in m.partitions} == {ONE, OTHER}
            notes.append(outcomes(await admin.alter_group_offsets("members", {ONE: 0})))
            notes.append(outcomes(await admin.delete_group_offsets("members", [ONE, TopicPartition("u", 0)])))
            notes.append(outcomes(await admin.delete_groups(["members"])))
            wrong = [MemberToRemove("seat-9"), MemberToRemove(None, "stranger")]
            notes.append(outcomes(await admin.remove_group_members("members", wrong)))
            removed = await admin.remove_group_members("members")
            notes.append(sorted(found.group_instance_id or "" for found in removed.raise_first()))
            notes.append((await admin.describe_group("members")).state)
        await admin.delete_group("members")
        notes.append((await admin.describe_group("members")).state)
        return notes

    sides.same(scenario)


async def alone_in(consumer: Consumer, admin: AdminClient, group: str) -> str:
    """The member id, once it owns both partitions."""

    async def owns_all() -> bool:
        await consumer.poll(0.2)
        return len(consumer.assignment()) == 2

    await until(owns_all)
    (member,) = (await admin.describe_group(group)).members
    return member.member_id


@pytest.mark.parametrize("more", [[], [NONE]], ids=["", "one does not exist"])
def test_apache_kafka_does_not_rewind_a_group_with_members(
    sides: Sides, group: str, more: list[TopicPartition]
) -> None:
    """It skips the tagged field, so that the request is a commit of somebody who is no member."""

    async def run() -> None:
        bootstrap = sides.by_name["Apache Kafka"].bootstrap
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "heartbeat.interval.ms": 200}
        wanted = dict.fromkeys([ONE, OTHER, *more], 0)
        async with AdminClient(bootstrap_servers=bootstrap) as admin:
            async with Consumer(settings) as consumer:
                consumer.subscribe(["t"])
                member_id = await alone_in(consumer, admin, group)
                await consumer.commit({ONE: 1})
                found = await admin.alter_group_offsets(group, wanted, live=True)
                assert dict(found) == {}
                assert found.errors.keys() == wanted.keys()
                for error in found.errors.values():
                    assert isinstance(error, errors.UnsupportedVersionError)
                    assert f"group {group} has members" in str(error)
                assert await admin.group_offsets(group) == {ONE: 1}, "nor is there one of the other partition"
                answered = consumer.metrics()["heartbeat-total"]

                async def heartbeats() -> bool:
                    await consumer.poll(0.2)
                    return bool(consumer.metrics()["heartbeat-total"] >= answered + 3)

                await until(heartbeats)  # they are answered as before
                assert await alone_in(consumer, admin, group) == member_id
                await consumer.commit({OTHER: 1})
                assert await admin.group_offsets(group) == {ONE: 1, OTHER: 1}
            # Without members it is any commit, and each partition has its own result.
            refused = dict.fromkeys(map(str, more), "UNKNOWN_TOPIC_OR_PARTITION")
            done = dict.fromkeys(map(str, (ONE, OTHER)))
            assert outcomes(await admin.alter_group_offsets(group, wanted, live=True)) == done | refused
            assert await admin.group_offsets(group) == {ONE: 0, OTHER: 0}

    asyncio.run(run())


async def commits_of(side: Side, group: str) -> int:
    """How many offsets were ever written for a group: read with confluent-kafka from the log itself."""

    def read() -> int:
        settings = {"bootstrap.servers": side.bootstrap, "group.id": "none", "enable.partition.eof": True}
        with ConfluentConsumer({**settings, "auto.offset.reset": "earliest"}) as reader:
            logs = [ConfluentTopicPartition("__consumer_offsets", p, 0) for p in range(OFFSETS_PARTITIONS)]
            reader.assign(logs)
            found, ends = 0, 0
            while ends < OFFSETS_PARTITIONS:
                record = reader.poll(30)
                assert record is not None
                if record.error():
                    ends += 1
                    continue
                key = record.key() or b""
                length = int.from_bytes(key[2:4], "big")
                found += (
                    int.from_bytes(key[:2], "big") in OFFSET_KEYS and key[4 : 4 + length] == group.encode()
                )
        return found

    return await asyncio.to_thread(read)


def test_an_ephemeral_group_shares_partitions_stores_nothing_and_is_removed(
    sides: Sides,
) -> None:
    async def scenario(admin: AdminClient, side: Side) -> list[Any]:
        settings = {
            "bootstrap.servers": side.bootstrap,
            "group.id": "passing",
            "group.ephemeral": True,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 10,
        }
        seen: list[bytes] = []
        async with Consumer(settings) as one, Consumer(settings) as other:
            one.subscribe(["t"])
            other.subscribe(["t"])

            async def shared() -> bool:
                for found in await asyncio.gather(one.poll(0.2), other.poll(0.2)):
                    seen.extend(record.value for records in found.values() for record in records)
                return len(one.assignment()) == len(other.assignment()) == 1 and len(seen) >= 2

            await until(shared)
            notes: list[Any] = [len((await admin.describe_group("passing")).members)]
            with pytest.raises(errors.IllegalStateError, match="ephemeral"):
                await one.commit()
            await one.stop()
            left = await admin.describe_group("passing")
            notes += [len(left.members), left.state != "Dead", await admin.group_offsets("passing")]

            async def took_over() -> bool:
                await other.poll(0.2)
                return len(other.assignment()) == 2

            await until(took_over)
            await other.unsubscribe()

            async def gone() -> bool:
                return (await admin.describe_group("passing")).state == "Dead"

            await until(gone)
        notes.append("passing" in [row[0] for row in await listed(admin)])
        notes += [await commits_of(side, "passing"), await commits_of(side, "first") > 0]
        return notes

    assert sides.same(scenario) == [2, 1, True, {}, False, 0, True]


def test_an_ephemeral_member_does_not_change_a_group_with_offsets(sides: Sides) -> None:
    async def scenario(admin: AdminClient, side: Side) -> list[Any]:
        (await admin.alter_group_offsets("kept", {ONE: 1})).raise_first()
        settings = {"bootstrap.servers": side.bootstrap, "group.id": "kept", "group.ephemeral": "true"}
        async with Consumer(settings, auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            # From the start, whatever is stored.
            assert (await consumer.getone()).offset == 0
        return [await admin.group_offsets("kept"), (await admin.describe_group("kept")).state]

    assert sides.same(scenario) == [{ONE: 1}, "Empty"]


def test_the_blocking_client_does_the_same(sides: Sides) -> None:
    side = sides.by_name["Ottla"]
    with blocking.AdminClient(bootstrap_servers=side.bootstrap) as admin:
        assert set(admin.list_topics()) == {"t", "u"}
        assert admin.describe_topics(["t", "nope"]).errors["nope"].name == "UNKNOWN_TOPIC_OR_PARTITION"
        assert admin.alter_group_offsets("blocked", {ONE: 1}).raise_first() == {ONE: None}
        with pytest.raises(errors.GroupIdNotFoundError):
            admin.delete_group("nobody's")
        admin.delete_group("blocked")
    with pytest.raises(errors.IllegalStateError):
        admin.list_topics()
