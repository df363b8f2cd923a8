"""Repeated Fetch requests are answered as the handler answers them: the same sequence of requests goes to a
broker that remembers them and to one that does not, and responses, sessions and counters are compared."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

import pytest

from ottla.protocol import codec, frames
from ottla.protocol.messages import FetchRequest, FetchResponse
from ottla.protocol.records import ControlType, Record, build_batch, build_control_batch
from ottla.protocol.types import ZERO_UUID
from ottla.security.acls import AclBinding, Entry, Operation, Permission, ResourcePattern, ResourceType
from ottla.server.dispatch.counters import TopicCount
from ottla.server.dispatch.fetch_sessions import FetchSession
from ottla.server.handlers.fetch.repeated import RepeatedFetches
from tests.worlds.running_broker import RunningBroker, run
from tests.worlds.sent_responses import Sent

TOPIC, PARTITIONS, REQUESTS = "t", 2, 400
AUTHORIZED = 3
"""The seed whose brokers have an authorizer, which denies the topic for the last quarter of the requests."""
AUTHORIZER = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
DENIED = AclBinding(
    ResourcePattern(ResourceType.TOPIC, TOPIC),
    Entry("User:ANONYMOUS", "*", Operation.READ, Permission.DENY),
)
NOW_MS = 1_700_000_000_000
SIZES = ((1, 40), (1000, 3000), (4000, 6000), (20_000, 40_000))
"""Ranges of the values: copied into a response, a part of their own, a range of a file."""


class Consumer:
    """A random sequence of Fetch requests, most of which continue one session, or none."""

    def __init__(self, seed: int, running: RunningBroker, topic_id: UUID) -> None:
        self.source = random.Random(seed)
        self.running = running
        self.topic_id = topic_id
        self.session_id = self.session_epoch = 0
        self.version = 12
        self.change_limits()
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()
        """The partitions with an open transaction."""

    def change_limits(self) -> None:
        source = self.source
        self.min_bytes = source.choice((1, 1, 1, 50_000))
        self.max_bytes = source.choice((50 << 20, 50 << 20, 10))
        self.partition_max_bytes = source.choice((1 << 20, 30_000, 100))
        self.isolation_level = source.randrange(2)
        self.rack = source.choice(("", "r"))

    def append(self) -> None:
        """A batch of some records; some are of transactions, which are aborted or committed later."""
        source = self.source
        index = source.randrange(PARTITIONS)
        partition = self.running.broker.replication.replicas.partition(TOPIC, index)
        partition.log.verifies = False
        value = source.randbytes(source.randrange(*source.choice(SIZES)))
        records = [Record(i, NOW_MS, b"k", value) for i in range(source.choice((1, 1, 5)))]
        batch = build_batch(records)
        if source.random() < 0.1:
            sequence = self.sequences.get(index, 0)
            self.sequences[index] = sequence + len(records)
            self.open.add(index)
            batch = build_batch(
                records, transactional=True, producer_id=7, producer_epoch=0, base_sequence=sequence
            )
        elif index in self.open and source.random() < 0.5:
            self.open.discard(index)
            outcome = source.choice((ControlType.ABORT, ControlType.COMMIT))
            batch = build_control_batch(
                outcome, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=NOW_MS
            )
        partition.append_as_leader(batch, required_acks=1, now_ms=NOW_MS, client=False)

    def partition(self, index: int) -> FetchRequest.FetchPartition:
        source = self.source
        log = self.running.broker.replication.replicas.partition(TOPIC, min(index, PARTITIONS - 1)).log
        end = log.log_end_offset
        is_usual = source.random() < 0.9
        return FetchRequest.FetchPartition(
            partition=index,
            fetch_offset=source.randrange(end + 1) if is_usual else source.choice((-1, end, end + 1)),
            partition_max_bytes=self.partition_max_bytes,
            current_leader_epoch=-1 if is_usual else source.choice((0, 1)),
            last_fetched_epoch=-1 if is_usual or self.version < 12 else source.choice((0, 1)),
        )

    def frame(self) -> bytes:
        source = self.source
        if source.random() < 0.1:
            self.append()
        if source.random() < 0.03:
            self.version = source.choice((11, 12, 12, 13, 15, 17))
            self.session_id = self.session_epoch = 0
        if source.random() < 0.05:
            self.change_limits()
        if source.random() < 0.05:
            self.session_id, self.session_epoch = source.choice(((0, -1), (0, -1), (0, 0), (0, 0), (77, 3)))
        rows = [self.partition(source.choice((0, 0, 0, 0, 0, 1, PARTITIONS)) if source.random() < 0.1 else 0)]
        if source.random() < 0.03:
            rows.append(self.partition(1))
        topic_id = self.topic_id if self.version >= 13 else ZERO_UUID
        topics = [FetchRequest.FetchTopic(topic=TOPIC, topic_id=topic_id, partitions=rows)]
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=self.min_bytes,
            max_bytes=self.max_bytes,
            isolation_level=self.isolation_level,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            topics=topics if source.random() < 0.97 else [],
            rack_id=self.rack,
        )
        if source.random() < 0.02:
            request.forgotten_topics_data = [
                FetchRequest.ForgottenTopic(topic=TOPIC, topic_id=topic_id, partitions=[1])
            ]
        client_id = "consumer" if source.random() < 0.9 else source.choice(("", "x" * 2000, None))
        frame = bytearray(frames.encode_request(request, self.version, source.randrange(2**31), client_id))
        if source.random() < 0.05:
            flipped, bit = source.randrange(12, len(frame)), 1 << source.randrange(8)
            id_at = frame.find(self.topic_id.bytes)
            if not 0 <= id_at <= flipped < id_at + 16:  # the ids of the two brokers differ
                frame[flipped] ^= bit
        return bytes(frame)

    def receive(self, response: bytes) -> None:
        """Continue the session that the response is of."""
        if not response:
            return
        frame = memoryview(response)[4:]
        at = frames.response_body_offset(FetchRequest.api_key, self.version, frame)
        decoded = codec.decode(FetchResponse, self.version, frame, at)
        if decoded.error_code:
            self.session_id = self.session_epoch = 0
        elif decoded.session_id:
            self.session_epoch = self.session_epoch + 1 if decoded.session_id == self.session_id else 1
            self.session_id = decoded.session_id


def state_of(session: FetchSession, topic_id: UUID) -> object:
    rows = [
        (w.topic, w.topic_id == topic_id, w.asked, w.high_watermark, w.log_start_offset, w.order)
        for w in session.partitions.values()
    ]
    return session.id, session.epoch, session.replica_id, rows, len(session.dirty)


async def outcome(running: RunningBroker, seed: int, *, repeats: bool) -> tuple[list[bytes], object]:
    """The responses, b"" where there was none, and what the broker has afterwards."""
    await running.admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=1)
    dispatcher, sessions = running.broker.requests.dispatcher, running.broker.replication.purgatory.sessions
    if not repeats:
        dispatcher.repeated.clear()
    sessions._random = random.Random(seed)
    topic_id = running.broker.replication.replicas.partition(TOPIC, 0).topic_id
    assert topic_id is not None
    consumer, responses, sent = Consumer(seed, running, topic_id), [], Sent(running)
    for _ in range(10):
        consumer.append()
    for number in range(REQUESTS):
        if seed == AUTHORIZED and number == REQUESTS * 3 // 4:
            (await running.admin.create_acls([DENIED])).raise_first()
        sent.receive(consumer.frame())
        consumer.receive(sent.data)
        responses.append(sent.data.replace(topic_id.bytes, bytes(16)))
        if not sent.data:  # closed, or waiting, since a bit of max_wait_ms was flipped
            sent.channel.close()
            sent = Sent(running)
        sent.data = b""
    sent.channel.close()
    (fetch,) = [route for route in dispatcher.routes() if route.request_class is FetchRequest]
    counters = running.broker.requests.counters
    state = {
        "requests": fetch.counters.by_version,
        "measured": len(fetch.counters.times_ms),
        "errors": dict(counters.fetch_errors),
        "topics": {
            topic: {name: getattr(count, name) for name in TopicCount.__slots__}
            for topic, count in counters.items()
        },
        "sessions": [state_of(session, topic_id) for session in sessions._sessions.values()],
        "watching": {key: len(wanted) for key, wanted in sessions.watching.items()},
    }
    return responses, state


@pytest.mark.parametrize("seed", range(4))
def test_repeated_requests_have_the_handlers_responses(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[bool] = []
    plain_serve = RepeatedFetches.serve

    def serve(self: RepeatedFetches, *given: object) -> bool:
        served.append(plain_serve(self, *given))  # type: ignore[arg-type]
        return served[-1]

    monkeypatch.setattr(RepeatedFetches, "serve", serve)
    outcomes: list[tuple[list[bytes], object]] = []

    async def remembering(running: RunningBroker) -> None:
        outcomes.append(await outcome(running, seed, repeats=True))

    async def forgetting(running: RunningBroker) -> None:
        outcomes.append(await outcome(running, seed, repeats=False))

    settings = AUTHORIZER if seed == AUTHORIZED else {}
    run(tmp_path / "a", remembering, settings=settings)
    assert served.count(True) > REQUESTS / 8
    calls = len(served)
    run(tmp_path / "b", forgetting, settings=settings)
    assert not any(served[calls:])
    (ours, state), (theirs, other_state) = outcomes
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one == other, number
    assert state == other_state
