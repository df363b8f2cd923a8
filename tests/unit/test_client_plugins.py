"""Users' own assignors, partitioners and interceptors in settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from ottla.client import errors
from ottla.client.core.accumulator import Accumulator
from ottla.client.core.assigned import Assigned
from ottla.client.core.assignment import Assignment, Subscription
from ottla.client.core.assignors import UserAssignor, assignors_of
from ottla.client.core.baseline import Baseline
from ottla.client.core.cluster import Cluster
from ottla.client.core.config import ProducerConfig
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.partitioners import RoundRobin
from ottla.client.core.rebalancing import Rebalancing
from ottla.client.core.types import TopicPartition
from ottla.client.interceptors import made_of
from ottla.protocol import messages as m

AT = {"bootstrap.servers": "h:1"}
NAME = __name__
KEY = "partition.assignment.strategy"


class Simple:
    """A minimal assignor."""

    name = "simple"

    def assign(self, topics: Mapping[str, Any], members: Mapping[str, Any]) -> dict[str, Any]:
        return {"a": [("t", 0)]}


class Cooperative(Simple):
    name = "cooperative"
    cooperative = True


class Nameless:
    def assign(self, topics: Mapping[str, Any], members: Mapping[str, Any]) -> dict[str, Any]:
        return {}


class Configured:
    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.closed = 0

    def configure(self, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)

    def on_send(self, record: Any) -> Any:
        return record

    def on_acknowledgement(self, metadata: Any, error: BaseException | None) -> None:
        pass

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int | None:
        return 7 % partitions

    def close(self) -> None:
        self.closed += 1
        raise OSError("on purpose")


class Unwilling(Configured):
    def configure(self, settings: Mapping[str, Any]) -> None:
        raise LookupError("no such thing")


def consumer(**settings: object) -> ConsumerConfig:
    return ConsumerConfig.of(AT, group_id="g", **settings)


def producer(settings: Mapping[str, object]) -> ProducerConfig:
    return ProducerConfig.of({**AT, "client.id": "me", **settings})


def accumulator(config: ProducerConfig) -> Accumulator:
    return Accumulator(config, Cluster(uniform=uniform), uniform, lambda outcome: None)


def uniform(low: float, high: float) -> float:
    return low


@pytest.mark.parametrize(
    ("strategy", "names"),
    [
        (Simple, ["simple"]),
        (Simple(), ["simple"]),
        (f"{NAME}.Simple", ["simple"]),
        (f"range,{NAME}.Simple", ["range", "simple"]),
        (["org.apache.kafka.clients.consumer.StickyAssignor", Cooperative, "range"], None),
    ],
)
def test_assignors_are_objects_classes_or_names(strategy: object, names: list[str] | None) -> None:
    config = consumer(partition_assignment_strategy=strategy)
    found = assignors_of(config.partition_assignment_strategy, config)
    assert list(found) == (names or ["sticky", "cooperative", "range"])


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("best", r"'best' cannot be imported.*assign\(\).*dotted name; or one of cooperative-sticky, range"),
        (f"{NAME}.Missing", "cannot be imported"),
        ([object()], r"has no assign\(\)"),
        ([Nameless], "has no name, by which the members of a group agree on it"),
        ([], "must be a list of"),
    ],
)
def test_an_invalid_assignor_is_an_error(strategy: object, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        consumer(partition_assignment_strategy=strategy)


def test_two_assignors_of_a_name_are_refused_as_in_kafka() -> None:
    config = consumer(partition_assignment_strategy=[Simple(), Simple()])
    with pytest.raises(errors.ConfigError, match="'simple': is the name of two assignors"):
        assignors_of(config.partition_assignment_strategy, config)


def test_an_assignors_result_is_completed_and_checked() -> None:
    given = UserAssignor(Simple())
    members = {"a": Subscription(("t",)), "b": Subscription(("t",))}
    assert given.assign({"t": ()}, members) == {
        "a": Assignment((TopicPartition("t", 0),)),
        "b": Assignment(()),
    }
    assert given.subscription_user_data(["t"]) is None
    assert not given.cooperative
    with pytest.raises(ValueError, match="the assignor simple assigns to 'a', which is not a member"):
        given.assign({"t": ()}, {"b": Subscription(("t",))})


def test_a_cooperative_assignor_must_wait_for_revocations() -> None:
    config = consumer(partition_assignment_strategy=Cooperative)
    cluster = Cluster(uniform=uniform)
    cluster.want(["t"])
    assert cluster.request(0.0) is not None
    row = m.MetadataResponse.MetadataResponsePartition(partition_index=0, leader_id=0)
    topic = m.MetadataResponse.MetadataResponseTopic(name="t", partitions=[row])
    node = m.MetadataResponse.MetadataResponseBroker(node_id=0, host="h", port=1)
    cluster.take(m.MetadataResponse(brokers=[node], topics=[topic]), 0.0)
    rebalancing = Rebalancing(config, cluster, Assigned(), Baseline(cluster))
    owner = Subscription(("t",), owned=(TopicPartition("t", 0),))
    nobody = Subscription(("t",))
    decided = rebalancing.perform_assignment("cooperative", {"a": owner, "b": nobody})
    assert decided is not None
    assert [len(share.partitions) for share in decided.values()] == [1, 0]
    with pytest.raises(errors.IllegalStateError, match="assigns t-0 to one member before another one"):
        rebalancing.perform_assignment("cooperative", {"a": nobody, "b": owner})


def test_a_class_is_instantiated_once_for_each_client_and_configured() -> None:
    config = producer({"interceptor.classes": f"{NAME}.Configured", "linger.ms": "5"})
    (one,), (other,) = made_of(config), made_of(config)
    assert one is not other
    assert one.settings["linger.ms"] == 5
    assert one.settings["client.id"] == "me"
    own = Configured()
    assert made_of(producer({"interceptor.classes": [own], "interceptors": ["after"]})) == [own, "after"]


def test_a_failing_interceptor_constructor_is_an_error_and_closes_the_others() -> None:
    first = Configured()
    config = producer({"interceptor.classes": [first, Unwilling]})
    with pytest.raises(
        errors.ConfigError, match=r"interceptor\.classes=.*Unwilling.*cannot be made: LookupE"
    ):
        made_of(config)
    assert first.closed == 1
    with pytest.raises(errors.ConfigError, match=r"has no on_consume\(\); must be an object with on_consume"):
        consumer(interceptor_classes=[Configured])


@pytest.mark.parametrize("given", [Configured, Configured(), f"{NAME}.Configured", lambda t, k, v, n: 7 % n])
def test_partitioners_are_objects_classes_names_or_functions(
    given: object, caplog: pytest.LogCaptureFixture
) -> None:
    found = accumulator(producer({"partitioner.class": given}))
    assert found._partitioner is not None
    assert found._partitioner("t", None, None, 4) == 3
    with caplog.at_level(logging.WARNING):
        found.close_partitioner()
    assert len(caplog.records) == (not callable(given) or isinstance(given, type)), (
        "close failed, and is logged"
    )


def test_javas_partitioners_by_their_names() -> None:
    package = "org.apache.kafka.clients.producer."
    found = accumulator(producer({"partitioner.class": f"{package}RoundRobinPartitioner"}))
    assert isinstance(found._users_partitioner, RoundRobin)
    assert found._partitioner is not None
    assert [found._partitioner(name, b"k", None, 3) for name in "ttuttu"] == [0, 1, 0, 2, 0, 1]
    sticky = accumulator(producer({"partitioner.class": f"{package}UniformStickyPartitioner"}))
    assert sticky._partitioner is not None
    assert sticky._partitioner("t", b"k", None, 3) is None
    with pytest.raises(errors.ConfigError, match=r"partitioner\.class=.*cannot be imported"):
        producer({"partitioner.class": "com.example.Own"})
    with pytest.raises(errors.ConfigError, match="cannot be set with partitioner"):
        producer({"partitioner.class": Configured, "partitioner": "random"})
