"""Raw requests about configs to Apache Kafka 3.9.1 and to Ottla: every response is the same.

Documentation texts differ. Settings that Ottla does not have, and those that two brokers cannot share, are
not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ottla.metadata.config import BROKER_CONFIGS
from ottla.protocol.messages import (
    AlterConfigsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
)
from tests.judges.request_recorder import RequestRecorder, kafka_and_ottla, same, side_by_side, until
from tests.oracles import needs_kafka_jars

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
SETTINGS = {
    "log.retention.hours": "24",
    "log.roll.ms": "100000",
    "auto.create.topics.enable": "false",
    "custom.setting": "x",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
}
OWN = ("listeners", "log.dir", "log.dirs", "zookeeper.connect")
"""What the two cannot have in common."""
FIXED_HERE = ("advertised.listeners", "listener.security.protocol.map")
"""Dynamic in Kafka."""
WORDS = ("error_message",)
"""Compared where it is worth it."""
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("configs")
    with kafka_and_ottla(directory, SETTINGS) as by_name:
        side_by_side(by_name, make_topics)
        yield by_name


async def make_topics(recorder: RequestRecorder) -> None:
    row = CreateTopicsRequest.CreatableTopic
    topics = [row(name=name, num_partitions=1, replication_factor=1) for name in ("plain", "altered")]
    await recorder.send("anna", CreateTopicsRequest(topics=topics, timeout_ms=20_000), 5)

    async def known() -> bool:
        wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in ("plain", "altered")]
        answer = await recorder.send("anna", MetadataRequest(topics=wanted), 5)
        return all(topic.error_code == 0 for topic in answer.topics)

    await until(known)


def describe(
    kind: int, name: str, *keys: str, synonyms: bool = True, all_keys: bool = False
) -> DescribeConfigsRequest:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None if all_keys else list(keys)
    )
    return DescribeConfigsRequest(resources=[resource], include_synonyms=synonyms)


def change(
    kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    row = IncrementalAlterConfigsRequest.AlterableConfig
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[row(name=n, config_operation=op, value=value) for n, op, value in changes],
    )
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)


def replace(
    kind: int, name: str, settings: Mapping[str, str | None], *, validate_only: bool = False
) -> AlterConfigsRequest:
    row = AlterConfigsRequest.AlterableConfig
    resource = AlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[row(name=n, value=value) for n, value in settings.items()],
    )
    return AlterConfigsRequest(resources=[resource], validate_only=validate_only)


async def until_described(
    recorder: RequestRecorder, kind: int, name: str, key: str, value: str | None, entry: str = "value"
) -> None:
    """A change reaches a broker by its notification."""

    async def reached() -> bool:
        answer = await recorder.send("anna", describe(kind, name, key), 2)
        found = [getattr(config, entry) for config in answer.results[0].configs]
        return found == ([] if value is None else [value])

    await until(reached)


def test_all_settings_of_a_broker_have_kafkas_value_type_and_source(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        for version in (0, 1, 4):
            request = describe(BROKER, "0", all_keys=True, synonyms=version > 0)
            answer = await recorder.send("anna", request, version)
            (result,) = answer.results
            for entry in result.configs:
                if entry.name in (*BROKER_CONFIGS.keys, "custom.setting") and entry.name not in (
                    *OWN,
                    *FIXED_HERE,
                ):
                    recorder.note(f"v{version} {entry.name}", entry, ignoring=["documentation"])

    same(ports, scenario)


def test_all_settings_of_a_topic(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        for version in (0, 1, 4):
            request = describe(TOPIC, "plain", all_keys=True, synonyms=version > 0)
            answer = await recorder.send("anna", request, version)
            for entry in answer.results[0].configs:
                if not entry.name.startswith("ottla."):
                    recorder.note(f"v{version} {entry.name}", entry, ignoring=["documentation"])

    same(ports, scenario)


def test_invalid_describe_requests(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        await recorder.ask("no such topic", "anna", describe(TOPIC, "nope"), 4)
        await recorder.ask("no topic's name", "anna", describe(TOPIC, "a/b"), 4, ignoring=WORDS)
        await recorder.ask("another broker", "anna", describe(BROKER, "7"), 4)
        await recorder.ask("no broker's id", "anna", describe(BROKER, "x"), 4)
        await recorder.ask("loggers of nobody", "anna", describe(LOGGER, ""), 4)
        await recorder.ask("loggers of another", "anna", describe(LOGGER, "7"), 4)
        await recorder.ask("unknown keys", "anna", describe(TOPIC, "plain", "nope", "retention.ms"), 2)
        await recorder.ask("cluster-wide, nothing", "anna", describe(BROKER, ""), 4)

    same(ports, scenario)


def test_a_topics_settings_are_altered(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        async def alter(label: str, *changes: tuple[str, int, str | None], **options: bool) -> None:
            await recorder.ask(label, "anna", change(TOPIC, "altered", *changes, **options), 1)

        async def show(label: str, *keys: str) -> None:
            await recorder.ask(label, "anna", describe(TOPIC, "altered", *keys), 2)

        await alter("set", ("retention.ms", SET, " 5000 "), ("min.insync.replicas", SET, "2"))
        await until_described(recorder, TOPIC, "altered", "retention.ms", "5000")
        await show("was set", "retention.ms", "min.insync.replicas")
        await alter("only validated", ("retention.ms", SET, "1"), validate_only=True)
        await alter("append", ("cleanup.policy", APPEND, "compact"))
        await until_described(recorder, TOPIC, "altered", "cleanup.policy", "delete,compact")
        await alter("subtract", ("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None))
        await until_described(recorder, TOPIC, "altered", "cleanup.policy", "compact")
        await show("the rest", "retention.ms", "cleanup.policy")
        await alter("not a list", ("retention.ms", APPEND, "5"))
        await alter("not a number", ("retention.ms", SET, "long"))
        await alter("too little", ("retention.ms", SET, "-2"))
        await alter("too large for its type", ("segment.bytes", SET, "9999999999"))
        await alter("no policy", ("cleanup.policy", SET, "shred"))
        await alter("no codec", ("compression.type", SET, "zip"))
        await alter("no level", ("compression.gzip.level", SET, "0"))
        await alter("too much", ("min.cleanable.dirty.ratio", SET, "1.5"))
        await alter("not a ratio", ("min.cleanable.dirty.ratio", SET, "half"))
        await alter("neither", ("preallocate", SET, "yes"))
        wrong = change(TOPIC, "altered", ("leader.replication.throttled.replicas", SET, "0-1"))
        await recorder.ask("no replicas", "anna", wrong, 1, ignoring=WORDS)
        await alter("replicas", ("leader.replication.throttled.replicas", SET, "0:1,0:2"))
        await alter("conflict", ("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8"))
        await alter("no value", ("retention.ms", SET, None))
        await alter("twice", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
        unknown = change(TOPIC, "altered", ("retention.m", SET, "1"))
        await recorder.ask("unknown", "anna", unknown, 1, ignoring=WORDS)
        gone = change(TOPIC, "nope", ("retention.ms", SET, "1"))
        await recorder.ask("no such topic", "anna", gone, 1)
        await recorder.ask("no topic", "anna", change(TOPIC, "", ("retention.ms", SET, "1")), 0)
        await recorder.ask("no resource", "anna", change(3, "x", ("a", SET, "1")), 1)
        both = change(TOPIC, "altered", ("retention.ms", SET, "1"))
        both.resources *= 2
        await recorder.ask("each twice", "anna", both, 1)

    same(ports, scenario)


def test_all_of_a_topics_settings_are_replaced(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        for version, size in ((0, "1000"), (1, "2000"), (2, "3000")):
            request = replace(TOPIC, "altered", {"segment.bytes": size, "retention.ms": "77"})
            await recorder.ask(f"v{version}", "anna", request, version)
            await until_described(recorder, TOPIC, "altered", "segment.bytes", size)
        await recorder.ask("fewer", "anna", replace(TOPIC, "altered", {"retention.ms": "78"}), 2)
        await until_described(recorder, TOPIC, "altered", "retention.ms", "78")
        await recorder.ask("what is left", "anna", describe(TOPIC, "altered", "segment.bytes"), 2)
        bad = replace(TOPIC, "altered", {"retention.ms": "x"})
        await recorder.ask("not a number", "anna", bad, 2)
        await recorder.ask("no value", "anna", replace(TOPIC, "altered", {"retention.ms": None}), 2)
        await recorder.ask("no such topic", "anna", replace(TOPIC, "nope", {}), 2)
        await recorder.ask("loggers", "anna", replace(LOGGER, "0", {"root": "INFO"}), 2)
        await recorder.ask("none", "anna", replace(TOPIC, "altered", {}), 2)

    same(ports, scenario)


def test_dynamic_settings_of_a_broker_and_of_all_brokers(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        async def alter(label: str, name: str, *changes: tuple[str, int, str | None]) -> None:
            await recorder.ask(label, "anna", change(BROKER, name, *changes), 1)

        async def show(label: str, kind: int, name: str, *keys: str) -> None:
            answer = await recorder.ask(label, "anna", describe(kind, name, *keys), 2)
            for entry in answer.results[0].configs:
                order = " ".join(f"{synonym.name}:{synonym.source}" for synonym in entry.synonyms)
                recorder.note(f"{label}: {entry.name}, in order", order)

        retention = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
        await alter("for all", "", ("log.retention.ms", SET, "60000"), ("some.plugin", SET, "y"))
        await until_described(recorder, BROKER, "0", "log.retention.ms", "60000")
        await show("for all, shown by all", BROKER, "", "log.retention.ms", "some.plugin")
        await show("for all, shown by one", BROKER, "0", *retention)
        await show("a topic's default", TOPIC, "plain", "retention.ms")
        await alter("for one", "0", ("log.retention.ms", SET, "70000"), ("message.max.bytes", SET, "2000"))
        await until_described(recorder, BROKER, "0", "log.retention.ms", "70000")
        await show("for one, shown by one", BROKER, "0", *retention, "message.max.bytes", "some.plugin")
        await show("for one, shown by all", BROKER, "", *retention)
        await show("a topic's stronger default", TOPIC, "plain", "retention.ms", "max.message.bytes")
        await alter("rates", "0", ("leader.replication.throttled.rate", SET, "1000"))
        await until_described(recorder, BROKER, "0", "leader.replication.throttled.rate", "1000")
        await show("a rate", BROKER, "0", "leader.replication.throttled.rate")
        replacing = replace(BROKER, "0", {"log.segment.bytes": "12345"})
        await recorder.ask("replaced", "anna", replacing, 2)
        await until_described(recorder, BROKER, "0", "log.segment.bytes", "12345")
        await show("what is left", BROKER, "0", "log.retention.ms", "message.max.bytes", "log.segment.bytes")
        await alter("one deleted", "0", ("log.segment.bytes", DELETE, None))
        await alter("all deleted", "", ("log.retention.ms", DELETE, None), ("some.plugin", DELETE, None))
        await until_described(recorder, BROKER, "", "log.retention.ms", None)
        await until_described(recorder, BROKER, "0", "log.segment.bytes", "1073741824")
        await show("as at the start", BROKER, "0", *retention)

    same(ports, scenario)


def test_static_settings_of_a_broker_are_refused(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        async def refused(
            label: str, name: str, key: str, value: str, *, ignoring: tuple[str, ...] = ()
        ) -> None:
            request = change(BROKER, name, (key, SET, value))
            answer = await recorder.ask(label, "anna", request, 1, ignoring=ignoring)
            assert answer.responses[0].error_code

        await refused("static", "0", "num.partitions", "3")
        await refused("static, for all", "", "zookeeper.connect", "z")
        await refused("another broker's", "7", "log.segment.bytes", "2000")
        await refused("no broker's", "x", "log.segment.bytes", "2000")
        await refused("no number", "0", "log.segment.bytes", "large")
        await refused("too small", "", "log.segment.bytes", "13")
        await refused("no rate", "0", "leader.replication.throttled.rate", "-1")
        await refused("no time at all", "0", "log.retention.ms", "0", ignoring=WORDS)
        await refused("more than twice", "0", "num.io.threads", "17", ignoring=WORDS)
        await refused("less than half", "", "num.replica.fetchers", "0", ignoring=WORDS)
        await refused("cleaners", "0", "log.cleaner.threads", "3", ignoring=WORDS)
        await refused("network", "0", "num.network.threads", "7", ignoring=WORDS)
        tls = ("ssl.keystore.location", "/x")
        await refused("only per listener", "0", *tls, ignoring=WORDS)
        password = ("listener.name.plaintext.ssl.keystore.password", "geheim")
        await refused("a password, with no secret to store it by", "0", *password)
        await refused("a password, for all", "", *password, ignoring=WORDS)
        await recorder.ask("twice as many", "anna", change(BROKER, "0", ("num.io.threads", SET, "16")), 1)
        await recorder.ask("all static", "anna", replace(BROKER, "0", {"broker.rack": "r"}), 1)
        await until_described(recorder, BROKER, "0", "num.io.threads", "16")
        await recorder.ask("back", "anna", change(BROKER, "0", ("num.io.threads", DELETE, None)), 1)

    same(ports, scenario)


def test_security_settings_of_one_broker_and_settings_of_listeners(ports: dict[str, int]) -> None:
    """PLAINTEXT is open, and no listener is called other."""
    set_ = {
        "sasl.kerberos.min.time.before.relogin": "58000",
        "sasl.kerberos.principal.to.local.rules": "RULE:[1:$1],DEFAULT",
        "sasl.kerberos.ticket.renew.jitter": "0.25",
        "sasl.login.refresh.buffer.seconds": "200",
        "ssl.client.auth": "requested",
        "ssl.protocol": "TLSv1.2",
        "sasl.enabled.mechanisms": "PLAIN,GSSAPI",
    }
    of_listeners = {
        "listener.name.other.sasl.kerberos.service.name": "kafka",
        "listener.name.other.gssapi.sasl.kerberos.kinit.cmd": "/kinit",
        "listener.name.other.plain.connections.max.reauth.ms": "5",
        "listener.name.other.ssl.client.auth": "required",
        "listener.name.other.num.network.threads": "4",
        "listener.name.other.any.thing": "x",
        "listener.name.plaintext.max.connections": "77",
        "listener.name.plaintext.num.network.threads": "4",
    }
    plaintext, rules = "listener.name.plaintext", "sasl.kerberos.principal.to.local.rules"

    async def scenario(recorder: RequestRecorder) -> None:
        async def alter(label: str, name: str, *changes: tuple[str, int, str | None]) -> None:
            await recorder.ask(label, "anna", change(BROKER, name, *changes), 1)

        async def show(label: str, name: str, *keys: str) -> None:
            answer = await recorder.ask(label, "anna", describe(BROKER, name, *keys), 2)
            for entry in answer.results[0].configs:
                order = " ".join(f"{synonym.name}:{synonym.source}" for synonym in entry.synonyms)
                recorder.note(f"{label}: {entry.name}, in order", order)

        for number, (key, value) in enumerate(set_.items()):
            await alter(f"{number} for all", "", (key, SET, value))
        await alter("for one", "0", *((key, SET, value) for key, value in set_.items()))
        await until_described(recorder, BROKER, "0", "ssl.client.auth", "requested")
        await show("for one, shown", "0", *set_)
        await show("for one, shown by all", "", *set_)
        await alter("of listeners", "0", *((key, SET, value) for key, value in of_listeners.items()))
        await until_described(recorder, BROKER, "0", f"{plaintext}.max.connections", "77")
        await show("of listeners, shown", "0", *of_listeners)
        await alter("a limit of all", "", (f"{plaintext}.max.connection.creation.rate", SET, "88"))
        await until_described(recorder, BROKER, "", f"{plaintext}.max.connection.creation.rate", "88")
        await show("a limit of all, shown", "", f"{plaintext}.max.connection.creation.rate")
        too_many = change(BROKER, "0", (f"{plaintext}.num.network.threads", SET, "9"))
        await recorder.ask("too many threads", "anna", too_many, 1, ignoring=WORDS)
        await alter("no number", "0", ("sasl.kerberos.min.time.before.relogin", SET, "soon"))
        await alter("no such class", "0", ("ssl.engine.factory.class", SET, "a.B"))
        await alter("a login, with no secret to store it by", "0", ("sasl.jaas.config", SET, "x"))
        await alter("appended", "0", (rules, APPEND, "RULE:[2:$1]"))
        await until_described(recorder, BROKER, "0", rules, "RULE:[1:$1],DEFAULT,RULE:[2:$1]")
        await show("appended, shown", "0", rules)
        # For a listener that is open; last, for Kafka refuses changes of security for all while these differ.
        await alter("of an open one", "0", (f"{plaintext}.connections.max.reauth.ms", SET, "5"))
        await alter("of an open one, of Kerberos", "0", (f"{plaintext}.sasl.kerberos.service.name", SET, "x"))
        await alter(
            "of an open one, of a mechanism", "0", (f"{plaintext}.plain.connections.max.reauth.ms", SET, "5")
        )
        await alter("of an open one, static", "0", (f"{plaintext}.num.partitions", SET, "5"))
        await recorder.ask("all replaced", "anna", replace(BROKER, "0", {}), 2)
        limit = f"{plaintext}.max.connection.creation.rate"
        await recorder.ask("of all, too", "anna", change(BROKER, "", (limit, DELETE, None)), 1)
        await until_described(recorder, BROKER, "0", "ssl.client.auth", "none")
        await show("as at the start", "0", *set_, *of_listeners)

    same(ports, scenario)


def test_levels_of_loggers(ports: dict[str, int]) -> None:
    async def scenario(recorder: RequestRecorder) -> None:
        async def alter(label: str, *changes: tuple[str, int, str | None]) -> None:
            await recorder.ask(label, "anna", change(LOGGER, "0", *changes), 1, ignoring=WORDS)

        await alter("root", ("root", SET, "ERROR"))
        await recorder.ask("its level", "anna", describe(LOGGER, "0", "root"), 2)
        await alter("no level", ("root", SET, "LOUD"))
        await alter("no logger", ("no.such.logger", SET, "INFO"))
        await alter("removed", ("root", DELETE, None))
        await alter("appended", ("root", APPEND, "INFO"))
        other = change(LOGGER, "7", ("root", SET, "INFO"))
        await recorder.ask("another's", "anna", other, 1, ignoring=WORDS)
        await alter("back", ("root", SET, "WARN"))

    same(ports, scenario)
