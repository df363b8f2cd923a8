"""Group requests to Apache Kafka 3.9.1 and to Ottla: every response is the same.

One broker of each kind; raw requests, so that invalid requests are compared as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.client.admin import AdminClient
from ottla.local.cluster import run_admin
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from tests.judges.request_recorder import (
    RequestRecorder,
    commit,
    delete_offsets,
    fetch_offsets,
    heartbeat,
    join,
    kafka_and_ottla,
    leave,
    same,
    side_by_side,
    sync,
)
from tests.oracles import needs_kafka_jars

SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "3000",
    "group.max.size": "3",
    "auto.create.topics.enable": "false",
}
TIE = ("protocol_name",)
"""Of two protocols with as many votes each, either may win: it hangs on the order of a hash map."""
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("groups")
    with kafka_and_ottla(directory, SETTINGS) as by_name:
        for port in by_name.values():
            make_topics(port)
        side_by_side(by_name, lambda recorder: recorder.wait_for_coordinator())
        yield by_name


def make_topics(port: int) -> None:
    async def make(client: AdminClient) -> None:
        await client.create_topic("t", partitions=4, replication_factor=1)
        await client.create_topic("u", partitions=1, replication_factor=1)

    run_admin([("127.0.0.1", port)], make)


async def stable_group(recorder: RequestRecorder, group: str) -> str:
    """A group of one, of client anna; returns the member's id."""
    member = str((await recorder.send("anna", join(group), 9)).member_id)
    joined = await recorder.send("anna", join(group, member), 9)
    assert joined.error_code == 0
    await recorder.send("anna", sync(group, 1, member, {member: b"all"}), 5)
    return member


def test_joins_that_are_refused(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await recorder.ask("no group id", "anna", join(""), 9)
        await recorder.ask("short session", "anna", join("r", session_ms=100), 9)
        await recorder.ask("long session", "anna", join("r", session_ms=100_000_000), 9)
        await recorder.ask("unknown member", "anna", join("r", member="zzz"), 9)
        await recorder.ask("no protocols", "anna", join("r", protocols=()), 9)
        await recorder.ask("no protocol type", "anna", join("r", kind=""), 9)
        await recorder.ask("what is left", "anna", DescribeGroupsRequest(groups=["r", ""]), 5)
        for version in (3, 4, 5):
            described = DescribeGroupsRequest(groups=["r", ""], include_authorized_operations=True)
            await recorder.ask(f"what may be done to it, v{version}", "anna", described, version)
        first = await recorder.ask("an id first, v5", "anna", join("r"), 5)
        await recorder.ask("an id first, v9", "bert", join("r"), 9)
        await recorder.ask("a pending member", "carl", DescribeGroupsRequest(groups=["r"]), 5)
        await recorder.ask("its heartbeat", "carl", heartbeat("r", 0, first.member_id), 4)
        await recorder.ask("its commit", "carl", commit("r", 0, first.member_id, 1), 8)
        await recorder.ask("it leaves", "carl", leave("r", (first.member_id, None)), 5)

    same(ports, scenario)


def test_two_members_join_and_sync(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        one = (await recorder.send("anna", join("g"), 9)).member_id
        two = (await recorder.send("bert", join("g"), 9)).member_id
        first = recorder.begin("anna", join("g", one, protocols=("range", "rr")), 9)
        await recorder.wait_for_group("g", members=1)
        second = recorder.begin("bert", join("g", two, protocols=("rr", "range")), 9)
        await recorder.wait_for_group("g", members=2)
        await recorder.ask("preparing: heartbeat", "carl", heartbeat("g", 0, one), 4)
        await recorder.ask("preparing: sync v3", "carl", sync("g", 0, one), 3)
        await recorder.ask("preparing: sync v5", "carl", sync("g", 0, one), 5)
        await recorder.ask("preparing: other protocols", "carl", join("g", protocols=("x",)), 9)
        chosen = (await first).protocol_name
        recorder.note("joined first", await first, ignoring=TIE)
        recorder.note("joined second", await second, ignoring=TIE)
        await recorder.ask("completing: describe", "carl", DescribeGroupsRequest(groups=["g"]), 4)
        await recorder.ask("completing: heartbeat", "carl", heartbeat("g", 1, one), 4)
        await recorder.ask("completing: commit", "carl", commit("g", 1, one, 1), 8)
        await recorder.ask("completing: simple commit", "carl", commit("g", -1, "", 1), 8)
        again = join("g", one, protocols=("range", "rr"))
        await recorder.ask("completing: the same join", "anna", again, 9, ignoring=TIE)
        await recorder.ask("sync: generation", "bert", sync("g", 7, two, protocol=chosen), 5)
        await recorder.ask("sync: protocol", "bert", sync("g", 1, two, protocol="nah"), 5)
        await recorder.ask("sync: type", "bert", sync("g", 1, two, protocol=chosen, kind="connect"), 5)
        await recorder.ask("sync: no protocol", "bert", sync("g", 1, two, protocol=None), 5)
        await recorder.ask("sync: member", "bert", sync("g", 1, "zz", protocol=chosen), 5)
        follower = recorder.begin("bert", sync("g", 1, two, protocol=chosen), 5)
        assigned = sync("g", 1, one, {one: b"one", "ghost": b"x"}, protocol=chosen)
        await recorder.ask("sync: leader", "anna", assigned, 5, ignoring=TIE)
        recorder.note("sync: follower, forgotten", await follower, ignoring=TIE)
        described = await recorder.group("g")
        recorder.note("stable", described, ignoring=("protocol_data",))
        await recorder.ask("stable: sync v0", "bert", sync("g", 1, two, kind=None, protocol=None), 0)
        await recorder.ask("stable: heartbeat", "anna", heartbeat("g", 1, one), 4)
        await recorder.ask("stable: heartbeat of another generation", "anna", heartbeat("g", 2, one), 4)
        await recorder.ask("stable: heartbeat of an instance", "anna", heartbeat("g", 1, one, "ii"), 4)
        await recorder.ask("heartbeat without a group id", "anna", heartbeat("", 1, one), 4)
        rejoin = join("g", two, protocols=("rr", "range"))
        await recorder.ask("stable: a follower's same join", "bert", rejoin, 9, ignoring=TIE)

    same(ports, scenario)


def test_group_max_size(ports: dict[str, int]) -> None:
    """With versions below 4, so that nobody is told an id first."""

    async def scenario(recorder: RequestRecorder) -> None:
        joins = []
        for count, client in enumerate(("anna", "bert", "carl"), 1):
            joins.append(recorder.begin(client, join("m"), 3))
            await recorder.wait_for_group("m", members=count)

        async def one_more(when: str) -> None:
            for version in (3, 9):
                await recorder.ask(f"{when}: one more, v{version}", "dora", join("m"), version)
            await recorder.ask(f"{when}: who never was", "dora", join("m", "zz"), 9)
            await recorder.ask(f"{when}: an instance", "dora", join("m", instance="i"), 9)

        await one_more("preparing")
        members = [(await joined).member_id for joined in joins]
        await one_more("completing")
        followers = [
            recorder.begin("dora", sync("m", 1, members[2]), 3),
            recorder.begin("bert", sync("m", 1, members[1]), 3),
        ]
        await recorder.send("anna", sync("m", 1, members[0], {members[0]: b"1"}), 3)
        await asyncio.gather(*followers)
        await one_more("stable")
        for label, request in (
            ("another kind", join("m", members[1], kind="connect")),
            ("another protocol", join("m", members[1], protocols=("zz",))),
            ("no protocol", join("m", members[1], protocols=())),
        ):
            await recorder.ask(label, "carl", request, 5)
        await recorder.ask("nobody leaves", "carl", leave("m"), 5)
        twice = leave("m", (members[2], None), (members[2], None))
        await recorder.ask("one leaves twice", "carl", twice, 5)
        await recorder.ask("described twice", "carl", DescribeGroupsRequest(groups=["m", "m"]), 5)

    same(ports, scenario)


def test_a_member_id_without_a_join(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        pending = (await recorder.ask("an id", "carl", join("n"), 9)).member_id
        await recorder.ask("with an instance", "carl", join("n", pending, instance="i"), 9)
        await recorder.ask("syncs", "carl", sync("n", 0, pending), 3)
        twice = DeleteGroupsRequest(groups_names=["n", "n"])
        await recorder.ask("its group is deleted", "carl", twice, 2)
        await recorder.ask("joins", "carl", join("n", pending), 9)

    same(ports, scenario)


def test_a_rebalance_and_members_that_leave(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        one = (await recorder.send("anna", join("b"), 9)).member_id
        first = recorder.begin("anna", join("b", one), 9)
        await recorder.wait_for_group("b", members=1)
        two = (await recorder.send("bert", join("b"), 9)).member_id
        second = recorder.begin("bert", join("b", two), 9)
        await asyncio.gather(first, second)
        follower = recorder.begin("bert", sync("b", 1, two), 5)
        await recorder.send("anna", sync("b", 1, one, {one: b"1", two: b"2"}), 5)
        await follower

        rejoined = recorder.begin("anna", join("b", one, topic="u"), 9)
        await recorder.wait_for_group("b", state="PreparingRebalance")
        await recorder.ask("heartbeat meanwhile", "bert", heartbeat("b", 1, two), 4)
        await recorder.ask("commit meanwhile", "bert", commit("b", 1, two, 77), 8)
        unknown = leave("b", ("zz", None), ("", None), ("", "noinst"))
        await recorder.ask("strangers leave", "carl", unknown, 5)
        await recorder.ask(
            "a stranger leaves, v0", "carl", LeaveGroupRequest(group_id="b", member_id="zz"), 0
        )
        await recorder.ask("leave no group", "carl", leave("nope", ("zz", None)), 3)
        await recorder.ask("leave without a group id", "carl", leave("", ("zz", None)), 3)
        await recorder.ask(
            "leave no group, v1", "carl", LeaveGroupRequest(group_id="nope", member_id="zz"), 1
        )
        await recorder.ask("one leaves", "bert", leave("b", (two, None)), 5)
        recorder.note("the other is alone", await rejoined)
        await recorder.ask("and syncs", "anna", sync("b", 2, one, {one: b"all"}), 5)
        pending = (await recorder.send("bert", join("b"), 9)).member_id
        await recorder.ask("a pending member leaves", "bert", leave("b", (pending, None)), 5)
        recorder.note("nothing happened", await recorder.group("b"))

    same(ports, scenario)


def test_commits_and_fetched_offsets(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        member = await stable_group(recorder, "c")
        long, longest = "x" * 4097, "x" * 4096
        for label, request, version in (
            ("good", commit("c", 1, member, 10), 8),
            ("v2", commit("c", 1, member, 11, retention_ms=100_000), 2),
            ("v1", commit("c", 1, member, 11), 1),
            ("old generation", commit("c", 0, member, 1), 8),
            ("unknown member", commit("c", 1, "x", 1), 8),
            ("no member", commit("c", -1, "", 1), 8),
            ("no generation", commit("c", -1, member, 1), 8),
            ("unknown topic", commit("c", 1, member, 1, topic="missing"), 8),
            ("unknown partition", commit("c", 1, member, 1, partition=99), 8),
            ("long metadata", commit("c", 1, member, 1, metadata=long), 8),
            ("longest metadata", commit("c", 1, member, 1, metadata=longest, partition=1), 8),
            ("null metadata", commit("c", 1, member, 5, metadata=None, partition=2), 8),
            ("no such group", commit("c-none", 3, "x", 1), 8),
            ("empty group id", commit("", -1, "", 5), 8),
            ("negative offset", commit("c-simple", -1, "", -1), 8),
            ("no members", commit("c-simple", -1, "", 3), 8),
            ("an instance", commit("c-simple", -1, "", 3, instance="i"), 8),
            ("generation 0", commit("c-simple", 0, "m", 3), 8),
        ):
            await recorder.ask(f"commit: {label}", "anna", request, version)
        for version in (1, 2, 5, 7):
            asked = fetch_offsets("c", {"t": [0, 1, 3], "missing": [0]})
            await recorder.ask(f"fetch v{version}", "anna", asked, version)
        await recorder.ask("fetch all", "anna", fetch_offsets("c", None), 7)
        await recorder.ask("fetch: no such group", "anna", fetch_offsets("nope", {"t": [0]}), 7)
        await recorder.ask("fetch all: no such group", "anna", fetch_offsets("nope", None), 7)
        await recorder.ask("fetch: empty group id", "anna", fetch_offsets("", {"t": [0]}), 7)
        row, topic = OffsetFetchRequest.OffsetFetchRequestGroup, OffsetFetchRequest.OffsetFetchRequestTopics
        two = [
            row(group_id="c-simple", topics=None),
            row(group_id="nope", topics=[topic(name="t", partition_indexes=[0])]),
        ]
        await recorder.ask("fetch of two groups", "anna", OffsetFetchRequest(groups=two), 9)

    same(ports, scenario)


def test_requests_with_repeated_or_empty_names(ports: dict[str, int]) -> None:
    def offsets(*topics: tuple[str, list[tuple[int, int]]]) -> OffsetCommitRequest:
        part, row = (
            OffsetCommitRequest.OffsetCommitRequestPartition,
            OffsetCommitRequest.OffsetCommitRequestTopic,
        )
        rows = [
            row(
                name=topic,
                partitions=[
                    part(partition_index=p, committed_offset=offset, committed_metadata="")
                    for p, offset in parts
                ],
            )
            for topic, parts in topics
        ]
        return OffsetCommitRequest(group_id="d", topics=rows)

    commits = {
        "a partition twice": offsets(("t", [(0, 1), (0, 2)])),
        "a topic twice": offsets(("t", [(0, 3)]), ("t", [(1, 4)])),
        "no partitions": offsets(("t", [])),
        "no topics": offsets(),
        "good and bad": offsets(("t", [(0, 3), (77, 1)]), ("nah", [(1, 4)]), ("t", [(78, 1)])),
    }
    asked = {
        "a partition twice": [("t", [0, 0, 1])],
        "a topic twice": [("t", [0]), ("t", [1])],
        "no partitions": [("t", []), ("u", [0])],
        "no topics": [],
    }
    old, new = OffsetFetchRequest.OffsetFetchRequestTopic, OffsetFetchRequest.OffsetFetchRequestTopics

    async def scenario(recorder: RequestRecorder) -> None:
        for version in (1, 2, 6, 9):
            for label, request in commits.items():
                await recorder.ask(f"commit v{version}: {label}", "anna", request, version)
        for label, topics in asked.items():
            rows = [old(name=name, partition_indexes=parts) for name, parts in topics]
            for version in (1, 2, 7):
                request = OffsetFetchRequest(group_id="d", topics=rows)
                await recorder.ask(f"fetch v{version}: {label}", "anna", request, version)
            group = OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id="d", topics=[new(name=name, partition_indexes=parts) for name, parts in topics]
            )
            # Without groups Kafka does not answer at all; we do.
            await recorder.ask(f"fetch v8: {label}", "anna", OffsetFetchRequest(groups=[group, group]), 8)
        row, part = (
            OffsetDeleteRequest.OffsetDeleteRequestTopic,
            OffsetDeleteRequest.OffsetDeleteRequestPartition,
        )
        doomed = [
            row(name=name, partitions=[part(partition_index=p) for p in parts])
            for name, parts in (("t", [0, 0, 88]), ("t", [1]), ("u", []), ("nah", [1]))
        ]
        await recorder.ask("delete", "anna", OffsetDeleteRequest(group_id="d", topics=doomed), 0)

    same(ports, scenario)


def test_offsets_in_zookeeper(ports: dict[str, int]) -> None:
    """Version 0 of OffsetCommit and OffsetFetch."""

    async def scenario(recorder: RequestRecorder) -> None:
        await recorder.ask("nothing yet", "anna", fetch_offsets("z", {"t": [0, 99], "missing": [0]}), 0)
        for label, request in (
            ("good", commit("z", -1, "", 10)),
            ("good again", commit("z", -1, "", 11)),
            ("negative", commit("z", -1, "", -5, partition=1)),
            ("unknown topic", commit("z", -1, "", 1, topic="missing")),
            ("unknown partition", commit("z", -1, "", 1, partition=99)),
            ("longest metadata", commit("z", -1, "", 1, metadata="x" * 4096, partition=2)),
            ("long metadata", commit("z", -1, "", 1, metadata="x" * 4097, partition=3)),
            ("null metadata", commit("z", -1, "", 2, metadata=None, partition=2)),
            ("empty group id", commit("", -1, "", 5)),
            ("a group of two folders", commit("z/y", -1, "", 5)),
            ("a slash too many", commit("z/", -1, "", 5)),
            ("upwards", commit("..", -1, "", 5)),
            ("no character of a path", commit("a\x01b", -1, "", 5)),
            ("beyond ASCII", commit("žluťoučký", -1, "", 5)),
        ):
            await recorder.ask(f"commit: {label}", "anna", request, 0)
        for group in ("z", "", "z/y", "z/", "..", "a\x01b", "žluťoučký"):
            await recorder.ask(f"fetch {group!r}", "anna", fetch_offsets(group, {"t": [0, 1, 2, 3]}), 0)
        await recorder.ask("its coordinator knows nothing", "anna", fetch_offsets("z", {"t": [0]}), 1)
        await recorder.ask("and no such group", "anna", DescribeGroupsRequest(groups=["z"]), 0)

    same(ports, scenario)


def test_groups_are_listed_and_deleted(ports: dict[str, int]) -> None:
    async def list_own(
        recorder: RequestRecorder, label: str, request: ListGroupsRequest, version: int
    ) -> None:
        answer: ListGroupsResponse = await recorder.send("anna", request, version)
        answer.groups = [group for group in answer.groups if group.group_id.startswith("l-")]
        recorder.note(label, answer)

    async def scenario(recorder: RequestRecorder) -> None:
        member = await stable_group(recorder, "l-one")
        await recorder.send("anna", commit("l-one", 1, member, 10), 8)
        await recorder.send("anna", commit("l-simple", -1, "", 3), 8)
        for version in (0, 3, 4, 5):
            await list_own(recorder, f"list v{version}", ListGroupsRequest(), version)
        await list_own(recorder, "by state", ListGroupsRequest(states_filter=["stable", "bogus"]), 4)
        await list_own(recorder, "by type", ListGroupsRequest(types_filter=["Classic"]), 5)
        await list_own(recorder, "by another type", ListGroupsRequest(types_filter=["consumer"]), 5)
        await recorder.ask("delete offsets", "anna", delete_offsets("l-one", "t", "u", "missing"), 0)
        await recorder.ask("delete offsets of no group", "anna", delete_offsets("nope", "t"), 0)
        await recorder.ask("delete offsets without a group id", "anna", delete_offsets("", "t"), 0)
        await recorder.ask("delete a simple group's offsets", "anna", delete_offsets("l-simple", "t", "u"), 0)
        recorder.note("it is gone", await recorder.group("l-simple"))
        await recorder.ask("delete", "anna", DeleteGroupsRequest(groups_names=["l-one", "nope", ""]), 2)
        await recorder.send("anna", leave("l-one", (member, None)), 5)
        await recorder.wait_for_group("l-one", state="Empty")
        await recorder.ask("delete when empty", "anna", DeleteGroupsRequest(groups_names=["l-one"]), 1)
        await recorder.ask("deleted", "anna", DescribeGroupsRequest(groups=["l-one"]), 0)

    same(ports, scenario)


def test_static_members_rejoin_and_fence_their_predecessors(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        first = recorder.begin("anna", join("s", instance="i1"), 9)
        await recorder.wait_for_group("s", members=1)
        second = recorder.begin("bert", join("s", instance="i2"), 9)
        one, two = (await first).member_id, (await second).member_id
        recorder.note("joined 1", await first)
        recorder.note("joined 2", await second)
        follower = recorder.begin("bert", sync("s", 1, two, instance="i2"), 5)
        await recorder.ask("synced 1", "anna", sync("s", 1, one, {one: b"1", two: b"2"}, instance="i1"), 5)
        recorder.note("synced 2", await follower)
        new_two = (await recorder.ask("2 comes back", "carl", join("s", instance="i2"), 9)).member_id
        await recorder.ask("fenced: heartbeat", "bert", heartbeat("s", 1, two, "i2"), 4)
        await recorder.ask("fenced: join", "bert", join("s", two, instance="i2"), 9)
        await recorder.ask("fenced: commit", "bert", commit("s", 1, two, 1, instance="i2"), 8)
        await recorder.ask("fenced: sync", "bert", sync("s", 1, two, instance="i2"), 5)
        await recorder.ask("fenced: leave", "bert", leave("s", (two, "i2")), 5)
        await recorder.ask("its id without an instance", "bert", heartbeat("s", 1, two), 4)
        await recorder.ask("another instance with its id", "bert", join("s", new_two, instance="i9"), 9)
        await recorder.ask("the new one syncs", "carl", sync("s", 1, new_two, instance="i2"), 5)
        for version in (9, 8, 6):
            back = await recorder.ask(
                f"the leader comes back, v{version}", "dora", join("s", instance="i1"), version
            )
        await recorder.ask("both leave", "anna", leave("s", ("", "i1"), ("", "i2")), 5)
        await recorder.wait_for_group("s", state="Empty")
        recorder.note("empty", await recorder.group("s"))
        await recorder.ask("no offsets", "anna", fetch_offsets("s", None), 7)
        await recorder.ask("a simple commit", "anna", commit("s", -1, "", 4), 8)
        await recorder.ask("a late commit", "anna", commit("s", 2, back.member_id, 4), 8)
        await recorder.ask("a late heartbeat", "anna", heartbeat("s", 2, back.member_id, "i1"), 4)

    same(ports, scenario)


def test_static_members_that_rejoin_during_a_rebalance(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        first = recorder.begin("anna", join("x", instance="i1"), 9)
        await recorder.wait_for_group("x", members=1)
        second = recorder.begin("bert", join("x", instance="i1"), 9)
        recorder.note("fenced while it joins", await first)
        recorder.note("its successor", await second)
        third = await recorder.ask(
            "and his, before he synced", "carl", join("x", instance="i1", topic="u"), 9
        )
        generation, member = third.generation_id, third.member_id
        assigned = sync("x", generation, member, {member: b"1"}, instance="i1")
        await recorder.ask("synced", "carl", assigned, 5)
        await recorder.ask("back with another topic", "dora", join("x", instance="i1"), 9)
        recorder.note("with the assignment that it had", await recorder.group("x"))
        more = ("rr", "range")
        back = await recorder.ask(
            "back with more protocols", "dora", join("x", instance="i1", protocols=more), 9
        )
        recorder.note("which changes the choice", await recorder.group("x"))
        member = back.member_id
        await recorder.ask("again", "dora", join("x", member, instance="i1", protocols=more), 9)
        await recorder.ask("without its instance", "dora", heartbeat("x", back.generation_id, member), 4)
        wrong = leave("x", ("zz", "i1"), (member, "i7"), ("", None))
        await recorder.ask("others leave", "dora", wrong, 5)
        await recorder.ask("it leaves", "dora", leave("x", (member, "i1")), 5)
        await recorder.ask("too late to join", "dora", join("x", member, instance="i1"), 9)
        await recorder.ask("too late to sync", "dora", sync("x", 3, member, instance="i1"), 5)

    same(ports, scenario)


def test_members_without_heartbeats_or_sync_are_removed(ports: dict[str, int]) -> None:
    async def silent(recorder: RequestRecorder) -> None:
        member = (await recorder.send("anna", join("q", session_ms=6000), 3)).member_id
        await recorder.send("anna", sync("q", 1, member, {member: b"1"}), 3)
        await recorder.wait_for_group("q", state="Empty")
        await recorder.ask("silent: a heartbeat", "anna", heartbeat("q", 1, member), 4)
        await recorder.ask("silent: a join", "anna", join("q", member), 9)
        recorder.note("silent: the group", await recorder.group("q"))

    async def without_sync(recorder: RequestRecorder) -> None:
        first = recorder.begin("bert", join("w", rebalance_ms=5000), 3)
        await recorder.wait_for_group("w", members=1)
        second = recorder.begin("carl", join("w", rebalance_ms=5000), 3)
        one, two = (await first).member_id, (await second).member_id
        await recorder.send("bert", sync("w", 1, one, {one: b"1", two: b"2"}), 3)
        # The one that synced has as long to join again: so it does at once.
        await recorder.wait_for_group("w", members=1)
        recorder.note(
            "no sync: the other is alone", await recorder.send("bert", join("w", one, rebalance_ms=5000), 3)
        )
        await recorder.ask("no sync: out", "carl", heartbeat("w", 2, two), 4)

    async def scenario(recorder: RequestRecorder) -> None:
        await asyncio.gather(silent(recorder), without_sync(recorder))

    same(ports, scenario)


def test_a_member_that_does_not_rejoin_in_time_is_dropped(ports: dict[str, int]) -> None:
    """With an old client's versions, of a group that is no consumer group."""

    async def scenario(recorder: RequestRecorder) -> None:
        for attempt in range(5):
            before, group = dict(recorder.answers), f"k{attempt}"
            slow = join(group, kind="connect", rebalance_ms=8000)
            old = (await recorder.ask("joined", "bert", slow, 3)).member_id
            await recorder.ask("synced", "bert", sync(group, 1, old, {old: b"z"}), 3)
            await recorder.ask("offsets are not its to delete", "anna", delete_offsets(group, "t"), 0)
            new = recorder.begin("carl", join(group, kind="connect", rebalance_ms=3000), 2)
            await recorder.wait_for_group(group, members=2)
            asked = await recorder.ask("it should rejoin", "bert", heartbeat(group, 1, old), 2)
            alone = await new
            if asked.error_code == ErrorCode.REBALANCE_IN_PROGRESS or attempt == 4:
                break
            recorder.answers = before  # the machine was so slow that its time was over by then: once more
        recorder.note("the new one is alone", alone)
        await recorder.ask("it was dropped", "bert", heartbeat(group, 1, old), 2)

    same(ports, scenario)
