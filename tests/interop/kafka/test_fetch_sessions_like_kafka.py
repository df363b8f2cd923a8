"""Fetch sessions with Apache Kafka 3.9.1 and with Ottla: every response is the same, also its order.

One broker of each kind; raw requests. Session ids and topic ids, which brokers generate, have names here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
)
from ottla.protocol.records import Record, build_batch
from ottla.protocol.types import ZERO_UUID
from ottla.wire.connection import BrokerConnection
from tests.judges.request_recorder import compare, kafka_and_ottla
from tests.oracles import needs_kafka_jars

SLOTS = 64
SETTINGS = {
    "max.incremental.fetch.session.cache.slots": str(SLOTS),
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
}
NOBODYS = UUID(int=0xABCDEF)
pytestmark = pytest.mark.timeout(420)

Where = tuple[str, int]


class FetchRecorder:
    """Requests to one broker, and its responses."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connections: dict[str, BrokerConnection] = {}
        self._ids: dict[str, UUID] = {}
        self._topics: dict[UUID, str] = {ZERO_UUID: ""}
        self._sessions: dict[str, int] = {}
        self.answers: dict[str, Any] = {}

    async def send(self, message: Any, version: int | None = None, client: str = "anna") -> Any:
        if client not in self._connections:
            self._connections[client] = await BrokerConnection.open(
                "127.0.0.1", self._port, client_id=client, timeout_s=60
            )
        return await self._connections[client].request(message, version=version)

    async def close(self) -> None:
        for session_id in self._sessions.values():
            await self.send(FetchRequest(session_id=session_id, session_epoch=-1), 16, "closer")
        for connection in self._connections.values():
            connection.close()

    async def make(self, topic: str, partitions: int = 3) -> None:
        new = CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
        while True:
            answer = await self.send(CreateTopicsRequest(topics=[new], timeout_ms=10_000), 7)
            if answer.topics[0].error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
                break
            await asyncio.sleep(0.05)  # the one of this name is on its way out
        assert answer.topics[0].error_code == 0, answer
        asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
        while True:
            [row] = (await self.send(asked, 12)).topics
            leaders = [p.leader_id for p in row.partitions]
            if len(leaders) == partitions and min(leaders) >= 0 and row.topic_id != self._ids.get(topic):
                break
            await asyncio.sleep(0.02)
        self._ids[topic] = row.topic_id
        self._topics[row.topic_id] = topic

    async def drop(self, topic: str) -> None:
        state = DeleteTopicsRequest.DeleteTopicState(name=topic)
        answer = await self.send(DeleteTopicsRequest(topics=[state], timeout_ms=10_000), 6)
        assert answer.responses[0].error_code == 0, answer
        asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
        while True:
            if (await self.send(asked, 12)).topics[0].error_code:
                break
            await asyncio.sleep(0.02)
        # The controller stops the replicas after it has taken the topic out of the metadata.
        row = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        served = ListOffsetsRequest(
            topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[row])]
        )
        while True:
            if (await self.send(served, 7)).topics[0].partitions[0].error_code:
                break
            await asyncio.sleep(0.02)

    async def produce(self, topic: str, partition: int, *values: str, client: str = "paul") -> None:
        batch = build_batch([Record(i, 1000, None, value.encode()) for i, value in enumerate(values)])
        data = ProduceRequest.PartitionProduceData(index=partition, records=batch)
        row = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
        answer = await self.send(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[row]), 9, client)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        row = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
        asked = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[row])
        answer = await self.send(DeleteRecordsRequest(topics=[asked], timeout_ms=10_000), 2)
        assert answer.topics[0].partitions[0].error_code == 0, answer

    async def fetch(
        self,
        label: str,
        session: str | int = 0,
        epoch: int = 0,
        want: Mapping[Where, int] | Iterable[tuple[Where, int]] = (),
        forget: Iterable[Where] = (),
        *,
        version: int = 16,
        replica: int = -1,
        wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        leader_epoch: int = -1,
        last_epoch: int = -1,
        committed: bool = False,
        client: str = "anna",
    ) -> None:
        """Sends a Fetch and records the response. `session` is an id, or a name for the id that is seen
        first."""
        pairs = list(want.items()) if isinstance(want, Mapping) else list(want)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=int(committed),
            session_id=self._sessions.get(session, 0) if isinstance(session, str) else session,
            session_epoch=epoch,
            topics=[
                FetchRequest.FetchTopic(
                    topic=topic,
                    topic_id=self._id(topic),
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=partition,
                            fetch_offset=offset,
                            current_leader_epoch=leader_epoch,
                            last_fetched_epoch=last_epoch,
                            partition_max_bytes=1 << 20,
                        )
                    ],
                )
                for (topic, partition), offset in pairs
            ],
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic=topic, topic_id=self._id(topic), partitions=[partition])
                for topic, partition in forget
            ],
        )
        if version >= 15:
            request.replica_state = FetchRequest.ReplicaState(replica_id=replica, replica_epoch=-1)
        else:
            request.replica_id = replica
        began = time.monotonic()
        answer: FetchResponse = await self.send(request, version, client)
        waited = time.monotonic() - began > 0.8 * wait_ms / 1000 if wait_ms else False
        if answer.session_id and isinstance(session, str):
            self._sessions[session] = answer.session_id
        assert label not in self.answers, label
        self.answers[label] = {
            "error": ErrorCode(answer.error_code).name,
            "session": self._session_name(answer.session_id),
            "waited": waited,
            "partitions": [self._row(topic, row) for topic in answer.responses for row in topic.partitions],
            "topics": len(answer.responses),
        }

    def _id(self, topic: str) -> UUID:
        return self._ids.get(topic, NOBODYS)

    def _session_name(self, session_id: int) -> str | int:
        names = [name for name, known in self._sessions.items() if known == session_id]
        return names[-1] if names and session_id else session_id

    def _row(self, topic: FetchResponse.FetchableTopicResponse, row: FetchResponse.PartitionData) -> object:
        return (
            topic.topic or self._topics.get(topic.topic_id, "nobody's"),
            row.partition_index,
            ErrorCode(row.error_code).name,
            ("hw", row.high_watermark, "lso", row.last_stable_offset, "start", row.log_start_offset),
            ("aborted", row.aborted_transactions, "replica", row.preferred_read_replica),
            ("diverging", row.diverging_epoch.epoch, row.diverging_epoch.end_offset),
            ("leader", row.current_leader.leader_id, row.current_leader.leader_epoch),
            None if row.records is None else len(row.records),
        )


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("fetches")
    with kafka_and_ottla(directory, SETTINGS) as by_name:
        yield by_name


def same(
    ports: dict[str, int], scenario: Callable[[FetchRecorder], Coroutine[Any, Any, None]]
) -> dict[str, Any]:
    """Runs the scenario on both brokers; returns the responses, which must be the same."""

    async def record(port: int) -> dict[str, object]:
        recorder = FetchRecorder(port)
        try:
            async with asyncio.timeout(420):
                await scenario(recorder)
        finally:
            await recorder.close()
        return recorder.answers

    async def both() -> list[dict[str, object]]:
        return list(await asyncio.gather(*[record(port) for port in ports.values()]))

    return compare(dict(zip(ports, asyncio.run(both()), strict=True)))


@pytest.mark.parametrize("version", [7, 11, 12, 13, 15, 17])
def test_a_fetch_session_from_creation_to_close(ports: dict[str, int], version: int) -> None:
    topic = f"life{version}"

    async def scenario(recorder: FetchRecorder) -> None:
        v: dict[str, Any] = {"version": version}
        await recorder.make(topic)
        a, b, c = [(topic, n) for n in range(3)]
        await recorder.produce(topic, 1, "one", "two")
        await recorder.fetch("a full fetch", "s", 0, {a: 0, b: 0, c: 0}, **v)
        await recorder.fetch("the same data again", "s", 1, **v)
        await recorder.fetch("nothing beyond", "s", 2, {b: 2}, **v)
        await recorder.fetch("nothing new", "s", 3, **v)
        await recorder.produce(topic, 2, "three")
        await recorder.fetch("what came", "s", 4, **v)
        await recorder.fetch("no more", "s", 5, {c: 1}, **v)
        await recorder.produce(topic, 0, "four")
        await recorder.fetch("forgotten, and news of it", "s", 6, forget=[a], **v)
        await recorder.fetch("taken up again", "s", 7, {a: 0}, **v)
        await recorder.fetch("wanted and forgotten at once", "s", 8, {a: 1}, forget=[a], **v)
        await recorder.fetch("forgotten twice", "s", 9, forget=[a, (topic, 9)], **v)
        await recorder.fetch("all forgotten", "s", 10, forget=[b, c], **v)
        await recorder.fetch("and so ended", "s", 11, **v)

    answers = same(ports, scenario)
    assert [row[1] for row in answers["what came"]["partitions"]] == [2]
    assert answers["nothing new"]["partitions"] == []
    assert answers["all forgotten"]["session"] == 0


def test_versions_before_sessions(ports: dict[str, int]) -> None:
    async def scenario(recorder: FetchRecorder) -> None:
        await recorder.make("early")
        await recorder.produce("early", 0, "one")
        for version in (4, 5, 6):
            await recorder.fetch(f"v{version}", 0, -1, {("early", 0): 0, ("early", 1): 0}, version=version)

    same(ports, scenario)


def test_wrong_epochs_and_ids(ports: dict[str, int]) -> None:
    async def scenario(recorder: FetchRecorder) -> None:
        await recorder.make("epochs")
        want = {("epochs", 0): 0, ("epochs", 1): 0}
        for version in (12, 16):
            v: dict[str, Any] = {"version": version}
            s = f"s{version}"
            await recorder.fetch(f"{s} unknown id", 12345, 1, **v)
            await recorder.fetch(f"{s} no id", 0, 7, want, **v)
            await recorder.fetch(f"{s} begins", s, 0, want, **v)
            await recorder.fetch(f"{s} too late", s, 3, **v)
            await recorder.fetch(f"{s} goes on", s, 1, **v)
            await recorder.fetch(f"{s} again", s, 1, **v)
            await recorder.fetch(f"{s} a strange epoch", s, -2, **v)
            await recorder.fetch(f"{s} still there", s, 2, **v)
            other = 12 if version >= 13 else 13
            await recorder.fetch(f"{s} in version {other}", s, 3, version=other)
            await recorder.fetch(f"{s} after the wrong version", s, 3, **v)
            await recorder.fetch(f"{s} ends", s, -1, want, **v)
            await recorder.fetch(f"{s} has ended", s, 4, **v)
            await recorder.fetch(f"{s} begins a second time", f"{s}-2", 0, want, **v)
            await recorder.fetch(f"{s} begins over it", f"{s}-2", 0, {("epochs", 2): 0}, **v)
            await recorder.fetch(f"{s} begins with nothing", f"{s}-3", 0, **v)
            await recorder.fetch(f"{s} and is empty", f"{s}-3", 1, **v)
            await recorder.fetch(f"{s} no session", 0, -1, want, **v)
            await recorder.fetch(f"{s} the last ends", f"{s}-2", -1, **v)

    answers = same(ports, scenario)
    assert answers["s12 again"]["error"] == "INVALID_FETCH_SESSION_EPOCH"
    assert answers["s16 in version 12"]["error"] == "FETCH_SESSION_TOPIC_ID_ERROR"


def test_errors_are_returned_until_they_are_resolved(ports: dict[str, int]) -> None:
    async def scenario(recorder: FetchRecorder) -> None:
        await recorder.make("wrong")
        await recorder.produce("wrong", 0, "one")
        for version in (11, 16):
            v: dict[str, Any] = {"version": version}
            s = f"s{version}"
            want = {("none", 0): 0, ("wrong", 7): 0, ("wrong", 0): 99, ("wrong", 1): 0, ("wrong", 2): -5}
            await recorder.fetch(f"{s} full", s, 0, want, **v)
            await recorder.fetch(f"{s} said again", s, 1, **v)
            await recorder.fetch(f"{s} set right", s, 2, {("wrong", 0): 0, ("wrong", 2): 0}, **v)
            await recorder.fetch(f"{s} what is left", s, 3, {("wrong", 0): 1}, **v)
            await recorder.fetch(f"{s} epoch ahead", s, 4, {("wrong", 0): 1}, leader_epoch=5, **v)
            await recorder.fetch(f"{s} still ahead", s, 5, **v)
            await recorder.fetch(f"{s} epoch right", s, 6, {("wrong", 0): 1}, leader_epoch=0, **v)
            await recorder.fetch(f"{s} nothing", s, 7, forget=[("none", 0), ("wrong", 7)], **v)
            await recorder.fetch(f"{s} end", s, -1, **v)
            await recorder.fetch(f"{s} only the unknown", 0, -1, {("none", 0): 0}, wait_ms=25_000, **v)

    same(ports, scenario)


def test_partitions_are_served_in_turn(ports: dict[str, int]) -> None:
    async def scenario(recorder: FetchRecorder) -> None:
        await recorder.make("turns", 4)
        for partition in range(4):
            await recorder.produce("turns", partition, "x" * 100)
        want = {("turns", n): 0 for n in (2, 0, 3, 1)}
        for epoch in range(6):
            await recorder.fetch(f"room for one {epoch}", "s", epoch, want if epoch == 0 else {}, max_bytes=1)
        await recorder.fetch("room for two", "s", 6, max_bytes=350)
        await recorder.fetch("room for all", "s", 7)
        await recorder.fetch("end", "s", -1)

    answers = same(ports, scenario)
    first = [answers[f"room for one {n}"]["partitions"][0][1] for n in range(5)]
    assert len(set(first)) > 2, "not always the same one first"


def test_a_fetch_session_request_that_waits(ports: dict[str, int]) -> None:
    async def scenario(recorder: FetchRecorder) -> None:
        await recorder.make("waits")
        want = {("waits", n): 0 for n in range(3)}
        await recorder.fetch("begins", "s", 0, want)
        await recorder.fetch("in vain", "s", 1, wait_ms=300)
        fetch = asyncio.create_task(recorder.fetch("woken", "s", 2, wait_ms=20_000, client="bert"))
        await asyncio.sleep(0.1)  # nothing shows that it waits; one that comes late has the same answer
        await recorder.produce("waits", 1, "one")
        await fetch
        await recorder.fetch(
            "no hurry for the unknown", "s", 3, {("none", 0): 0, ("waits", 1): 1}, wait_ms=300
        )
        much = recorder.fetch("much", "s", 4, wait_ms=20_000, min_bytes=220, client="bert")
        fetch = asyncio.create_task(much)
        await asyncio.sleep(0.1)  # as above
        await recorder.produce("waits", 0, "x" * 20)
        await recorder.produce("waits", 2, "y" * 20)
        await recorder.produce("waits", 0, "z" * 20)
        await fetch
        await recorder.fetch("end", "s", -1)
        ends = {("waits", 0): 2, ("waits", 1): 1, ("waits", 2): 1}
        begun = {("waits", 0): 2, ("waits", 2): 1}
        await recorder.fetch("as carl, who is connected then", 0, -1, {("waits", 0): 0}, client="carl")
        await recorder.fetch("begins again", "o", 0, ends)
        fetch = asyncio.create_task(recorder.fetch("overtaken", "o", 1, begun, wait_ms=20_000, client="bert"))
        while True:
            await recorder.fetch("overtakes", "o", 2, client="carl")
            if recorder.answers["overtakes"]["error"] == "NONE":
                break  # the broker has read the other one
            del recorder.answers["overtakes"]
            await asyncio.sleep(0.02)
        await recorder.produce("waits", 1, "the end of the wait")
        await fetch
        await recorder.fetch("the end", "o", -1)

    answers = same(ports, scenario)
    assert answers["woken"]["waited"] is False
    assert answers["no hurry for the unknown"]["waited"] is True
    assert answers["overtaken"]["error"] == "INVALID_FETCH_SESSION_EPOCH"


def test_a_fetch_without_partitions_does_not_wait(ports: dict[str, int]) -> None:
    async def scenario(recorder: FetchRecorder) -> None:
        await recorder.make("quick", 1)
        await recorder.fetch("nothing at all", 0, -1, wait_ms=25_000)
        await recorder.fetch("begins", "s", 0, {("quick", 0): 0})
        await recorder.fetch("all is forgotten", "s", 1, forget=[("quick", 0)], wait_ms=25_000)
        await recorder.fetch("begins anew", "t", 0, {("quick", 0): 0})
        await recorder.fetch("ends", "t", -1, wait_ms=25_000)

    assert not any(answer["waited"] for answer in same(ports, scenario).values())


def test_a_topic_that_is_deleted_and_created_again(ports: dict[str, int]) -> None:
    async def scenario(recorder: FetchRecorder) -> None:
        await recorder.make("stays", 1)
        for version in (12, 16):
            v: dict[str, Any] = {"version": version}
            topic = f"phoenix{version}"
            await recorder.make(topic, 1)
            await recorder.produce(topic, 0, "one")
            await recorder.fetch(
                f"v{version} before", f"s{version}", 0, {(topic, 0): 1, ("stays", 0): 0}, **v
            )
            await recorder.fetch(f"v{version} nothing", f"s{version}", 1, **v)
            await recorder.drop(topic)
            await recorder.fetch(f"v{version} deleted", f"s{version}", 2, **v)
            await recorder.make(topic, 1)
            await recorder.fetch(f"v{version} made again", f"s{version}", 3, **v)
            await recorder.fetch(f"v{version} taken up", f"s{version}", 4, {(topic, 0): 0}, **v)
            await recorder.produce(topic, 0, "two", "three")
            await recorder.fetch(f"v{version} news", f"s{version}", 5, **v)
            await recorder.fetch(f"v{version} end", f"s{version}", -1, **v)

    same(ports, scenario)


def test_read_committed(ports: dict[str, int]) -> None:
    async def scenario(recorder: FetchRecorder) -> None:
        await recorder.make("committed")
        await recorder.produce("committed", 0, "one")
        want = {("committed", 0): 0, ("committed", 1): 0, ("committed", 2): 9, ("none", 0): 0}
        for version in (4, 11, 16):
            await recorder.fetch(f"v{version}", f"s{version}", 0 if version > 6 else -1, want,
                              committed=True, version=version)  # fmt: skip
            await recorder.fetch(f"v{version} end", f"s{version}", -1, version=version)

    same(ports, scenario)


def test_a_changed_log_start_offset_is_returned(ports: dict[str, int]) -> None:
    async def scenario(recorder: FetchRecorder) -> None:
        await recorder.make("start")
        await recorder.produce("start", 0, "one", "two", "three")
        await recorder.fetch("full", "s", 0, {("start", 0): 3, ("start", 1): 0})
        await recorder.fetch("nothing", "s", 1)
        await recorder.delete_before("start", 0, 2)
        await recorder.fetch("moved", "s", 2)
        await recorder.fetch("nothing more", "s", 3)

    answers = same(ports, scenario)
    assert len(answers["moved"]["partitions"]) == 1


def test_a_diverging_epoch_is_returned_until_it_is_resolved(ports: dict[str, int]) -> None:
    async def scenario(recorder: FetchRecorder) -> None:
        await recorder.make("parts")
        await recorder.produce("parts", 0, "one", "two")
        ahead = {("parts", 0): 5}
        await recorder.fetch("full", "s", 0, ahead, last_epoch=0)
        await recorder.fetch("said again", "s", 1)
        await recorder.fetch("an epoch to come", "s", 2, {("parts", 0): 2}, last_epoch=4)
        await recorder.fetch("truncated", "s", 3, {("parts", 0): 2}, last_epoch=0)
        await recorder.fetch("nothing more", "s", 4)
        await recorder.fetch("does not wait", 0, -1, ahead, last_epoch=0, wait_ms=25_000)

    answers = same(ports, scenario)
    assert answers["full"]["partitions"][0][5] == ("diverging", 0, 2)


def test_the_same_partition_twice(ports: dict[str, int]) -> None:
    async def scenario(recorder: FetchRecorder) -> None:
        await recorder.make("twice")
        await recorder.produce("twice", 0, "one", "two")
        pairs = [(("twice", 0), 9), (("twice", 1), 0), (("twice", 0), 2)]
        await recorder.fetch("full", "s", 0, pairs)
        await recorder.fetch("incremental", "s", 1, [(("twice", 0), 9), (("twice", 0), 0)])
        await recorder.fetch("end", "s", -1)

    same(ports, scenario)


def test_a_full_cache(ports: dict[str, int]) -> None:
    """Kafka has eight shards: what goes is only the same in number, and if all are of one size."""

    async def scenario(recorder: FetchRecorder) -> None:
        await recorder.make("full")
        want = {("full", 0): 0}
        for n in range(SLOTS):
            await recorder.fetch(f"consumer {n}", f"s{n}", 0, want)
        await recorder.fetch("one too many", "late", 0, {("full", 0): 0, ("full", 1): 0})
        await recorder.fetch("a follower", "f0", 0, want, replica=7)
        await recorder.fetch("another", "f1", 0, want, replica=8)
        gone = 0
        for n in range(SLOTS):
            await recorder.fetch(f"consumer {n} goes on", f"s{n}", 1)
            answer: Any = recorder.answers.pop(f"consumer {n} goes on")
            gone += answer["error"] == "FETCH_SESSION_ID_NOT_FOUND"
            await recorder.fetch(f"consumer {n} ends", f"s{n}", -1)
        recorder.answers["evicted"] = gone
        for n in range(2):
            await recorder.fetch(f"follower {n} goes on", f"f{n}", 1, replica=7 + n)
            await recorder.fetch(f"follower {n} ends", f"f{n}", -1, replica=7 + n)

    answers = same(ports, scenario)
    assert answers["one too many"]["session"] == 0
    assert answers["evicted"] == 2
