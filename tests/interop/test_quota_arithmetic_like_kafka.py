"""Throttle times and precedence beside Kafka's own classes: the same calls to both, the same numbers.

Apache Kafka's classes run in a Java process that py4j talks to; the times are ours.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from judges import java, needs_kafka_jars

from bench.apache_kafka import kafka_classpath
from ottla.quotas.clients import DEFAULT, UNNAMED, ClientQuotas, Name, QuotaEntity
from ottla.quotas.rates import SimpleRate, Windows
from ottla.quotas.replication import EVERY_PARTITION, ReplicationQuota, throttled_partitions

py4j_gateway = pytest.importorskip("py4j.java_gateway")

START_MS = 1_700_000_000_000
USERS = ("anna", "bert")
CLIENTS = ("c1", "c2", "")


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    needs_kafka_jars()
    java()
    port, process = py4j_gateway.launch_gateway(
        classpath=kafka_classpath(),
        javaopts=["-Xmx128m", "-XX:+UseSerialGC"],
        die_on_exit=True,
        return_proc=True,
        redirect_stderr=subprocess.DEVNULL,
    )
    gateway = py4j_gateway.JavaGateway(
        gateway_parameters=py4j_gateway.GatewayParameters(port=port, auto_convert=True)
    )
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        process.kill()
        process.wait()


class KafkaQuotas:
    """A `ClientQuotaManager` of Kafka's, with our interface."""

    def __init__(self, jvm: Any, windows: Windows) -> None:
        self._jvm = jvm
        server = jvm.kafka.server
        config = jvm.org.apache.kafka.server.config.ClientQuotaManagerConfig(
            windows.samples, windows.window_ms // 1000
        )
        metrics = jvm.org.apache.kafka.common.metrics.Metrics()
        kind = getattr(server, "QuotaType$Produce$").__getattr__("MODULE$")
        none = jvm.scala.Option.empty()
        self._manager = server.ClientQuotaManager(
            config, metrics, kind, jvm.org.apache.kafka.common.utils.Time.SYSTEM, "t", none
        )
        address = jvm.java.net.InetAddress.getLoopbackAddress()
        self._sessions = {
            user: jvm.org.apache.kafka.network.Session(
                jvm.org.apache.kafka.common.security.auth.KafkaPrincipal("User", user), address
            )
            for user in USERS
        }

    def close(self) -> None:
        self._manager.shutdown()

    def update(self, entity: QuotaEntity, limit: float | None) -> None:
        option = self._jvm.scala.Option

        def name(value: Name) -> Any:
            return (
                option.empty()
                if value == UNNAMED
                else option.apply("<default>" if value is DEFAULT else value)
            )

        quota = (
            option.empty()
            if limit is None
            else option.apply(self._jvm.org.apache.kafka.common.metrics.Quota(limit, True))
        )
        client = name(entity.client_id)
        self._manager.updateQuota(name(entity.user), client, client, quota)

    def record(self, user: str, client_id: str, amount: float, now_ms: int) -> int:
        found = self._manager.maybeRecordAndGetThrottleTimeMs(
            self._sessions[user], client_id, float(amount), now_ms
        )
        return int(found)

    def most_at_once(self, user: str, client_id: str) -> float:
        return float(self._manager.getMaxValueInQuotaWindow(self._sessions[user], client_id))


def both(jvm: Any, windows: Windows, steps: list[tuple[Any, ...]]) -> tuple[list[Any], list[Any]]:
    """What Kafka and we answer to ("update", entity, limit), ("record", …) and ("most", …)."""
    kafka, ours = KafkaQuotas(jvm, windows), ClientQuotas(windows)
    theirs: list[Any] = []
    mine: list[Any] = []
    try:
        for verb, *arguments in steps:
            if verb == "update":
                kafka.update(*arguments)
                ours.update(*arguments)
            elif verb == "record":
                # Kafka's handlers act on a positive time only, and ask nothing before there are quotas.
                theirs.append(max(0, kafka.record(*arguments)))
                mine.append(ours.record(*arguments) if ours.enabled else 0)
            else:
                most = kafka.most_at_once(*arguments)
                theirs.append(None if most > 1e300 else max(0, min(int(most), 2**31 - 1)))
                mine.append(ours.most_at_once(*arguments))
    finally:
        kafka.close()
    return theirs, mine


@pytest.mark.parametrize("seed", range(4))
def test_every_throttle_time_is_kafkas(jvm: Any, seed: int) -> None:
    """Bursts, silences, windows that end just then, limits that change; every level of precedence."""
    rng = random.Random(seed)
    windows = Windows(rng.choice((11, 2, 1)) if seed else 11, rng.choice((1000, 2000)) if seed else 1000)
    names: tuple[Name, ...] = (UNNAMED, DEFAULT)
    entities = [
        QuotaEntity(user, client)
        for user in (*names, *USERS)
        for client in (*names, "c1", "c2")
        if (user, client) != (UNNAMED, UNNAMED)
    ]
    now_ms = START_MS
    steps: list[tuple[Any, ...]] = []
    for _ in range(500):
        if rng.random() < 0.06:
            limit = None if rng.random() < 0.4 else float(rng.choice((0, 1, 1000, 20_000, 123_457)))
            steps.append(("update", rng.choice(entities), limit))
        who = rng.choice(USERS), rng.choice(CLIENTS)
        steps.append(("record", *who, rng.choice((1, 100, 3000, 65_536, 1_000_003)), now_ms))
        if rng.random() < 0.1:
            steps.append(("most", *who))
        now_ms += rng.choice((0, 1, 7, 250, 999, 1000, 1001, 3000, 10_500, 25_000))
    theirs, mine = both(jvm, windows, steps)
    assert sum(1 for answer in theirs if answer) > 20, "hardly anything was throttled"
    assert mine == theirs


def test_the_most_specific_level_holds(jvm: Any) -> None:
    """All eight levels set, then taken away from the top: each time the next one counts."""
    levels = [
        QuotaEntity("anna", "c1"),
        QuotaEntity("anna", DEFAULT),
        QuotaEntity("anna", UNNAMED),
        QuotaEntity(DEFAULT, "c1"),
        QuotaEntity(DEFAULT, DEFAULT),
        QuotaEntity(DEFAULT, UNNAMED),
        QuotaEntity(UNNAMED, "c1"),
        QuotaEntity(UNNAMED, DEFAULT),
    ]
    steps: list[tuple[Any, ...]] = [
        ("update", entity, 1000.0 * number) for number, entity in enumerate(levels, 1)
    ]
    for entity in levels:
        steps += [
            ("most", "anna", "c1"),
            ("most", "anna", "c2"),
            ("most", "bert", "c1"),
            ("most", "bert", ""),
        ]
        steps.append(("update", entity, None))
    steps.append(("most", "anna", "c1"))
    theirs, mine = both(jvm, Windows(), steps)
    assert mine == theirs
    assert mine[::4] == [*(10_000 * number for number in range(1, 9)), None]


def test_a_limit_beyond_all_time_throttles_as_little_as_in_kafka(jvm: Any) -> None:
    """Kafka keeps 32 bits of a throttle time: 0 bytes per second is no limit at all."""
    steps: list[tuple[Any, ...]] = []
    for limit in (0.0, 1.0, -5.0, 1e-9, 2.0**62):
        steps.append(("update", QuotaEntity(UNNAMED, DEFAULT), limit))
        steps += [("record", "anna", "c1", amount, START_MS) for amount in (10**6, 10**9, 10**12)]
    theirs, mine = both(jvm, Windows(), steps)
    assert mine == theirs


def test_replication_rates_are_kafkas(jvm: Any) -> None:
    rng = random.Random(7)
    metrics = jvm.org.apache.kafka.common.metrics
    config = metrics.MetricConfig().timeWindow(1, jvm.java.util.concurrent.TimeUnit.SECONDS).samples(11)
    kafka, ours = metrics.stats.SimpleRate(), SimpleRate(Windows())
    now_ms = START_MS
    for _ in range(500):
        if rng.random() < 0.5:
            size = rng.randrange(1, 10**6)
            kafka.record(config, float(size), now_ms)
            ours.record(size, now_ms)
        assert ours.measure(now_ms)[0] == kafka.measure(config, now_ms)
        now_ms += rng.choice((0, 3, 500, 1000, 1001, 12_000))


@pytest.mark.parametrize("setting", ["*", " * ", "", "0:1", "0:1,3:2,4:1,5:11", "7:2", "0:1,"])
def test_throttled_replicas_are_read_as_kafka_reads_them(jvm: Any, setting: str) -> None:
    handler = jvm.kafka.server.TopicConfigHandler(None, None, None, jvm.scala.Option.empty())
    properties = jvm.java.util.Properties()
    properties.setProperty("leader.replication.throttled.replicas", setting)
    found = handler.parseThrottledPartitions(properties, 1, "leader.replication.throttled.replicas")
    theirs = {found.apply(i) for i in range(found.size())}
    assert throttled_partitions(setting, 1) == theirs
    quota = ReplicationQuota(Windows())
    quota.throttle("t", throttled_partitions(setting, 1))
    everything = theirs == set(EVERY_PARTITION)
    assert [p for p in range(8) if quota.is_throttled("t", p)] == (
        list(range(8)) if everything else sorted(theirs)
    )
