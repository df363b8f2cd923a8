"""Passwords of key stores that change while brokers run: set by Kafka's tool, stored as Kafka stores them.

One cluster, under a broker of ours and one of Kafka's by turns: each takes over what the other has stored,
and shows the certificate that only the stored password opens.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from kazoo.client import KazooClient

from bench.apache_kafka import KafkaBroker
from ottla.client.admin import AdminClient
from ottla.local.brokers import BrokerProcess
from ottla.local.cluster import run_admin
from ottla.local.processes import free_port, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.metadata import znodes
from tests.certificates import PASSWORD, Authority
from tests.judges.kafka_tools import Command, run_all
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)

PATH = znodes.config_path("brokers", "0")
PREFIX = "listener.name.ssl.ssl.keystore"
WAIT_S = 90.0


class Place(NamedTuple):
    directory: Path
    zookeeper: EmbeddedZooKeeper
    tree: KazooClient
    authority: Authority
    port: int
    ssl_port: int
    serials: dict[int, str]

    def store(self, name: str) -> dict[str, str]:
        """The settings of a key store with a new certificate of the broker's."""
        certified = self.authority.sign("broker")
        path = certified.write_pkcs12(self.directory / f"{name}.p12")
        self.serials[certified.certificate.serial_number] = name
        return {
            f"{PREFIX}.location": str(path),
            f"{PREFIX}.password": PASSWORD,
            f"{PREFIX}.type": "PKCS12",
            "listener.name.ssl.ssl.key.password": PASSWORD,
        }

    def settings(self, **more: str) -> dict[str, str]:
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},SSL://127.0.0.1:{self.ssl_port}",
            "zookeeper.session.timeout.ms": "30000",
            **self.store("given"),
            **{f"password.encoder.{name}": text for name, text in more.items()},
        }

    def ours(self, **more: str) -> BrokerProcess:
        broker = BrokerProcess(0, self.directory / "ours", self.port)
        broker.write_properties(self.zookeeper.connect, self.settings(**more))
        return broker

    def shown(self) -> str:
        """The name of the store whose certificate the listener shows."""
        context = ssl.create_default_context(cadata=self.authority.pem)
        with (
            socket.create_connection(("127.0.0.1", self.ssl_port), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            shown = secured.getpeercert(binary_form=True)
        assert shown is not None
        return self.serials[x509.load_der_x509_certificate(shown).serial_number]

    def stored(self) -> dict[str, str]:
        return znodes.decode_config(PATH, self.tree.get(PATH)[0])

    def alter(self, settings: dict[str, str]) -> None:
        async def alter(client: AdminClient) -> None:
            await client.alter_broker_config(0, set_values=settings)

        run_admin([("127.0.0.1", self.port)], alter)

    def until_shown(self, name: str) -> None:
        assert wait_until(lambda: self.shown() == name, timeout_s=WAIT_S), f"{self.shown()}, not {name}"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    needs_kafka_jars()
    zookeeper = EmbeddedZooKeeper(tmp_path / "zookeeper")
    tree = KazooClient(zookeeper.connect)
    with ExitStack() as running:
        running.callback(zookeeper.stop)
        zookeeper.start()
        tree.start(timeout=60)
        running.callback(tree.close)
        running.callback(tree.stop)
        yield Place(tmp_path, zookeeper, tree, Authority(), free_port(), free_port(), {})


def test_each_broker_reads_the_passwords_that_the_other_has_stored(place: Place) -> None:
    ours = place.ours(secret="first secret")
    try:
        ours.start_and_wait()
        assert place.shown() == "given"
        tool = ("kafka.admin.ConfigCommand", ["--bootstrap-server", f"127.0.0.1:{place.port}"])
        entity = ["--entity-type", "brokers", "--entity-name", "0"]
        added = ",".join(f"{name}={text}" for name, text in place.store("by-tool").items())
        altered, described = run_all(
            [
                Command(tool[0], [*tool[1], "--alter", *entity, "--add-config", added]),
                Command(tool[0], [*tool[1], "--describe", *entity], awaited=f"{PREFIX}.password=null"),
            ],
            place.directory,
        )
        assert "Completed updating config for broker 0" in altered.out, altered
        assert f"{PREFIX}.password=null sensitive=true" in described.out
        place.until_shown("by-tool")
        stored = place.stored()
        assert PASSWORD not in str(stored)
        assert stored[f"{PREFIX}.password"].count("AES/CBC/PKCS5Padding") == 1
    finally:
        ours.stop()

    cipher = {"password.encoder.cipher.algorithm": "AES/GCM/NoPadding", "password.encoder.key.length": "256"}
    java = KafkaBroker(
        place.directory / "java",
        place.zookeeper.connect,
        port=place.port,
        settings=place.settings(secret="first secret") | cipher,
    )
    try:
        java.start()
        assert place.shown() == "by-tool"
        place.alter(place.store("by-kafka"))
        place.until_shown("by-kafka")
        assert "AES/GCM/NoPadding" in place.stored()[f"{PREFIX}.password"]
    finally:
        java.stop()

    written = place.stored()
    ours = place.ours(**{"secret": "second secret", "old.secret": "first secret"})
    try:
        ours.start_and_wait()
        assert place.shown() == "by-kafka"
        now = place.stored()
        assert now.keys() == written.keys()
        changed = {name for name in now if now[name] != written[name]}
        assert changed == {f"{PREFIX}.password", "listener.name.ssl.ssl.key.password"}
    finally:
        ours.stop()
