"""What Ottla's producer writes, other clients read; what it does with what its users give it.

`test_client_like_confluent.py` has Apache Kafka as the broker, too; `test_client_kills.py` kills brokers.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import kafka
import pytest
from confluent_kafka import Message, TopicPartition
from confluent_kafka import Producer as ConfluentProducer

from ottla.client import blocking, errors
from ottla.client.core.partitioners import BY_NAME
from ottla.client.core.types import ProducerRecord, RecordMetadata
from ottla.client.metrics import Metric
from ottla.client.producer import Producer
from ottla.client.serialization import SchemaNeeded
from tests.judges.confluent_reader import read_to_end
from tests.judges.one_broker import OneBroker, one_broker

WAIT_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneBroker]:
    settings = {"num.partitions": "3", "message.max.bytes": "100000"}
    with one_broker(tmp_path_factory.mktemp("broker"), settings) as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def read(bootstrap: str, topic: str, partitions: int = 3, isolation: str = "read_committed") -> list[Message]:
    """All records, by librdkafka, which checks their CRCs."""
    settings = {"isolation.level": isolation, "check.crcs": True, "auto.offset.reset": "earliest"}
    return read_to_end(bootstrap, [TopicPartition(topic, p, 0) for p in range(partitions)], settings)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_and_kafka_python_read_what_was_sent(broker: OneBroker, topic: str, codec: str) -> None:
    sent: dict[tuple[int, int], bytes] = {}

    async def send() -> None:
        async with Producer(
            bootstrap_servers=broker.bootstrap, compression_type=codec, linger_ms=5
        ) as producer:
            assert await producer.partitions_for(topic) == 3
            futures = {}
            for n in range(500):
                value = b"%d " % n + b"x" * (n % 200)
                headers = [("n", b"%d" % n), ("none", None)]
                key = None if n % 3 else b"key-%d" % n
                futures[value] = await producer.send(
                    topic, value, key, timestamp_ms=1000 + n, headers=headers
                )
            for value, future in futures.items():
                metadata = await future
                assert metadata.topic == topic
                assert metadata.timestamp_ms == 1000 + int(value.split()[0])
                sent[metadata.partition, metadata.offset] = value

    asyncio.run(send())
    messages = read(broker.bootstrap, topic)
    assert {(m.partition(), m.offset()): m.value() for m in messages} == sent
    for message in messages:
        value = message.value()
        assert value is not None
        n = value.split()[0]
        assert message.headers() == [("n", n), ("none", None)]
        assert message.timestamp() == (1, 1000 + int(n))
        assert message.key() == (None if int(n) % 3 else b"key-" + n)
    if codec not in ("none", "gzip"):
        return  # kafka-python would need further libraries for the others
    with kafka.KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=WAIT_S * 1000,
    ) as consumer:
        read_by_python = {(r.partition, r.offset): r.value for r in islice(consumer, len(sent))}
    assert read_by_python == sent


@pytest.mark.parametrize("partitioner", ["consistent_random", "murmur2_random", "fnv1a_random"])
def test_keys_have_the_partitions_of_librdkafka(broker: OneBroker, topic: str, partitioner: str) -> None:
    keys = [b"k" * (n % 9) + b"%d" % n for n in range(60)]
    placed: dict[bytes, int] = {}

    def reported(error: object, message: Message) -> None:
        assert error is None
        key = message.key()
        assert isinstance(key, bytes)
        placed[key] = message.partition() or 0

    with blocking.Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.partitions_for(topic)
    theirs = ConfluentProducer({"bootstrap.servers": broker.bootstrap, "partitioner": partitioner})
    for key in keys:
        theirs.produce(topic, b"v", key, on_delivery=reported)
    theirs.flush(WAIT_S)
    ours = BY_NAME[partitioner]
    assert ours is not None
    assert placed == {key: ours(topic, key, None, 3) for key in keys}


def test_records_too_large_for_the_broker_are_split_and_single_ones_refused(
    broker: OneBroker, topic: str
) -> None:
    async def send() -> None:
        async with Producer(
            bootstrap_servers=broker.bootstrap, batch_size=900_000, linger_ms=200
        ) as producer:
            futures = [await producer.send(topic, b"%d" % n + b"x" * 20_000, partition=0) for n in range(30)]
            await producer.flush()
            offsets = [(await future).offset for future in futures]
            assert offsets == list(range(30))
            assert producer.metrics()["batch-split-total"] > 0
            with pytest.raises(errors.MessageTooLargeError):
                await producer.send_and_wait(topic, b"x" * 200_000, partition=0)
            assert (await producer.send_and_wait(topic, b"after", partition=0)).offset == 30

    asyncio.run(send())


def test_senders_wait_in_order_while_the_buffer_is_full(broker: OneBroker, topic: str) -> None:
    async def send() -> None:
        async with Producer(
            bootstrap_servers=broker.bootstrap, buffer_memory=20_000, batch_size=4_000, acks="all"
        ) as producer:

            async def many(name: int) -> None:
                for n in range(200):
                    await producer.send(topic, b"%d %d " % (name, n) + b"x" * 300, partition=0)
                    assert producer.metrics()["buffer-available-bytes"] >= 0

            await asyncio.gather(*(many(name) for name in range(4)))

    asyncio.run(send())
    values = [message.value() or b"" for message in read(broker.bootstrap, topic)]
    assert len(values) == 800
    for name in range(4):
        numbers = [int(v.split()[1]) for v in values if v.split()[0] == b"%d" % name]
        assert numbers == list(range(200))


def test_a_sender_that_never_waits_yields_to_other_tasks_but_not_after_each_batch(
    broker: OneBroker, topic: str
) -> None:
    async def send() -> tuple[int, int]:
        turns = 0

        async def another() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with Producer(
            bootstrap_servers=broker.bootstrap, linger_ms=60_000, batch_size=1000
        ) as producer:
            assert await producer.partitions_for(topic) == 3
            beside = asyncio.create_task(another())
            for _ in range(20_000):
                await producer.send(topic, b"x" * 400)
            beside.cancel()
            seen = turns
            await producer.flush()
            return seen, round(producer.metrics()["record-send-total"])

    turns, records = asyncio.run(send())
    assert records == 20_000
    batches = records // 2
    assert 5 <= turns < batches / 2


def test_errors_name_the_key_and_the_remedy(broker: OneBroker, topic: str) -> None:
    async def has_heard_of_the_topic(producer: Producer) -> bool:
        try:
            return await producer.partitions_for(topic) == 3
        except errors.RequestTimedOutError:
            return False

    async def send() -> None:
        producer = Producer(bootstrap_servers=broker.bootstrap)
        with pytest.raises(errors.IllegalStateError, match="not started"):
            await producer.send(topic, b"v")
        async with producer:
            with pytest.raises(errors.SerializationError, match=r"without value\.serializer"):
                await producer.send(topic, "text")
            with pytest.raises(errors.IllegalStateError, match=r"transactional\.id is not set"):
                producer.begin_transaction()
            future = await producer.send("not a topic!", b"v")
            with pytest.raises(errors.InvalidTopicError):
                await future
            assert await producer.partitions_for(topic) == 3
        async with Producer(bootstrap_servers=broker.bootstrap, max_block_ms=500) as impatient:
            while not await has_heard_of_the_topic(impatient):
                pass
            future = await impatient.send(topic, b"v", partition=17)
            with pytest.raises(errors.RequestTimedOutError, match=f"partition 17 of {topic}"):
                await future

    asyncio.run(send())


def test_serializers_interceptors_and_callbacks(broker: OneBroker, topic: str) -> None:
    received: list[object] = []

    class Marking:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record._replace(headers=[("seen", b"1")])

        def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
            received.append(metadata)
            raise RuntimeError("an interceptor that fails harms nobody")

        def close(self) -> None:
            received.append("closed")

    async def send() -> None:
        async with Producer(
            bootstrap_servers=broker.bootstrap,
            value_serializer=lambda value: str(value).encode(),
            interceptors=[Marking()],
        ) as producer:
            producer.send_nowait(topic, 17, on_delivery=lambda metadata, error: received.append(error))
            metadata = await producer.send_and_wait(topic, 18)
            assert metadata.offset >= 0

    asyncio.run(send())
    assert sorted(m.value() or b"" for m in read(broker.bootstrap, topic)) == [b"17", b"18"]
    assert {str(m.headers()) for m in read(broker.bootstrap, topic)} == {"[('seen', b'1')]"}
    assert received.count(None) == 1
    assert len([entry for entry in received if isinstance(entry, RecordMetadata)]) == 2
    assert received[-1] == "closed"


def test_an_interceptor_gets_each_record_once_also_after_errors(broker: OneBroker, topic: str) -> None:
    """A schema that has to be looked up first, a buffer that is full, a record that is refused at once."""
    sent: list[bytes] = []
    received: Counter[str] = Counter()
    looked_up: list[bytes] = []

    class Counting:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            sent.append(record.value)
            return record

        def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
            received["delivered" if error is None else type(error).__name__] += 1

        def close(self) -> None:
            pass

    def serialized(value: bytes) -> bytes:
        if value not in looked_up:
            raise SchemaNeeded("a schema", lambda: looked_up.append(value))
        return value * 1000

    settings = {
        "bootstrap.servers": broker.bootstrap,
        "value.serializer": serialized,
        "interceptors": [Counting()],
        "buffer.memory": 5_000,
    }
    values = [b"%d" % n for n in range(10)]

    async def send() -> None:
        async with Producer(settings) as producer:
            for value in values:
                await producer.send(topic, value)
            with pytest.raises(errors.MessageTooLargeError):
                await producer.send(topic, b"x" * 6)
            with pytest.raises(SchemaNeeded):
                producer.send_nowait(topic, b"unknown")

    asyncio.run(send())
    assert sent == [*values, b"x" * 6, b"unknown"]
    assert received == {"delivered": 10, "MessageTooLargeError": 1, "SchemaNeeded": 1}
    with blocking.Producer(settings) as producer:
        for value in [b"a", b"b"]:
            producer.send(topic, value)
        with pytest.raises(errors.MessageTooLargeError):
            producer.send(topic, b"x" * 6).result(WAIT_S)
    assert sent[12:] == [b"a", b"b", b"x" * 6]
    assert received == {"delivered": 12, "MessageTooLargeError": 2, "SchemaNeeded": 1}


def test_metric_values_are_kafkas_and_reporters_get_them(broker: OneBroker, topic: str) -> None:
    reported: list[list[Metric]] = []

    class Reporter:
        def report(self, client_id: str, metrics: list[Metric]) -> None:
            assert client_id == "measured"
            reported.append(metrics)

        def close(self) -> None:
            reported.append([])

    async def send() -> None:
        async with Producer(
            bootstrap_servers=broker.bootstrap,
            client_id="measured",
            compression_type="gzip",
            metric_reporters=[Reporter()],
        ) as producer:
            for n in range(100):
                await producer.send(topic, b"x" * 100, partition=n % 3)
            await producer.flush()
            found = producer.metrics()
        assert found["record-send-total"] == 100
        assert found["record-error-total"] == 0
        assert 0 < found["compression-rate-avg"] < 0.5
        assert 0 < found["request-latency-avg"] <= found["request-latency-max"] < 60_000
        assert found["connection-count"] >= 1
        assert found["metadata-wait-time-ns-total"] > 0
        assert found["txn-commit-time-ns-total"] == 0
        by_topic = {m.name: m.value for m in reported[-2] if m.tags == {"topic": topic}}
        assert by_topic["record-send-total"] == 100
        assert reported[-1] == []

    asyncio.run(send())


def test_a_producer_works_after_cancelled_sends(broker: OneBroker, topic: str) -> None:
    """Cancellation at any await: of start, of send, of a delivery, of flush, of stop."""

    async def send() -> None:
        for steps in range(12):
            async with Producer(
                bootstrap_servers=broker.bootstrap, buffer_memory=3_000, linger_ms=1
            ) as producer:

                async def use(producer: Producer = producer) -> None:
                    for n in range(20):
                        future = await producer.send(topic, b"%d" % n + b"x" * 500)
                    await future
                    await producer.flush()

                task = asyncio.create_task(use())
                for _ in range(steps * 2):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if steps:
                    assert (await producer.send_and_wait(topic, b"well")).offset >= 0

    asyncio.run(send())


def test_threads_share_a_blocking_producer(broker: OneBroker, topic: str) -> None:
    reported: list[RecordMetadata] = []
    both = threading.Barrier(4)

    with blocking.Producer(bootstrap_servers=broker.bootstrap, linger_ms=5) as producer:

        def many(name: int) -> list[int]:
            both.wait()
            futures = [producer.send(topic, b"%d %d" % (name, n), partition=name % 3) for n in range(500)]
            return [future.result(WAIT_S).offset for future in futures]

        with ThreadPoolExecutor(4) as pool:
            for offsets in pool.map(many, range(4)):
                assert offsets == sorted(offsets)
        producer.send_nowait(topic, b"last 0", on_delivery=lambda metadata, _: reported.append(metadata))  # type: ignore[arg-type]
        producer.flush(WAIT_S)
        assert len(reported) == 1
        with pytest.raises(errors.SerializationError):
            producer.send(topic, 17).result(WAIT_S)
    assert len(read(broker.bootstrap, topic)) == 2001
