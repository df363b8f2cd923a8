"""Processes in place of pods: states, crashes and pauses between starts, over a process that is a fake."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ottla.local.ports import free_port
from ottla_operator.planning.observed import BrokerInstance
from ottla_operator.platform import local
from ottla_operator.platform.interfaces import BrokerLaunch, StepFailed
from ottla_operator.platform.local import LocalPlatform
from ottla_operator.platform.local_security import SecretFiles
from ottla_operator.platform.processes import exit_message
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.loading import parse_resource

LAUNCH = BrokerLaunch("one", {"a": "1"}, {"a": "1", "b": "2"})


class FakeProcess:
    """A broker's process that does as it is told."""

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


class World:
    def __init__(self, data: Path) -> None:
        self.now_ms = 1_000_000
        self.ready = False
        self.data = data
        self.port = free_port()
        self.cluster = a_cluster()
        self.platform = self.again()

    def again(self) -> LocalPlatform:
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
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(local, "BrokerProcess", FakeProcess)
    return World(tmp_path)


def test_a_broker_is_starting_until_it_answers(world: World) -> None:
    world.start()
    assert FakeProcess.last.properties == {"zookeeper.connect": "zk:1", "a": "1", "b": "2"}
    assert (world.observe().state, world.observe().ready) == ("Starting", False)
    world.ready = True
    instance = world.observe()
    assert (instance.state, instance.ready, instance.ready_since_ms) == ("Running", True, world.now_ms)
    assert (instance.config_hash, instance.settings) == ("one", {"a": "1"})
    world.ready = False
    assert world.observe().message == "the broker does not respond"


def test_an_exit_that_was_asked_for_is_no_crash(world: World) -> None:
    world.start_ready()
    world.stop()
    instance = world.observe()
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
def test_the_reason_of_an_exit_is_the_last_thing_above_info(log: str, words: str) -> None:
    assert exit_message(log) == words


@pytest.mark.parametrize(
    ("code", "message"),
    [(-9, "was killed by signal 9"), (1, "ended with code 1: broker 0 cannot start: the folder is locked")],
)
def test_a_crash_says_how_it_ended(world: World, code: int, message: str) -> None:
    world.start_ready()
    FakeProcess.last.end(code)
    instance = world.observe()
    assert (instance.state, instance.message, instance.crashes) == ("Crashed", message, 1)


def test_one_that_keeps_crashing_is_started_after_growing_pauses(world: World) -> None:
    world.start()
    pauses = []
    for _ in range(8):
        FakeProcess.last.end(1)
        world.observe()
        crashed_at, crashed = world.now_ms, FakeProcess.last
        while FakeProcess.last is crashed:
            world.now_ms += 500
            world.start()
        pauses.append(world.now_ms - crashed_at)
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]


def test_a_new_revision_is_started_without_a_pause(world: World) -> None:
    world.start()
    for _ in range(3):
        FakeProcess.last.end(1)
        world.observe()
        world.now_ms += 60_000
        world.start()
    FakeProcess.last.end(1)
    world.observe()
    world.start(BrokerLaunch("two"))
    assert FakeProcess.last.running
    assert world.observe().crashes == 0


def test_being_ready_for_a_while_forgets_the_crashes(world: World) -> None:
    world.start_ready()
    FakeProcess.last.end(1)
    world.observe()
    world.now_ms += 1_000
    world.start_ready()
    assert world.observe().crashes == 1
    world.now_ms += local.BACK_OFF_RESET_MS + 1
    assert world.observe().crashes == 0


def test_a_port_that_is_taken_is_said(world: World) -> None:
    with socket.socket() as taken:
        taken.bind((local.HOST, world.port))
        taken.listen()
        with pytest.raises(StepFailed, match=f"port {world.port}, for broker 0, is in use"):
            world.start()
    world.start()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "127.0.0.1"])
def test_a_fixed_http_port_is_counted_up_by_broker(world: World, host: str) -> None:
    first = free_port()
    settings = {"ottla.http.port": str(first), "ottla.http.host": host}
    world.cluster = a_cluster(replicas=3)
    for broker in range(3):
        asyncio.run(
            world.platform.start_broker(world.cluster, broker, BrokerLaunch("one", settings, settings))
        )
        assert FakeProcess.last.properties["ottla.http.port"] == str(first + broker)
    assert world.platform.http_addresses() == {n: f"127.0.0.1:{first + n}" for n in range(3)}
    FakeProcess.last.end(0)
    assert sorted(world.platform.http_addresses()) == [0, 1]
    world.platform = world.again()
    asyncio.run(world.platform.start_broker(world.cluster, 1, None))
    assert FakeProcess.last.properties["ottla.http.port"] == str(first + 1), "counted once"


def test_any_http_port_is_drawn_by_us_so_that_it_can_be_said(world: World) -> None:
    settings = {"ottla.http.port": "0"}
    world.start(BrokerLaunch("one", settings, settings))
    port = FakeProcess.last.properties["ottla.http.port"]
    assert int(port) > 0
    assert world.platform.http_addresses() == {0: f"127.0.0.1:{port}"}


def test_an_http_port_that_is_a_listeners_is_refused_by_its_name(world: World) -> None:
    world.cluster = a_cluster(replicas=3)
    settings = {"ottla.http.port": str(world.port + 2)}
    words = (
        f"port {world.port + 2}, for the metrics of broker 0, is also the port of a listener of broker 2; .*"
    )
    assert re.match(words, world.platform.port_problem(world.cluster, 0, settings))
    with pytest.raises(StepFailed, match=words):
        asyncio.run(world.platform.start_broker(world.cluster, 0, BrokerLaunch("one", settings, settings)))
    high = world.platform.port_problem(world.cluster, 2, {"ottla.http.port": "65534"})
    assert high == "port 65536, for broker 2, is not a valid port; give another one with ottla.http.port"


def test_after_a_restart_of_ours_a_broker_can_be_started_as_it_was(world: World) -> None:
    world.start_ready()
    world.platform = world.again()
    instance = world.observe()
    assert (instance.state, instance.config_hash, instance.stopped_by_us) == ("Stopped", "one", False)
    world.start(None)
    assert FakeProcess.last.properties == {"zookeeper.connect": "zk:1", "a": "1", "b": "2"}


@pytest.mark.parametrize("delete", [True, False])
def test_a_removed_broker_is_forgotten_and_its_volume_goes_if_so_told(world: World, delete: bool) -> None:
    world.start_ready()
    volume = world.data / "brokers" / "0" / "data"
    volume.mkdir()
    (volume / "log").write_text("x")
    world.stop()
    world.observe()
    asyncio.run(world.platform.remove_broker(world.cluster, 0, delete_volume=delete))
    assert volume.exists() is not delete
    assert asyncio.run(world.platform.observe(world.cluster))[1] == {}


# ---- secured clusters


def listener(name: str, kind: str, **more: object) -> dict[str, object]:
    return {"name": name, "port": 9093, "tls": True, "authentication": {"type": kind}, **more}


LISTENERS = [listener("words", "scram-sha-512"), listener("certs", "tls")]


def keep(world: World) -> Sequence[str]:
    return asyncio.run(world.platform.ensure_children(world.cluster, LAUNCH, under_replicated=False))


def test_a_secured_broker_has_a_port_for_each_listener_and_one_for_us(world: World) -> None:
    world.cluster = a_cluster(listeners=LISTENERS, authorization={"type": "simple"})
    assert len(keep(world)) == 4
    assert keep(world) == [], "what is there stays"
    world.start_ready()
    settings = FakeProcess.last.properties
    between, *clients = settings["listeners"].split(",")
    assert clients == [f"WORDS://127.0.0.1:{world.port}", f"CERTS://127.0.0.1:{world.port + 100}"]
    assert between.startswith("REPLICATION://127.0.0.1:")
    assert settings["inter.broker.listener.name"] == "REPLICATION"
    files = [value for name, value in settings.items() if name.endswith("store.location")]
    assert len(files) == 5
    assert all(Path(file).is_file() for file in files)
    (address,) = world.platform.addresses(world.cluster, [0])
    assert between.endswith(f":{address[1]}")
    assert world.platform.bootstrap(world.cluster) == f"127.0.0.1:{world.port}"
    words, certs = world.platform.listeners(world.cluster)
    assert (certs.name, certs.bootstrap_servers) == ("certs", f"127.0.0.1:{world.port + 100}")
    assert "BEGIN CERTIFICATE" in words.certificates[0]
    assert world.platform.client_properties()["security.protocol"] == "SSL"


def test_a_secured_broker_comes_back_with_the_listeners_that_it_had(world: World) -> None:
    world.cluster = a_cluster(listeners=LISTENERS)
    keep(world)
    world.start_ready()
    FakeProcess.last.end(1)
    world.observe()
    world.now_ms += 60_000
    world.cluster = a_cluster(listeners=LISTENERS[:1])
    world.start(None)
    assert "CERTS://" in FakeProcess.last.properties["listeners"]
    world.stop()
    world.observe()
    world.start()
    assert "CERTS://" not in FakeProcess.last.properties["listeners"]


def test_a_port_of_a_listener_is_nothing_to_restart_for(world: World) -> None:
    def traits(*listeners: dict[str, object]) -> Mapping[str, str]:
        return world.platform.traits(a_cluster(listeners=list(listeners)))

    same = traits(listener("certs", "tls", port=1, type="nodeport"))
    assert same == traits(listener("certs", "tls"))
    assert same != traits(listener("certs", "scram-sha-512"))
    assert world.platform.traits(a_cluster()) == {}
