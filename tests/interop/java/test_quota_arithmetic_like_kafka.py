"""Throttle times and precedence beside Kafka's own classes: the same calls to both, the same numbers.

Apache Kafka's classes run in a Java process that py4j talks to; the times are ours.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from bench.apache_kafka import kafka_classpath
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.quotas.broker import ALL_PARTITIONS, ConnectionQuotas, ReplicationQuota, throttled_partitions
from ottla.quotas.clients import ClientQuotas
from ottla.quotas.levels import DEFAULT, UNNAMED, Name, QuotaEntity
from ottla.quotas.mutations import ControllerMutationQuotas, TokenBucket
from ottla.quotas.rates import Rate, Windows
from tests.oracles import java, needs_kafka_jars

py4j_gateway = pytest.importorskip("py4j.java_gateway")
py4j_protocol = pytest.importorskip("py4j.protocol")

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
        process.wait()  # not communicate: a thread of py4j closes the output as soon as the process has ended
        process.stdin.close()
        process.stdout.close()


class KafkaQuotas:
    """A `ClientQuotaManager` of Kafka's, or one of its kin, with our interface."""

    def __init__(self, jvm: Any, windows: Windows, kin: str | None = None) -> None:
        self._jvm = jvm
        server = jvm.kafka.server
        config = jvm.org.apache.kafka.server.config.ClientQuotaManagerConfig(
            windows.samples, windows.window_ms // 1000
        )
        metrics = jvm.org.apache.kafka.common.metrics.Metrics()
        kind = getattr(server, "QuotaType$Produce$").__getattr__("MODULE$")
        none = jvm.scala.Option.empty()
        time = jvm.org.apache.kafka.common.utils.Time.SYSTEM
        self._manager = (
            server.ClientQuotaManager(config, metrics, kind, time, "t", none)
            if kin is None
            else getattr(server, kin)(config, metrics, time, "t", none)
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
        found = self._manager.recordAndGetThrottleTimeMs(
            self._sessions[user], client_id, float(amount), now_ms
        )
        return int(found)

    def max_burst(self, user: str, client_id: str) -> float:
        return float(self._manager.getMaxValueInQuotaWindow(self._sessions[user], client_id))


class Strict(ControllerMutationQuotas):
    """Our token buckets, asked as Kafka's manager is."""

    def record(self, user: str, client_id: str, amount: float, now_ms: int) -> int:
        quota = self.of(user, client_id, now_ms, strict=True)
        try:
            quota.record(int(amount), now_ms)
        except KafkaError as error:
            if error.code != ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                raise
            return quota.throttle_ms(now_ms)
        return 0

    def max_burst(self, user: str, client_id: str) -> int | None:
        raise NotImplementedError


def both(
    jvm: Any,
    windows: Windows,
    steps: list[tuple[Any, ...]],
    kin: str | None = None,
    make: Callable[[Windows], ClientQuotas | Strict] = ClientQuotas,
) -> tuple[list[Any], list[Any]]:
    """What Kafka and we answer to ("update", entity, limit), ("record", …) and ("most", …)."""
    kafka, ours = KafkaQuotas(jvm, windows, kin), make(windows)
    theirs: list[Any] = []
    mine: list[Any] = []
    try:
        for verb, *arguments in steps:
            if verb == "update":
                kafka.update(*arguments)
                ours.update(*arguments)
            elif verb == "record":
                # Kafka's handlers act on a positive time only, and ask nothing before there are quotas.
                theirs.append(max(0, kafka.record(*arguments)) if ours.enabled else 0)
                mine.append(ours.record(*arguments) if ours.enabled else 0)
            else:
                most = kafka.max_burst(*arguments)
                theirs.append(None if most > 1e300 else max(0, min(int(most), 2**31 - 1)))
                mine.append(ours.max_burst(*arguments))
    finally:
        kafka.close()
    return theirs, mine


def scenario(
    rng: random.Random, *, limits: Sequence[float], amounts: Sequence[float], most: bool
) -> list[tuple[Any, ...]]:
    """Bursts, silences, windows that end just then, limits that change; every level of precedence."""
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
            limit = None if rng.random() < 0.4 else float(rng.choice(limits))
            steps.append(("update", rng.choice(entities), limit))
        who = rng.choice(USERS), rng.choice(CLIENTS)
        steps.append(("record", *who, rng.choice(amounts), now_ms))
        if most and rng.random() < 0.1:
            steps.append(("most", *who))
        now_ms += rng.choice((0, 1, 7, 250, 999, 1000, 1001, 3000, 10_500, 25_000))
    return steps


@pytest.mark.parametrize("seed", range(4))
def test_every_throttle_time_is_kafkas(jvm: Any, seed: int) -> None:
    rng = random.Random(seed)
    windows = Windows(rng.choice((11, 2, 1)) if seed else 11, rng.choice((1000, 2000)) if seed else 1000)
    limits, amounts = (0, 1, 1000, 20_000, 123_457), (1, 100, 3000, 65_536, 1_000_003)
    theirs, mine = both(jvm, windows, scenario(rng, limits=limits, amounts=amounts, most=True))
    assert sum(1 for answer in theirs if answer) > 20, "hardly anything was throttled"
    assert mine == theirs


@pytest.mark.parametrize("seed", range(2))
def test_throttle_times_of_request_percentage_equal_kafkas(jvm: Any, seed: int) -> None:
    """request_percentage: nobody waits longer than a window."""
    rng = random.Random(seed)
    steps = scenario(rng, limits=(0, 0.05, 0.5, float("nan")), amounts=(0.001, 0.05, 0.4, 40), most=False)
    now_ms: int = steps[-1][-1]
    # Somebody who is over the limit by a little, for long.
    steps.append(("update", QuotaEntity("anna", "c1"), 1.0))
    for _ in range(300):
        now_ms += rng.randrange(160)
        steps.append(("record", "anna", "c1", rng.uniform(0.05, 0.12), now_ms))
    make = partial(ClientQuotas, is_bounded=True)
    theirs, mine = both(jvm, Windows(11, 1000), steps, "ClientRequestQuotaManager", make)
    assert 1000 in theirs, "nobody waited for the whole window"
    assert len(set(theirs)) > 10
    assert mine == theirs


@pytest.mark.parametrize("seed", range(2))
def test_throttle_times_of_controller_mutations_equal_kafkas(jvm: Any, seed: int) -> None:
    """controller_mutation_rate, strict: nothing is counted of what is refused."""
    rng = random.Random(seed)
    windows = Windows(rng.choice((11, 2, 1)), rng.choice((1000, 2000)))
    steps = scenario(rng, limits=(0, 0.1, 1, 2.5, 40), amounts=(0, 1, 5, 100, 10_000), most=False)
    theirs, mine = both(jvm, windows, steps, "ControllerMutationQuotaManager", Strict)
    assert len(set(theirs)) > 10, "hardly anything was throttled"
    assert mine == theirs


def test_the_tokens_of_a_bucket_equal_kafkas(jvm: Any) -> None:
    """Permissive ones may be overdrawn again and again."""
    rng = random.Random(3)
    metrics = jvm.org.apache.kafka.common.metrics
    seconds = jvm.java.util.concurrent.TimeUnit.SECONDS

    def config(limit: float) -> Any:
        return (
            metrics.MetricConfig().timeWindow(1, seconds).samples(11).quota(metrics.Quota.upperBound(limit))
        )

    kafka, ours = metrics.stats.TokenBucket(), TokenBucket(Windows(), 5.0)
    their_config = config(5.0)
    now_ms = START_MS
    for _ in range(500):
        if rng.random() < 0.1:
            ours.limit = float(rng.choice((0, 0.3, 5, 40)))
            their_config = config(ours.limit)
        if rng.random() < 0.5:
            partitions = rng.choice((1, 3, 30, 300))
            kafka.record(their_config, float(partitions), now_ms)
            ours.take(partitions, now_ms)
        assert ours.tokens(now_ms) == kafka.measure(their_config, now_ms)
        now_ms += rng.choice((0, 3, 500, 1000, 1001, 12_000))


def test_throttle_times_of_connections_equal_kafkas(jvm: Any) -> None:
    """A listener's sensor, and one of an address, whose refused connections are not counted."""
    rng = random.Random(11)
    metrics = jvm.org.apache.kafka.common.metrics
    seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
    utils = jvm.kafka.utils.QuotaUtils

    class Sensor:
        def __init__(self, name: str, limit: int) -> None:
            bound = metrics.Quota.upperBound(float(limit))
            config = metrics.MetricConfig().timeWindow(1, seconds).samples(11).quota(bound)
            self.sensor = metrics.Metrics(config).sensor(name)
            name_of_metric = jvm.org.apache.kafka.common.MetricName(name, "g", "", jvm.java.util.HashMap())
            self.sensor.add(name_of_metric, metrics.stats.Rate())

        def wait_ms(self, now_ms: int) -> int:
            try:
                self.sensor.record(1.0, now_ms)
            except py4j_protocol.Py4JJavaError as error:
                return int(utils.boundedThrottleTime(error.java_exception, 1000, now_ms))
            return 0

    listener, address = Sensor("listener", 3), Sensor("address", 2)
    ours = ConnectionQuotas(Windows())
    ours.set_address_limit("10.0.0.1", 2)
    now_ms = START_MS
    theirs, mine = [], []
    for _ in range(400):
        theirs.append(listener.wait_ms(now_ms))
        mine.append(ours.accepted("L", 3, None, now_ms))
        if rng.random() < 0.5:
            refused_ms = address.wait_ms(now_ms)
            if refused_ms:
                address.sensor.record(-1.0, now_ms, False)
                listener.sensor.record(-1.0, now_ms, False)
            theirs.append(refused_ms)
            mine.append(ours.record_address("10.0.0.1", "L", now_ms, of_broker=False))
        assert ours.record_address("10.0.0.2", "L", now_ms, of_broker=False) == 0
        now_ms += rng.choice((0, 1, 30, 250, 400, 1000, 5000))
    assert len(set(theirs)) > 5
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


def test_extreme_limits_have_kafkas_throttle_times(jvm: Any) -> None:
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
    kafka, ours = metrics.stats.SimpleRate(), Rate(Windows(), is_simple=True)
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
    everything = theirs == set(ALL_PARTITIONS)
    assert [p for p in range(8) if quota.is_throttled("t", p)] == (
        list(range(8)) if everything else sorted(theirs)
    )
