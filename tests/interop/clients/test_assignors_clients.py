"""Groups whose members give up all that they have in every rebalance (eager), beside those whose members give
up what others get (cooperative, KIP-429): librdkafka's members, and what they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.local.processes import wait_until
from tests.judges.one_broker import OneBroker, one_broker

TOPIC, PARTITIONS = "t", 4
EAGER, COOPERATIVE = "range", "cooperative-sticky"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneBroker]:
    with one_broker(tmp_path_factory.mktemp("assignors")) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(90)
        del admin  # it would outlive its broker
        yield running


class Member:
    def __init__(self, broker: OneBroker, strategy: str, group: str) -> None:
        self.callbacks: list[tuple[str, set[int]]] = []
        """What it gets and gives up, in order."""
        self.errors: list[int] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "partition.assignment.strategy": strategy,
                "heartbeat.interval.ms": 300,
                "session.timeout.ms": 120_000,
            }
        )
        self._consumer.subscribe([TOPIC], on_assign=self._hears("gets"), on_revoke=self._hears("gives"))
        self.close = self._consumer.close

    def _hears(self, what: str) -> Callable[[Consumer, list[TopicPartition]], None]:
        def hear(consumer: Consumer, places: list[TopicPartition]) -> None:
            if places:
                self.callbacks.append((what, {place.partition for place in places}))

        return hear

    def has(self) -> set[int]:
        message = self._consumer.poll(0.05)
        if message is not None and (problem := message.error()) is not None:
            self.errors.append(problem.code())
        return {place.partition for place in self._consumer.assignment()}


def shares(*sizes: tuple[Member, int]) -> bool:
    """Whether each comes to have so many partitions."""
    return wait_until(
        lambda: [len(member.has()) for member, _ in sizes] == [size for _, size in sizes],
        timeout_s=120,
        poll_s=0,
    )


def test_eager_and_cooperative_groups_side_by_side(broker: OneBroker) -> None:
    with ExitStack() as closed:

        def member(strategy: str) -> Member:
            made = Member(broker, strategy, f"group-{strategy}")
            closed.callback(made.close)
            return made

        eager, cooperative = member(EAGER), member(COOPERATIVE)
        everything = set(range(PARTITIONS))
        assert shares((eager, 4), (cooperative, 4))
        other_eager, other_cooperative = member(EAGER), member(COOPERATIVE)
        assert shares((eager, 2), (other_eager, 2), (cooperative, 2), (other_cooperative, 2))
        kept = cooperative.has()
        assert cooperative.callbacks == [("gets", everything), ("gives", everything - kept)]
        assert other_cooperative.callbacks == [("gets", everything - kept)]
        half = eager.has()
        assert eager.callbacks == [("gets", everything), ("gives", everything), ("gets", half)]
        assert other_eager.callbacks == [("gets", everything - half)]
        other_eager.close()
        other_cooperative.close()
        assert shares((eager, 4), (cooperative, 4))
        assert cooperative.callbacks[2:] == [("gets", everything - kept)]
        assert eager.callbacks[3:] == [("gives", half), ("gets", everything)]

        outsider = Member(broker, EAGER, f"group-{COOPERATIVE}")
        closed.callback(outsider.close)

        def refused() -> bool:
            outsider.has()
            return KafkaError.INCONSISTENT_GROUP_PROTOCOL in outsider.errors

        assert wait_until(refused, timeout_s=120, poll_s=0)
        assert cooperative.has() == everything
