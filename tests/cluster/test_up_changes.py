"""`ottla up` applies changes: scaling, rolling restarts, settings of other tools; a killed broker comes back.

One run for all tests of this module; each leaves it Ready, as it found it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from bench.apache_kafka import run_tool
from ottla.client.admin import AdminClient
from ottla.local.cluster import run_admin
from ottla.local.processes import port_in_use
from tests.judges.up_session import HOST, UpSession
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)

TOPIC = {"clusterRef": {"name": "demo"}, "partitions": 6, "replicas": 3, "config": {"min.insync.replicas": 2}}


def cluster_spec(replicas: int = 3, **config: object) -> dict[str, object]:
    base = {"group.initial.rebalance.delay.ms": 0, "log.segment.bytes": 1_000_000}
    base |= {"zookeeper.session.timeout.ms": 4000, "zookeeper.connection.timeout.ms": 60_000}
    return {"replicas": replicas, "config": {**base, **config}}


STATIC_CHANGED = {"replica.fetch.max.bytes": 2_000_000}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpSession]:
    session = UpSession(tmp_path_factory.mktemp("up"))
    session.write("BrokerCluster", "demo", cluster_spec())
    session.write("Topic", "orders", TOPIC)
    with session:
        bootstrap, zookeeper = session.wait_ready()
        assert bootstrap == ",".join(f"{HOST}:{session.port + broker}" for broker in range(3))
        assert zookeeper.startswith(f"{HOST}:")
        yield session


class Writer:
    """Writes with acks=all and idempotence until told to stop, and counts what was confirmed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.confirmed: list[int] = []
        self.failed: list[str] = []
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "delivery.timeout.ms": 120_000,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._producer.produce(self._topic, str(number).encode(), on_delivery=self._delivered(number))
            number += 1
            self._producer.poll(0.005)
        self._producer.flush(120)

    def _delivered(self, number: int) -> Callable[[object, object], None]:
        def delivered(error: object, message: object) -> None:
            if error is None:
                self.confirmed.append(number)
            else:
                self.failed.append(str(error))

        return delivered

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(150)
        assert not self._thread.is_alive()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def read_all(bootstrap: str, topic: str, partitions: int, expected: set[int]) -> Counter[int]:
    """All there is, and until all came that is expected: a new leader may not know at once of the last."""
    with Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "checker", "enable.partition.eof": True}
    ) as consumer:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found: Counter[int] = Counter()
        ended: set[int | None] = set()
        deadline = time.monotonic() + 120
        while (len(ended) < partitions or not expected <= found.keys()) and time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            problem = message.error()
            if problem is not None:
                if problem.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
            else:
                found[int(message.value() or b"")] += 1
    return found


def load(session: UpSession, topic: str) -> Counter[int]:
    """How many replicas each broker has."""
    described = session.topic(topic)
    partitions = described.partitions if described is not None else ()
    return Counter(broker for partition in partitions for broker in partition.replicas)


def test_a_fourth_broker_joins_gets_its_share_and_is_drained_again(up: UpSession) -> None:
    def shared() -> bool:
        on = load(up, "orders")
        return set(on) == {0, 1, 2, 3} and max(on.values()) - min(on.values()) <= 1

    with Writer(up.bootstrap, "orders") as writer:
        up.write("BrokerCluster", "demo", cluster_spec(4))
        up.wait_line(rf"^ready bootstrap=\S+,{HOST}:{up.port + 3} ")
        up.wait_until(shared, "each broker to have its share")
        up.write("BrokerCluster", "demo", cluster_spec(3))
        up.wait_ready()
    up.wait_until(lambda: set(load(up, "orders")) == {0, 1, 2}, "the fourth to have none")
    up.wait_until(lambda: not port_in_use(up.port + 3), "the fourth to be gone")
    assert not writer.failed
    found = read_all(up.bootstrap, "orders", 6, set(writer.confirmed))
    assert len(writer.confirmed) > 100
    assert set(writer.confirmed) <= set(found)
    assert set(found.values()) == {1}


def test_a_changed_static_setting_bounces_one_broker_at_a_time(up: UpSession) -> None:
    pids = {broker: up.broker_pid(broker) for broker in range(3)}
    watching = threading.Event()
    most_down = 0

    def look() -> set[int]:
        return {broker for broker in range(3) if not port_in_use(up.port + broker)}

    def watch() -> None:
        nonlocal most_down
        while not watching.is_set():
            down = look()
            if len(down) > 1:  # one look takes time, in which one may come up and another go down
                down &= look()
            most_down = max(most_down, len(down))
            time.sleep(0.02)

    watcher = threading.Thread(target=watch, daemon=True)
    with Writer(up.bootstrap, "orders") as writer:
        watcher.start()
        try:
            up.write("BrokerCluster", "demo", cluster_spec(**STATIC_CHANGED))
            up.wait_ready()
            up.wait_until(
                lambda: all(up.broker_pid(broker) != pid for broker, pid in pids.items()), "each bounced"
            )
        finally:
            watching.set()
            watcher.join()
    assert most_down == 1
    assert not writer.failed
    order = [
        line.split(" stop broker ")[1][0]
        for line in up.lines
        if "rolling restart: replica.fetch.max.bytes" in line
    ]
    assert sorted(order) == ["0", "1", "2"]

    async def setting(client: AdminClient) -> set[str | None]:
        found = [await client.describe_broker_configs(broker) for broker in range(3)]
        return {settings["replica.fetch.max.bytes"].value for settings in found}

    up.wait_until(lambda: run_admin([(HOST, up.port)], setting) == {"2000000"}, "all to have the setting")
    up.wait_until(lambda: up.condition("BrokerCluster/demo")[0] == "True", "all to be well")


def kafka_configs(up: UpSession, *arguments: str) -> str:
    """Java's kafka-configs."""
    done = run_tool("kafka.admin.ConfigCommand", ["--bootstrap-server", up.bootstrap, *arguments])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_settings_that_other_tools_set_are_shown_and_stay(up: UpSession) -> None:
    needs_kafka_jars()
    named = {**STATIC_CHANGED, "log.segment.bytes": 3_000_000}
    up.write("BrokerCluster", "demo", cluster_spec(**named, **{"log.index.interval.bytes": 5000}))
    up.write("Topic", "orders", {**TOPIC, "partitions": 8})
    up.wait_line("alter the brokers' settings: log.index.interval.bytes=5000")
    up.wait_until(lambda: up.condition("BrokerCluster/demo")[0] == "True", "the spec to be applied")
    all_brokers = ("--entity-type", "brokers", "--entity-default")
    one_broker = ("--entity-type", "brokers", "--entity-name", "1")
    orders = ("--entity-type", "topics", "--entity-name", "orders")
    theirs = "log.retention.ms=86400001,follower.replication.throttled.rate=9000001,plugin.secret=s3cret"
    kafka_configs(up, *all_brokers, "--alter", "--add-config", f"{theirs},log.segment.bytes=4000000")
    kafka_configs(up, *one_broker, "--alter", "--add-config", "leader.replication.throttled.rate=9000002")
    kafka_configs(up, *orders, "--alter", "--add-config", "retention.bytes=9000003,min.insync.replicas=1")
    up.wait_line("alter the brokers' settings: log.segment.bytes=3000000")
    up.wait_line("alter topic orders: min.insync.replicas=2")

    def unmanaged(key: str) -> dict[str, str | None]:
        resource = up.resource(key)
        assert resource is not None
        return {each["name"]: each.get("value") for each in resource["status"]["unmanagedSettings"]}

    shown = {
        "follower.replication.throttled.rate": "9000001",
        "log.retention.ms": "86400001",
        "plugin.secret": None,
    }
    up.wait_until(lambda: unmanaged("BrokerCluster/demo") == shown, "the status to show them")
    up.wait_until(
        lambda: unmanaged("Topic/orders") == {"retention.bytes": "9000003"}, "the topic's to be shown"
    )

    # A field that the resource names no more is reset; by then the operator has looked often enough.
    up.write("BrokerCluster", "demo", cluster_spec(**named))
    up.wait_line("alter the brokers' settings: log.index.interval.bytes to default")
    up.wait_until(
        lambda: "log.index.interval.bytes" not in up.cluster_status()["managedSettings"], "it to be reset"
    )
    of_all = kafka_configs(up, *all_brokers, "--describe")
    assert "log.retention.ms=86400001 sensitive=false" in of_all
    assert "follower.replication.throttled.rate=9000001" in of_all
    assert "plugin.secret=null sensitive=true" in of_all
    assert "log.segment.bytes=3000000" in of_all
    assert "log.index.interval.bytes" not in of_all
    assert "leader.replication.throttled.rate=9000002" in kafka_configs(up, *one_broker, "--describe")
    of_topic = kafka_configs(up, *orders, "--describe")
    assert "retention.bytes=9000003" in of_topic
    assert "min.insync.replicas=2" in of_topic
    changes = [line for line in up.lines if " alter " in line]
    names = ("log.retention.ms", "throttled.rate", "plugin", "retention.bytes")
    assert not [line for line in changes if any(name in line for name in names)]

    left = "log.retention.ms,follower.replication.throttled.rate,plugin.secret"
    kafka_configs(up, *all_brokers, "--alter", "--delete-config", left)
    kafka_configs(up, *one_broker, "--alter", "--delete-config", "leader.replication.throttled.rate")
    kafka_configs(up, *orders, "--alter", "--delete-config", "retention.bytes")
    up.wait_until(lambda: not unmanaged("BrokerCluster/demo") | unmanaged("Topic/orders"), "none to be left")
    up.wait_until(lambda: up.condition("BrokerCluster/demo")[0] == "True", "all to be well")


def test_a_killed_broker_is_restarted(up: UpSession) -> None:
    up.wait_until(lambda: up.cluster_status()["controllerId"] in (0, 1, 2), "a controller")
    controller = up.cluster_status()["controllerId"]
    pid = up.broker_pid(controller)
    with Writer(f"{HOST}:{up.port + (controller + 1) % 3}", "orders") as writer:
        os.kill(pid, signal.SIGKILL)
        up.wait_line(f"broker {controller} Crashed: was killed by signal 9")
        up.wait_ready()
    up.wait_until(lambda: up.broker_pid(controller) != pid, "it to be another process")
    assert not writer.failed
    up.wait_until(lambda: up.condition("BrokerCluster/demo", "FullyReplicated")[0] == "True", "full ISRs")
