"""Repeated Produce requests are answered as the handler answers them: the same sequence of requests goes to a
broker that remembers them and to one that does not, and responses, logs and counters are compared."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from ottla.protocol import codec, frames
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import ProduceRequest, ProduceResponse
from ottla.protocol.records import Record, build_batch
from ottla.security.acls import AclBinding, Entry, Operation, Permission, ResourcePattern, ResourceType
from ottla.server.dispatch.counters import TopicCount
from ottla.server.handlers.produce.repeated import RepeatedRequests
from tests.worlds.running_broker import RunningBroker, run
from tests.worlds.sent_responses import Sent

PARTITIONS = 3
REQUESTS = 300
AUTHORIZED = (2,)
"""Seeds whose brokers have an authorizer, which denies one topic."""
ALL_MAY = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
DENIED = AclBinding(
    ResourcePattern(ResourceType.TOPIC, "other"),
    Entry("User:ANONYMOUS", "*", Operation.WRITE, Permission.DENY),
)
SIZES = ((1, 40), (40, 80), (80, 4000), (16_250, 16_400), (20_000, 40_000))
"""Ranges of the values; the length of the records takes one, two and three bytes."""


class Requests:
    """A random sequence of Produce requests, most of which repeat one of a few."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.sequences: dict[int, int] = {}

    def batch(self, partition: int) -> bytes:
        source = self.source
        records = [
            Record(i, 1_700_000_000_000, b"k", source.randbytes(source.randrange(*source.choice(SIZES))))
            for i in range(source.choice((1, 1, 3)))
        ]
        if source.random() < 0.3:
            sequence = self.sequences.get(partition, 0)
            if source.random() < 0.7:
                self.sequences[partition] = sequence + len(records)
            return build_batch(records, producer_id=77, producer_epoch=0, base_sequence=sequence)
        if source.random() < 0.1:
            return build_batch(records, transactional=True, producer_id=78, producer_epoch=0, base_sequence=0)
        compression = Codec.ZSTD if source.random() < 0.1 else Codec.NONE
        return build_batch(records, codec=compression)

    def frame(self) -> bytes:
        source = self.source
        is_usual = source.random() < 0.7
        version = 11 if is_usual else source.choice((8, 9, 10))
        index = source.choice((0, 0, 1)) if is_usual else source.choice((0, 2, PARTITIONS))
        topic = "t" if is_usual else source.choice(("t", "gone", "other"))
        rows = [ProduceRequest.PartitionProduceData(index=index, records=self.batch(index))]
        if source.random() < 0.1:
            rows.append(ProduceRequest.PartitionProduceData(index=1, records=self.batch(1)))
        if source.random() < 0.05:
            rows[0].records = source.choice((None, b"", rows[0].records * 2))
        request = ProduceRequest(
            transactional_id="tx" if source.random() < 0.03 else None,
            acks=1 if is_usual else source.choice((1, -1, -1, 2)),
            timeout_ms=30_000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=rows)],
        )
        client_id = "producer" if is_usual else source.choice(("producer", "", "prodücer", "x" * 200, None))
        frame = bytearray(frames.encode_request(request, version, source.randrange(2**31), client_id))
        if source.random() < 0.15:
            frame[source.randrange(12, len(frame))] ^= 1 << source.randrange(8)
        return bytes(frame)


def produce_request(topic: str, *, acks: int = 1, value: bytes = b"v") -> ProduceRequest:
    batch = build_batch([Record(0, time.time_ns() // 1_000_000, None, value)])
    data = [ProduceRequest.PartitionProduceData(index=0, records=batch)]
    return ProduceRequest(
        acks=acks,
        timeout_ms=60_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=data)],
    )


def response_to(sent: Sent, request: ProduceRequest, correlation_id: int) -> ProduceResponse:
    sent.data = b""
    sent.receive(frames.encode_request(request, 11, correlation_id, "producer"))
    return response_in(sent.data)


def response_in(data: bytes) -> ProduceResponse:
    frame = memoryview(data)[4:]
    body = frames.response_body_offset(ProduceRequest.api_key, 11, frame)
    return codec.decode(ProduceResponse, 11, frame, body)


async def outcome(
    running: RunningBroker, seed: int, *, repeats: bool
) -> tuple[list[bytes], dict[str, object]]:
    """The responses, b"" where the connection was closed, and what the broker has afterwards."""
    for topic in ("t", "other"):
        await running.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1)
    if seed in AUTHORIZED:
        (await running.admin.create_acls([DENIED])).raise_first()
    dispatcher = running.broker.requests.dispatcher
    assert dispatcher.repeated
    if not repeats:
        dispatcher.repeated.clear()
    requests, responses, sent = Requests(seed), [], Sent(running)
    for _ in range(REQUESTS):
        if sent.channel.closed:
            sent = Sent(running)
        sent.receive(requests.frame())
        responses.append(sent.data)
        sent.data = b""
    sent.channel.close()
    replicas = running.broker.replication.replicas
    (produce,) = [route for route in dispatcher.routes() if route.request_class is ProduceRequest]
    counters = running.broker.requests.counters
    state: dict[str, object] = {
        "ends": {p.key: (p.log.log_end_offset, p.high_watermark) for p in replicas.partitions()},
        "requests": produce.counters.by_version,
        "errors": dict(produce.counters.errors),
        "measured": len(produce.counters.times_ms),
        "topics": {
            topic: {name: getattr(count, name) for name in TopicCount.__slots__}
            for topic, count in counters.items()
        },
    }
    return responses, state


@pytest.mark.parametrize("seed", range(3))
def test_repeated_requests_have_the_handlers_responses(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[bool] = []
    plain_serve = RepeatedRequests.serve

    def serve(self: RepeatedRequests, *given: object) -> bool:
        served.append(plain_serve(self, *given))  # type: ignore[arg-type]
        return served[-1]

    monkeypatch.setattr(RepeatedRequests, "serve", serve)
    outcomes: list[tuple[list[bytes], dict[str, object]]] = []

    async def remembering(running: RunningBroker) -> None:
        outcomes.append(await outcome(running, seed, repeats=True))

    async def forgetting(running: RunningBroker) -> None:
        outcomes.append(await outcome(running, seed, repeats=False))

    settings = ALL_MAY if seed in AUTHORIZED else {}
    run(tmp_path / "a", remembering, settings=settings)
    assert served.count(True) > REQUESTS / 4
    calls = len(served)
    run(tmp_path / "b", forgetting, settings=settings)
    assert not any(served[calls:])
    (ours, state), (theirs, other_state) = outcomes
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one == other, number
    assert state == other_state


def test_the_acl_of_a_topic_counts_for_a_repeated_request(tmp_path: Path) -> None:
    codes: list[int] = []

    async def scenario(running: RunningBroker) -> None:
        await running.admin.create_topic("other", partitions=1, replication_factor=1)
        sent = Sent(running)
        request = produce_request("other")
        for correlation_id in range(3):
            if correlation_id == 2:
                (await running.admin.create_acls([DENIED])).raise_first()
            codes.append(
                response_to(sent, request, correlation_id).responses[0].partition_responses[0].error_code
            )
        sent.channel.close()

    run(tmp_path, scenario, settings=ALL_MAY)
    assert codes == [0, 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED]


def test_a_repeated_request_counts_for_the_quota_of_its_client(tmp_path: Path) -> None:
    throttle_times: list[list[int]] = []

    async def scenario(running: RunningBroker, *, repeats: bool) -> None:
        await running.admin.create_topic("t", partitions=1, replication_factor=1)
        await running.admin.alter_client_quota({"client-id": "producer"}, {"producer_byte_rate": 1000.0})
        await running.until(lambda: running.broker.replication.quotas.produce.enabled)
        if not repeats:
            running.broker.requests.dispatcher.repeated.clear()
        sent = Sent(running)
        request = produce_request("t", value=bytes(7_000))
        throttle_times.append([response_to(sent, request, number).throttle_time_ms for number in range(2)])
        sent.channel.close()

    run(tmp_path / "a", lambda running: scenario(running, repeats=True))
    run(tmp_path / "b", lambda running: scenario(running, repeats=False))
    (first, ours), (_, theirs) = throttle_times
    assert first == 0
    assert ours == pytest.approx(theirs, rel=0.1)
    assert ours > 1000


@pytest.mark.parametrize(
    "code", [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER]
)
def test_a_repeated_request_with_acks_all_waits_for_its_replicas(code: ErrorCode, tmp_path: Path) -> None:
    """The first request of each broker is the handler's; the second one repeats it, or not."""
    responses: list[ProduceResponse] = []

    async def scenario(running: RunningBroker, *, repeats: bool) -> None:
        await running.admin.create_topic("t", partitions=1, replication_factor=1)
        dispatcher = running.broker.requests.dispatcher
        if not repeats:
            dispatcher.repeated.clear()
        request = produce_request("t", acks=-1)
        sent = Sent(running)
        sent.receive(frames.encode_request(request, 11, 1, "producer"))
        assert sent.data
        sent.data = b""
        partition = running.broker.replication.replicas.partition("t", 0)
        # A second replica in the ISR that does not fetch.
        partition.in_sync.committed = partition.in_sync.maximal = frozenset((0, 1))
        sent.receive(frames.encode_request(request, 11, 2, "producer"))
        assert not sent.data
        purgatory = running.broker.replication.purgatory
        (wait,) = purgatory._produces[partition.key]
        wait.complete(code)
        assert sent.data
        responses.append(response_in(sent.data))
        for endpoint in responses[-1].node_endpoints:
            endpoint.port = 0
        sent.channel.close()

    run(tmp_path / "a", lambda running: scenario(running, repeats=True))
    run(tmp_path / "b", lambda running: scenario(running, repeats=False))
    assert responses[0] == responses[1]
    assert responses[0].responses[0].partition_responses[0].error_code == code
