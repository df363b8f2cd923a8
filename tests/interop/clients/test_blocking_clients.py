"""The blocking clients, called from where they call: an error or an answer, and never a wait for oneself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from ottla.client import errors
from ottla.client.blocking import Consumer, Producer
from ottla.client.core.types import TopicPartition
from ottla.testing import DevBroker

pytestmark = pytest.mark.timeout(180)
WAIT_S = 60


@pytest.fixture(scope="module")
def broker() -> Iterator[DevBroker]:
    with DevBroker() as running:
        yield running


@pytest.fixture
def topic(broker: DevBroker, request: pytest.FixtureRequest) -> str:
    broker.create_topic(request.node.name, partitions=1)
    return str(request.node.name)


def reader(broker: DevBroker, topic: str) -> Consumer:
    return Consumer(
        bootstrap_servers=broker.bootstrap,
        group_id=f"group-of-{topic}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )


def produce(broker: DevBroker, topic: str, count: int) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number)


def test_a_listener_may_call_its_consumer(broker: DevBroker, topic: str) -> None:
    produce(broker, topic, 3)
    place = TopicPartition(topic, 0)
    reported: list[object] = []
    with reader(broker, topic) as consumer:

        def assigned(places: list[TopicPartition]) -> None:
            reported.append((places, consumer.position(place), consumer.end_offsets(places)))
            with pytest.raises(errors.IllegalStateError):
                consumer.poll()
            consumer.seek(place, 2)

        consumer.subscribe([topic], on_assigned=assigned, on_revoked=lambda places: consumer.commit())
        assert consumer.getone().value == b"2"
        consumer.unsubscribe()
        assert reported == [([place], 0, {place: 3})]
        committed = consumer.committed([place])[place]
    assert committed is not None
    assert committed.offset == 3


def test_blocking_calls_in_the_clients_own_thread_are_rejected(broker: DevBroker, topic: str) -> None:
    produce(broker, topic, 1)
    place = TopicPartition(topic, 0)
    reported: list[BaseException | None] = []
    called = threading.Event()
    with reader(broker, topic) as consumer:

        def committed(offsets: object, problem: Exception | None) -> None:
            try:
                consumer.position(place)
            except RuntimeError as error:
                reported.append(error)
            called.set()
            consumer.stop()  # raises, which is logged

        consumer.assign([place])
        assert consumer.getone().value == b"0"
        consumer.commit_nowait(on_done=committed)
        assert called.wait(WAIT_S)
        assert "own thread" in str(reported[0])
        assert consumer.position(place) == 1, "it goes on"

    refused: list[BaseException] = []
    delivered = threading.Event()
    with Producer(bootstrap_servers=broker.bootstrap) as producer:

        def on_delivery(metadata: object, error: BaseException | None) -> None:
            for call in (lambda: producer.send_and_wait(topic, b"never"), producer.flush, producer.stop):
                try:
                    call()
                except RuntimeError as problem:
                    refused.append(problem)
            producer.send_nowait(topic, b"after", on_delivery=lambda metadata, error: delivered.set())

        producer.send_nowait(topic, b"first", on_delivery=on_delivery)
        assert delivered.wait(WAIT_S)
    assert [str(problem).count("own thread") for problem in refused] == [1, 1, 1]
    assert [record.value for record in broker.records(topic)] == [b"0", b"first", b"after"]


def test_a_callback_that_sends_more_than_the_buffer_holds_gets_an_error(
    broker: DevBroker, topic: str
) -> None:
    ended = threading.Event()
    problems: list[BaseException] = []

    with Producer(bootstrap_servers=broker.bootstrap, max_block_ms=2 * WAIT_S * 1000) as producer:

        def on_delivery(metadata: object, error: BaseException | None) -> None:
            try:
                for _ in range(20_000):
                    producer.send_nowait(topic, b"more")
            except errors.BufferExhaustedError as problem:
                problems.append(problem)
            ended.set()

        producer.send_nowait(topic, b"first", on_delivery=on_delivery)
        assert ended.wait(WAIT_S), "it waits for itself"
        assert problems


def test_a_consumer_whose_poll_was_interrupted_leaves_its_group(broker: DevBroker, topic: str) -> None:
    """Ctrl-C in a listener, and `close` after it: the listener is called, and the member leaves its group."""
    produce(broker, topic, 1)
    reported: list[str] = []

    def assigned(places: list[TopicPartition]) -> None:
        reported.append("assigned")
        raise KeyboardInterrupt

    with closing(reader(broker, topic)) as consumer:
        consumer.subscribe(
            [topic], on_assigned=assigned, on_revoked=lambda places: reported.append("revoked")
        )
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(WAIT_S)
    assert reported == ["assigned", "revoked"]
    with pytest.raises(errors.IllegalStateError):
        consumer.poll()
