"""A topic without a leader fills only its share of a blocking producer's memory, and does not block other
topics; tests/unit has the same for the asyncio producer.

The only replica of `stuck` is on a killed broker, that of `well` on a live one. Records sent to `stuck` are
written, in order, once its broker is back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from ottla.client import blocking, errors
from ottla.client.core.types import RecordMetadata
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import LocalCluster
from tests.judges.faults import SETTINGS

pytestmark = pytest.mark.timeout(300)

STUCK, WELL = "stuck", "well"
STUCK_BROKER = 1
WAIT_S = 120
COUNT = 300
VALUE = b"x" * 1000
MEMORY = 200_000
"""Less than COUNT of these take. Four times COUNT is more than a blocking producer's inbox holds besides."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), brokers=2, settings=SETTINGS) as running:
        running.create_topic(WELL, assignment={0: [0]})
        running.create_topic(STUCK, assignment={0: [STUCK_BROKER]})
        yield running


@pytest.fixture
def stuck_broker(cluster: LocalCluster) -> Iterator[BrokerProcess]:
    """Dead, and its partition known to be without a leader."""
    broker = cluster.brokers[STUCK_BROKER]
    broker.kill()

    def leaderless() -> bool:
        topic = cluster.topic(STUCK)
        return topic is not None and topic.partitions[0].leader < 0

    cluster.wait_until(leaderless, f"{STUCK} to be without a leader")
    yield broker
    if not broker.running:
        broker.start_and_wait()


def settings(cluster: LocalCluster, **more: object) -> dict[str, object]:
    return {"bootstrap.servers": cluster.bootstrap, "buffer.memory": MEMORY, **more}


def test_threads_that_send_to_another_topic_are_not_blocked(
    cluster: LocalCluster, stuck_broker: BrokerProcess
) -> None:
    to_stuck: list[Future[RecordMetadata]] = []
    with blocking.Producer(settings(cluster)) as producer:

        def send_to_stuck() -> None:
            to_stuck.extend(producer.send(STUCK, VALUE) for _ in range(COUNT * 4))

        thread = threading.Thread(target=send_to_stuck)
        thread.start()
        for _ in range(COUNT):
            producer.send_and_wait(WELL, VALUE)
        assert thread.is_alive(), "it waits for memory"
        assert len(to_stuck) < COUNT * 4
        stuck_broker.start_and_wait()
        thread.join(WAIT_S)
        assert_in_order([future.result(WAIT_S) for future in to_stuck])
    assert len(to_stuck) == COUNT * 4


def assert_in_order(written: list[RecordMetadata]) -> None:
    first = written[0].offset
    assert [metadata.offset for metadata in written] == [first + n for n in range(len(written))]


def test_a_topic_that_uses_its_share_of_the_buffer_can_be_an_error_at_once(
    cluster: LocalCluster, stuck_broker: BrokerProcess
) -> None:
    more = {"buffer.memory.per.topic": 10_000, "block.on.topic.full": False}
    producer = blocking.Producer(settings(cluster, **more))
    producer.start()
    try:
        assert producer.partitions_for(STUCK) == 1
        refused = [producer.send(STUCK, VALUE) for _ in range(20)][-1]
        with pytest.raises(errors.BufferExhaustedError, match="stuck uses its share"):
            refused.result(WAIT_S / 4)
        producer.send_and_wait(WELL, VALUE)
    finally:
        producer.stop(0)
