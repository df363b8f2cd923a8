"""Brokers as local processes: states, crashes, back-off and ports, with a fake process."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ottla.local.processes import free_port
from ottla_operator.planning.observed import BrokerInstance
from ottla_operator.planning.revision import PerBroker
from ottla_operator.platform import local
from ottla_operator.platform.interfaces import BrokerLaunch, StepFailed
from ottla_operator.platform.local import LocalPlatform
from ottla_operator.platform.local_security import SecretFiles
from ottla_operator.platform.processes import exit_message
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.cluster import PoolBrokers
from ottla_operator.resources.common import Storage
from ottla_operator.resources.loading import parse_resource
from tests.certificates import Authority

LAUNCH = BrokerLaunch("one", {"a": "1"}, {"a": "1", "b": "2"})


class FakeProcess:
    """A broker's process that a test starts and ends."""

    last: FakeProcess

    def __init__(self, broker_id: int, directory: Path, port: int, *, host: str) -> None:
        self.broker_id = broker_id
        self.running = False
        self.exit_code: int | None = None
        self.properties: dict[str, str] = {}
        FakeProcess.last = self

    def write_properties(self, zookeeper_connect: str, settings: Mapping[str, str]) -> None:
        self.properties = {"zookeeper.connect": zookeeper_connect, **settings}

    def start(self) -> None:
        self.running = True

    def terminate(self) -> None:
        self.end(0)

    def end(self, code: int) -> None:
        self.running, self.exit_code = False, code

    def log_tail(self, lines: int) -> str:
        return "starting\nbroker 0 cannot start: the folder is locked\n"


def a_cluster(**spec: object) -> BrokerCluster:
    content = {"replicas": 1, "zookeeper": {"connect": "zk:1"}, **spec}
    cluster, problems = parse_resource("BrokerCluster", {"name": "demo"}, content)
    assert isinstance(cluster, BrokerCluster), problems
    return cluster


class LocalPlatformFixture:
    def __init__(self, data: Path) -> None:
        self.now_ms = 1_000_000
        self.ready = False
        self.data = data
        self.port = free_port()
        self.cluster = a_cluster()
        self.platform = self.new_platform()

    def new_platform(self) -> LocalPlatform:
        platform = LocalPlatform(
            self.data, self.port, lambda: self.now_ms, SecretFiles(self.data / "secrets")
        )

        async def probe(port: int) -> bool:
            return self.ready

        platform._probe = probe  # type: ignore[method-assign]
        return platform

    def observe(self) -> BrokerInstance:
        zookeeper, brokers = asyncio.run(self.platform.observe(self.cluster))
        assert zookeeper.running
        return brokers[0]

    def start(self, launch: BrokerLaunch | None = LAUNCH) -> None:
        asyncio.run(self.platform.start_broker(self.cluster, 0, launch))

    def stop(self) -> None:
        asyncio.run(self.platform.stop_broker(self.cluster, 0))

    def start_ready(self) -> None:
        self.ready = False
        self.start()
        self.observe()
        self.ready = True
        assert self.observe().state == "Running"


@pytest.fixture
def fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalPlatformFixture:
    monkeypatch.setattr(local, "BrokerProcess", FakeProcess)
    return LocalPlatformFixture(tmp_path)


def test_a_broker_is_starting_until_it_responds(fixture: LocalPlatformFixture) -> None:
    fixture.start()
    assert FakeProcess.last.properties == {"zookeeper.connect": "zk:1", "a": "1", "b": "2"}
    assert (fixture.observe().state, fixture.observe().ready) == ("Starting", False)
    fixture.ready = True
    instance = fixture.observe()
    assert (instance.state, instance.ready, instance.ready_since_ms) == ("Running", True, fixture.now_ms)
    assert (instance.config_hash, instance.settings) == ("one", {"a": "1"})
    fixture.ready = False
    assert fixture.observe().message == "the broker does not respond"


def test_a_requested_stop_of_a_broker_is_not_a_crash(fixture: LocalPlatformFixture) -> None:
    fixture.start_ready()
    fixture.stop()
    instance = fixture.observe()
    assert instance.state == "Stopped"
    assert instance.stopped_by_us
    assert instance.crashes == 0


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            "12:00:00,1 INFO    ottla: hello\n12:00:01,1 ERROR   ottla: broker 0 cannot start: no ZooKeeper\n"
            "12:00:02,1 INFO    ottla.broker: stopped broker.id=0\n",
            "ottla: broker 0 cannot start: no ZooKeeper",
        ),
        ("12:00:01,1 ERROR   ottla: before\nottla broker: num.x=1: no\n", "ottla broker: num.x=1: no"),
        ("Traceback (most recent call last):\n  File x\nValueError: y\n\n", "ValueError: y"),
        ("12:00:00,1 INFO    ottla: hello\n", "12:00:00,1 INFO    ottla: hello"),
        ("", ""),
    ],
)
def test_the_cause_of_an_exit_is_the_last_log_line_above_info(log: str, words: str) -> None:
    assert exit_message(log) == words


@pytest.mark.parametrize(
    ("code", "message"),
    [(-9, "was killed by signal 9"), (1, "ended with code 1: broker 0 cannot start: the folder is locked")],
)
def test_a_crash_is_reported_with_exit_code_and_cause(
    fixture: LocalPlatformFixture, code: int, message: str
) -> None:
    fixture.start_ready()
    FakeProcess.last.end(code)
    instance = fixture.observe()
    assert (instance.state, instance.message, instance.crashes) == ("Crashed", message, 1)


def test_a_crashing_broker_is_restarted_with_exponential_back_off(fixture: LocalPlatformFixture) -> None:
    fixture.start()
    pauses = []
    for _ in range(8):
        FakeProcess.last.end(1)
        fixture.observe()
        crashed_at, crashed = fixture.now_ms, FakeProcess.last
        while FakeProcess.last is crashed:
            fixture.now_ms += 500
            fixture.start()
        pauses.append(fixture.now_ms - crashed_at)
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]


def test_a_new_revision_starts_without_back_off(fixture: LocalPlatformFixture) -> None:
    fixture.start()
    for _ in range(3):
        FakeProcess.last.end(1)
        fixture.observe()
        fixture.now_ms += 60_000
        fixture.start()
    FakeProcess.last.end(1)
    fixture.observe()
    fixture.start(BrokerLaunch("two"))
    assert FakeProcess.last.running
    assert fixture.observe().crashes == 0


def test_crashes_are_reset_after_being_ready_for_some_time(fixture: LocalPlatformFixture) -> None:
    fixture.start_ready()
    FakeProcess.last.end(1)
    fixture.observe()
    fixture.now_ms += 1_000
    fixture.start_ready()
    assert fixture.observe().crashes == 1
    fixture.now_ms += local.BACK_OFF_RESET_MS + 1
    assert fixture.observe().crashes == 0


def test_a_port_in_use_is_reported(fixture: LocalPlatformFixture) -> None:
    with socket.socket() as taken:
        taken.bind((local.HOST, fixture.port))
        taken.listen()
        with pytest.raises(StepFailed, match=f"port {fixture.port}, for broker 0, is in use"):
            fixture.start()
    fixture.start()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "127.0.0.1"])
def test_a_fixed_http_port_is_increased_by_the_broker_id(fixture: LocalPlatformFixture, host: str) -> None:
    first = free_port()
    settings = {"ottla.http.port": str(first), "ottla.http.host": host}
    fixture.cluster = a_cluster(replicas=3)
    for broker in range(3):
        asyncio.run(
            fixture.platform.start_broker(fixture.cluster, broker, BrokerLaunch("one", settings, settings))
        )
        assert FakeProcess.last.properties["ottla.http.port"] == str(first + broker)
    assert fixture.platform.http_addresses() == {n: f"127.0.0.1:{first + n}" for n in range(3)}
    FakeProcess.last.end(0)
    assert sorted(fixture.platform.http_addresses()) == [0, 1]
    fixture.platform = fixture.new_platform()
    asyncio.run(fixture.platform.start_broker(fixture.cluster, 1, None))
    assert FakeProcess.last.properties["ottla.http.port"] == str(first + 1), "counted once"


def test_an_http_port_of_zero_is_chosen_by_the_platform_and_reported(fixture: LocalPlatformFixture) -> None:
    settings = {"ottla.http.port": "0"}
    fixture.start(BrokerLaunch("one", settings, settings))
    port = FakeProcess.last.properties["ottla.http.port"]
    assert int(port) > 0
    assert fixture.platform.http_addresses() == {0: f"127.0.0.1:{port}"}


def test_an_http_port_used_by_a_listener_is_rejected(fixture: LocalPlatformFixture) -> None:
    fixture.cluster = a_cluster(replicas=3)
    settings = {"ottla.http.port": str(fixture.port + 2)}
    port = fixture.port + 2
    words = f"port {port}, for the metrics of broker 0, is also the port of a listener of broker 2; .*"
    assert re.match(words, fixture.platform.port_problem(fixture.cluster, 0, settings))
    with pytest.raises(StepFailed, match=words):
        asyncio.run(
            fixture.platform.start_broker(fixture.cluster, 0, BrokerLaunch("one", settings, settings))
        )
    high = fixture.platform.port_problem(fixture.cluster, 2, {"ottla.http.port": "65534"})
    assert high == "port 65536, for broker 2, is not a valid port; give another one with ottla.http.port"


def test_after_a_restart_of_the_operator_a_broker_starts_on_its_previous_revision(
    fixture: LocalPlatformFixture,
) -> None:
    fixture.start_ready()
    fixture.platform = fixture.new_platform()
    instance = fixture.observe()
    assert (instance.state, instance.config_hash, instance.stopped_by_us) == ("Stopped", "one", False)
    fixture.start(None)
    assert FakeProcess.last.properties == {"zookeeper.connect": "zk:1", "a": "1", "b": "2"}


@pytest.mark.parametrize("delete", [True, False])
def test_a_removed_broker_loses_its_volume_only_with_delete_volume(
    fixture: LocalPlatformFixture, delete: bool
) -> None:
    fixture.start_ready()
    volume = fixture.data / "brokers" / "0" / "data"
    volume.mkdir()
    (volume / "log").write_text("x")
    fixture.stop()
    fixture.observe()
    asyncio.run(fixture.platform.remove_broker(fixture.cluster, 0, delete_volume=delete))
    assert volume.exists() is not delete
    assert asyncio.run(fixture.platform.observe(fixture.cluster))[1] == {}


@pytest.mark.parametrize("delete", [True, False])
def test_each_volume_is_a_folder_and_a_removed_one_is_deleted_only_with_deleteclaim(
    fixture: LocalPlatformFixture, delete: bool
) -> None:
    volumes = [{"id": 0}, {"id": 3}]
    fixture.cluster = a_cluster(storage={"volumes": volumes, "deleteClaim": delete})
    folder = (fixture.data / "brokers" / "0").resolve()
    fixture.start(BrokerLaunch("two", {"volumes": "0,3"}))
    assert FakeProcess.last.properties["log.dirs"] == f"{folder / 'data'},{folder / 'data-3'}"
    for name in ("data", "data-3"):
        (folder / name).mkdir()
    fixture.stop()
    fixture.observe()
    fixture.start(BrokerLaunch("one", {}))
    assert "log.dirs" not in FakeProcess.last.properties
    assert (folder / "data").exists()
    assert (folder / "data-3").exists() is not delete
    fixture.stop()
    fixture.observe()
    asyncio.run(fixture.platform.remove_broker(fixture.cluster, 0, delete_volume=True))
    assert list(folder.glob("data*")) == []


def test_the_pool_of_a_broker_is_recorded_and_kept_when_the_pool_is_deleted(
    fixture: LocalPlatformFixture,
) -> None:
    own = fixture.cluster

    def observed() -> BrokerInstance:
        return asyncio.run(fixture.platform.observe(own))[1][1000]

    spec = own.spec.model_copy(update={"storage": Storage(delete_claim=True)})
    pooled = own.with_pools([PoolBrokers("fast", (1000,), (), own.spec, "a")])
    launch = BrokerLaunch("one", {"broker.rack": "a"}, {"broker.rack": "a"})
    asyncio.run(fixture.platform.start_broker(pooled, 1000, launch))
    assert (observed().pool, observed().rack, observed().delete_volume) == ("fast", "a", False)
    changed = own.with_pools([PoolBrokers("fast", (1000,), (), spec, "a")])
    asyncio.run(fixture.platform.ensure_children(changed, PerBroker(LAUNCH), under_replicated=False))
    assert observed().delete_volume
    FakeProcess.last.end(0)
    asyncio.run(fixture.platform.stop_broker(own, 1000))
    asyncio.run(fixture.platform.start_broker(own, 1000, None))
    assert (observed().pool, observed().delete_volume) == ("fast", True), "started without its pool"
    assert fixture.platform.kept_volumes() == {}
    (fixture.data / "brokers" / "1000" / "data").mkdir()
    FakeProcess.last.end(0)
    asyncio.run(fixture.platform.remove_broker(own, 1000, delete_volume=False))
    assert fixture.platform.kept_volumes() == {1000: ""}


# ---- secured clusters


def listener(name: str, kind: str, **more: object) -> dict[str, object]:
    return {"name": name, "port": 9093, "tls": True, "authentication": {"type": kind}, **more}


LISTENERS = [listener("words", "scram-sha-512"), listener("certs", "tls")]


def ensure_children(fixture: LocalPlatformFixture) -> Sequence[str]:
    ensuring = fixture.platform.ensure_children(fixture.cluster, PerBroker(LAUNCH), under_replicated=False)
    return asyncio.run(ensuring).steps


def test_a_secured_broker_has_a_port_for_each_listener_and_an_inter_broker_port(
    fixture: LocalPlatformFixture,
) -> None:
    fixture.cluster = a_cluster(listeners=LISTENERS, authorization={"type": "simple"})
    assert len(ensure_children(fixture)) == 4
    assert ensure_children(fixture) == [], "what is there stays"
    fixture.start_ready()
    settings = FakeProcess.last.properties
    between, *clients = settings["listeners"].split(",")
    assert clients == [f"WORDS://127.0.0.1:{fixture.port}", f"CERTS://127.0.0.1:{fixture.port + 100}"]
    assert between.startswith("REPLICATION://127.0.0.1:")
    assert settings["inter.broker.listener.name"] == "REPLICATION"
    files = [value for name, value in settings.items() if name.endswith("store.location")]
    assert len(files) == 5
    assert all(Path(file).is_file() for file in files)
    (address,) = fixture.platform.addresses(fixture.cluster, [0])
    assert between.endswith(f":{address[1]}")
    assert fixture.platform.bootstrap(fixture.cluster) == f"127.0.0.1:{fixture.port}"
    words, certs = fixture.platform.listeners(fixture.cluster)
    assert (certs.name, certs.bootstrap_servers) == ("certs", f"127.0.0.1:{fixture.port + 100}")
    assert "BEGIN CERTIFICATE" in words.certificates[0]
    assert fixture.platform.client_properties()["security.protocol"] == "SSL"


def test_a_secured_broker_restarts_with_its_previous_listeners(fixture: LocalPlatformFixture) -> None:
    fixture.cluster = a_cluster(listeners=LISTENERS)
    ensure_children(fixture)
    fixture.start_ready()
    FakeProcess.last.end(1)
    fixture.observe()
    fixture.now_ms += 60_000
    fixture.cluster = a_cluster(listeners=LISTENERS[:1])
    fixture.start(None)
    assert "CERTS://" in FakeProcess.last.properties["listeners"]
    fixture.stop()
    fixture.observe()
    fixture.start()
    assert "CERTS://" not in FakeProcess.last.properties["listeners"]


def test_a_listener_has_a_certificate_of_its_own_from_files(
    fixture: LocalPlatformFixture,
) -> None:
    fixture.now_ms = time.time_ns() // 1_000_000
    own = {"configuration": {"brokerCertChainAndKey": {"secretName": "theirs"}}}
    fixture.cluster = a_cluster(listeners=[listener("words", "scram-sha-512", **own), LISTENERS[1]])
    ensuring = fixture.platform.ensure_children(fixture.cluster, LAUNCH, under_replicated=False)
    (finding,) = asyncio.run(ensuring).findings
    assert (finding.type, finding.reason) == ("CertificatesValid", "SecretNotFound")
    theirs = fixture.data / "secrets" / "theirs"
    theirs.mkdir(parents=True)
    certified = Authority().sign("theirs")
    (theirs / "tls.crt").write_text(certified.chain_pem)
    (theirs / "tls.key").write_text(certified.key_pem())
    (step,) = ensure_children(fixture)
    assert step == "write Secret demo-brokers: words.listener: from Secret theirs"
    fixture.start_ready()
    settings = FakeProcess.last.properties
    location = Path(settings["listener.name.words.ssl.keystore.location"])
    assert location.read_text() == certified.key_pem() + certified.chain_pem
    assert settings["listener.name.certs.ssl.keystore.location"].endswith("/broker-0.pem")
    words, _ = fixture.platform.listeners(fixture.cluster)
    assert words.certificates == [certified.chain_pem]
    fixture.cluster = a_cluster(listeners=LISTENERS)
    ensure_children(fixture)
    assert location.exists(), "the broker needs it if it restarts before its turn"
    fixture.stop()
    fixture.observe()
    fixture.start()
    ensure_children(fixture)
    assert not location.exists()


def test_issuers_are_ignored_where_there_is_no_cert_manager(fixture: LocalPlatformFixture) -> None:
    issued = {"issuerRef": {"name": "ours"}}
    fixture.cluster = a_cluster(
        listeners=[{**LISTENERS[1], "configuration": issued}], clusterCa=issued, clientsCa=issued
    )
    ensuring = fixture.platform.ensure_children(fixture.cluster, LAUNCH, under_replicated=False)
    assert asyncio.run(ensuring).findings == []
    fixture.start_ready()
    settings = FakeProcess.last.properties
    assert settings["listener.name.certs.ssl.keystore.location"].endswith("/broker-0.pem")
    assert list(fixture.cluster.ignored_by_up())[-3:] == [
        "spec.listeners[0].configuration.issuerRef has an effect on Kubernetes only and is ignored",
        "spec.clusterCa.issuerRef has an effect on Kubernetes only and is ignored",
        "spec.clientsCa.issuerRef has an effect on Kubernetes only and is ignored",
    ]


def test_a_changed_listener_port_needs_no_restart(fixture: LocalPlatformFixture) -> None:
    def traits(*listeners: dict[str, object]) -> Mapping[str, str]:
        return fixture.platform.traits(a_cluster(listeners=list(listeners)))

    same = traits(listener("certs", "tls", port=1, type="nodeport"))
    assert same == traits(listener("certs", "tls"))
    assert same != traits(listener("certs", "scram-sha-512"))
    assert fixture.platform.traits(a_cluster()) == {}


@pytest.mark.parametrize(("managed", "heap"), [({}, "256m"), ({"heap": "1g"}, "1g")])
def test_zookeeper_has_the_heap_of_the_spec(
    fixture: LocalPlatformFixture, monkeypatch: pytest.MonkeyPatch, managed: dict[str, str], heap: str
) -> None:
    heaps = []

    class FakeZooKeeper:
        running = True

        def __init__(self, data: Path, *, heap: str) -> None:
            heaps.append(heap)

    monkeypatch.setattr(local, "EmbeddedZooKeeper", FakeZooKeeper)
    asyncio.run(fixture.platform.ensure_zookeeper(a_cluster(zookeeper={"managed": managed})))
    assert heaps == [heap]
