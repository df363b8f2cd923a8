"""Which settings a running broker takes, and how it refuses the others: judged by Kafka's own class.
The page of settings has the names of all of Kafka's settings."""

from __future__ import annotations

import subprocess

import pytest

from bench.apache_kafka import kafka_classpath
from ottla.metadata.broker_config_table import BROKER_CONFIGS, PER_BROKER, QUOTA_CONFIGS
from ottla.metadata.config import BrokerConfig
from ottla.metadata.dynamic_broker_config import ConfigRejected, DynamicBrokerConfig
from references.settings import DIFFERENCES, NOT_IN_TABLE, pages
from tests.oracles import JAVA, java, needs_kafka_jars

NOT_SERVED = frozenset(
    (
        *("advertised.listeners", "listener.security.protocol.map", "listeners"),
        *("remote.fetch.max.wait.ms", "remote.log.index.file.cache.total.size.bytes"),
        *("remote.log.manager.copy.max.bytes.per.second", "remote.log.manager.fetch.max.bytes.per.second"),
    )
)
"""Dynamic in Kafka: listeners come and go with a restart here, and there is no tiered storage."""

CASES = """
broker log.segment.bytes x
cluster log.segment.bytes 13
broker leader.replication.throttled.rate x
cluster leader.replication.throttled.rate 5
cluster some.plugin x
broker sasl.kerberos.ticket.renew.jitter much
broker sasl.kerberos.min.time.before.relogin 5 s
broker sasl.login.refresh.buffer.seconds 99999
broker listener.name.other.log.segment.bytes 5
broker listener.name.other.nonsense 5
cluster listener.name.other.nonsense 5
broker listener.name.other.gssapi.sasl.kerberos.service.name x
cluster listener.name.other.gssapi.sasl.kerberos.service.name x
broker listener.name.other.scram-sha-256.sasl.jaas.config x
cluster listener.name.other.scram-sha-256.sasl.jaas.config x
broker listener.name.other.max.connections x
broker listener.name.other.max.connections -1
cluster listener.name.other.num.network.threads none
broker listener.name.other.ssl.client.auth perhaps
"""


@pytest.fixture(scope="module")
def oracle_rows() -> list[list[str]]:
    needs_kafka_jars()
    program = JAVA / "DynamicConfigs.java"
    command = [java(), "-cp", kafka_classpath(), str(program)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=True, input=CASES.lstrip()
    )
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_dynamic_settings_and_their_scope_are_kafkas(
    oracle_rows: list[list[str]],
) -> None:
    theirs = {row[1]: row[2] for row in oracle_rows if row[0] == "mode" and row[1] not in NOT_SERVED}
    dynamic = {name for name, key in BROKER_CONFIGS.keys.items() if key.dynamic}
    assert {name: "per-broker" if name in PER_BROKER else "cluster-wide" for name in dynamic} == theirs
    assert {row[1] for row in oracle_rows if row[0] == "mode"} >= NOT_SERVED
    assert not {name for name in QUOTA_CONFIGS.keys if name in theirs}, "neither has these in its table"


def test_the_page_of_settings_has_each_of_kafkas(oracle_rows: list[list[str]]) -> None:
    theirs = {
        row[2] for row in oracle_rows if row[0] == "verdict" and not row[2].startswith("listener.name.")
    }
    theirs -= {line.split()[1] for line in CASES.splitlines() if line} - BROKER_CONFIGS.keys.keys()
    assert set(NOT_IN_TABLE) | BROKER_CONFIGS.keys.keys() == theirs
    assert not set(NOT_IN_TABLE) & BROKER_CONFIGS.keys.keys()
    page = pages()["settings.md"]
    assert all(f"| `{name}` |" in page for name in theirs | DIFFERENCES.keys())


def test_each_setting_is_accepted_or_rejected_as_in_kafka_also_for_a_listener(
    oracle_rows: list[list[str]],
) -> None:
    settings = DynamicBrokerConfig(BrokerConfig.from_properties({"broker.id": "0"}))
    differing = []
    verdicts = [row[1:] for row in oracle_rows if row[0] == "verdict" and row[2] not in NOT_SERVED]
    for level, name, value, theirs in verdicts:
        try:
            settings.check({name: value}, per_broker=level == "broker")
            ours = ""
        except ConfigRejected as refusal:
            ours = str(refusal)
        if ours != theirs:
            differing.append((level, name, value, ours, theirs))
    assert not differing
    refused = sum(1 for row in verdicts if row[3])
    assert len(verdicts) > 1000
    assert 300 < refused < len(verdicts) - 300
