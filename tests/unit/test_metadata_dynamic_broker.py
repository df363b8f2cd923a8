"""Dynamic broker settings: which may change at run time, and their precedence."""

from __future__ import annotations

import pytest

from ottla.metadata.config import BROKER_CONFIGS, BrokerConfig, ConfigSource
from ottla.metadata.dynamic_broker_config import ConfigRejected, DynamicBrokerConfig
from ottla.metadata.stored_passwords import NoSecret


def settings_of(**given: str) -> tuple[DynamicBrokerConfig, list[frozenset[str]]]:
    properties = {name.replace("_", "."): value for name, value in given.items()}
    settings = DynamicBrokerConfig(BrokerConfig.from_properties({"broker.id": "3", **properties}))
    reported: list[frozenset[str]] = []
    settings.on_change.append(reported.append)
    return settings, reported


def test_the_precedence_is_broker_cluster_file_default() -> None:
    settings, reported = settings_of(log_segment_bytes="100")
    config = settings.config
    settings.on_entity_changed("<default>", {"log.segment.bytes": "200"})
    assert config.get_int("log.segment.bytes") == 200
    settings.on_entity_changed("3", {"log.segment.bytes": "300"})
    assert config.get_int("log.segment.bytes") == 300
    assert [(s.text, s.source) for s in config.synonyms("log.segment.bytes")] == [
        ("300", ConfigSource.DYNAMIC_BROKER),
        ("200", ConfigSource.DYNAMIC_CLUSTER),
        ("100", ConfigSource.STATIC_BROKER),
        ("1073741824", ConfigSource.DEFAULT),
    ]
    settings.on_entity_changed("<default>", {})
    assert config.get_int("log.segment.bytes") == 300
    settings.on_entity_changed("3", {})
    assert config.get_int("log.segment.bytes") == 100
    assert reported == [frozenset({"log.segment.bytes"})] * 3, "nobody is told of what changes nothing"


def test_another_brokers_settings_are_not_ours() -> None:
    settings, reported = settings_of()
    settings.on_entity_changed("4", {"log.segment.bytes": "200"})
    assert reported == []
    assert settings.config.get_int("log.segment.bytes") == 1 << 30


def test_a_dynamic_time_in_milliseconds_hides_one_given_in_hours() -> None:
    settings, _ = settings_of(log_retention_hours="2")
    settings.on_entity_changed("3", {"log.retention.ms": "5"})
    assert settings.config.get_int("log.retention.ms") == 5
    assert settings.config.get_int("log.retention.hours") == 168, "as Kafka describes it"
    settings.on_entity_changed("3", {})
    assert settings.config.get_int("log.retention.hours") == 2


@pytest.mark.parametrize(
    ("new", "says"),
    [
        ({"num.partitions": "2", "broker.rack": "r"}, r"dynamically: Set\(broker.rack, num.partitions\)"),
        ({"listeners": "PLAINTEXT://:1"}, "dynamically"),
        ({"ssl.keystore.location": "/x"}, "dynamically updated only per-listener"),
        ({"producer.id.expiration.check.interval.ms": "1"}, "Cannot update these configs dynamically"),
        ({"ottla.log.deletion.policies": "size"}, "Cannot update these configs dynamically"),
        ({"ssl.engine.factory.class": "a.B"}, "Class a.B could not be found."),
        ({"listener.name.plaintext.num.network.threads": "7"}, "double the current value 3"),
        ({"listener.name.internal.max.connections": "0"}, "Invalid max.connections 0"),
        ({"log.segment.bytes": "x"}, "Invalid value x for configuration log.segment.bytes: Not a number"),
        ({"log.segment.bytes": "1"}, "Value must be at least 14"),
        ({"leader.replication.throttled.rate": "-1"}, "Value must be at least 0"),
        ({"log.retention.ms": "0"}, "log.retention.ms=0: must be -1, or at least 1"),
        ({"num.io.threads": "17"}, "not be greater than double the current value 8"),
        ({"num.network.threads": "0"}, "Value must be at least 1"),
        ({"log.cleaner.threads": "0"}, "at least 1"),
        ({"num.replica.fetchers": "-1"}, "at least 1"),
    ],
)
@pytest.mark.parametrize("per_broker", [True, False])
def test_changes_that_need_a_restart_are_refused_with_the_reason(
    new: dict[str, str], says: str, per_broker: bool
) -> None:
    settings, _ = settings_of()
    with pytest.raises(ConfigRejected, match=says):
        settings.check(new, per_broker=per_broker)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.kerberos.service.name",
        "sasl.enabled.mechanisms",
        "ssl.client.auth",
        "listener.name.new.sasl.kerberos.service.name",
        "listener.name.new.ssl.keystore.location",
        "listener.name.new.anything",
    ],
)
def test_per_broker_settings_cannot_be_set_cluster_wide(name: str) -> None:
    settings, _ = settings_of()
    new = {name: "required"}
    settings.check(new, per_broker=True)
    with pytest.raises(ConfigRejected, match=r"default cluster level, broker id must be specified: Set\("):
        settings.check(new, per_broker=False)


SASL = {
    "listeners": "SASL_PLAINTEXT://:1",
    "security_inter_broker_protocol": "SASL_PLAINTEXT",
    "sasl_enabled_mechanisms": "SCRAM-SHA-256",
    "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-256",
}


def test_settings_of_an_open_listener_apply_after_a_restart() -> None:
    settings, _ = settings_of(**SASL)
    settings.config.open_listeners()
    name = "listener.name.sasl_plaintext.connections.max.reauth.ms"
    settings.check({name: "5"}, per_broker=True)
    settings.on_entity_changed("3", {name: "5"})
    assert settings.config.of_broker == {name: "5"}
    assert settings.config.security("SASL_PLAINTEXT").get_int("connections.max.reauth.ms") == 0


def test_security_settings_of_all_listeners_apply_after_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings, _ = settings_of(**SASL)
    settings.on_entity_changed("3", {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"})
    settings.config.open_listeners()
    assert caplog.messages == [], "at the start there is nothing to restart for"
    new = {"sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512"}
    settings.check(new, per_broker=True)
    settings.on_entity_changed("3", new)
    assert caplog.messages[0] == "sasl.enabled.mechanisms is stored; it takes effect when the broker restarts"
    assert settings.config.security("SASL_PLAINTEXT").get("sasl.enabled.mechanisms") == "SCRAM-SHA-256"
    again, _ = settings_of(**SASL)
    again.on_entity_changed("3", new)
    assert again.config.security("SASL_PLAINTEXT").get_list("sasl.enabled.mechanisms")[1] == "SCRAM-SHA-512"
    with pytest.raises(ConfigRejected, match="GSSAPI is not served"):
        settings.check({"sasl.enabled.mechanisms": "SCRAM-SHA-256,GSSAPI"}, per_broker=True)


def test_a_setting_without_effect_is_stored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    settings, _ = settings_of()
    settings.config.open_listeners()
    new = {
        "sasl.kerberos.min.time.before.relogin": "58000",
        "listener.name.new.sasl.kerberos.kinit.cmd": "/x",
    }
    settings.check(new, per_broker=True)
    settings.on_entity_changed("3", new)
    assert settings.config.of_broker == new
    assert settings.config.text("sasl.kerberos.min.time.before.relogin") == "58000"
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == [f"{name} is a setting of Kafka that has no effect in Ottla" for name in sorted(new)]
    settings.on_entity_changed("3", new)
    assert len(caplog.records) == len(warned), "once"


def test_a_login_is_a_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    settings, _ = settings_of(password_encoder_secret="one")
    new = {"sasl.jaas.config": "geheim", "listener.name.new.plain.sasl.jaas.config": "geheim"}
    settings.check(new, per_broker=True)
    stored = settings.to_store(new)
    assert not [text for text in stored.values() if "geheim" in text]
    settings.on_entity_changed("3", stored)
    assert settings.config.of_broker == new
    assert "geheim" not in caplog.text
    with pytest.raises(NoSecret):
        settings_of()[0].to_store({"sasl.jaas.config": "geheim"})


def test_synonyms_of_a_listeners_own_setting() -> None:
    settings, _ = settings_of(listener_name_new_plain_sasl_jaas_config="a", sasl_jaas_config="b")
    synonyms = settings.config.synonyms("listener.name.new.plain.sasl.jaas.config")
    assert [(s.name, s.text) for s in synonyms] == [
        ("listener.name.new.plain.sasl.jaas.config", "a"),
        ("sasl.jaas.config", "b"),
    ]


def test_threads_are_halved_or_doubled_at_most_from_what_they_are_now() -> None:
    settings, _ = settings_of(num_io_threads="8")
    settings.check({"num.io.threads": "16"}, per_broker=True)
    settings.on_entity_changed("3", {"num.io.threads": "16"})
    settings.check({"num.io.threads": "32"}, per_broker=True)
    settings.check({}, per_broker=True)
    settings.on_entity_changed("3", {"num.io.threads": "32"})
    with pytest.raises(ConfigRejected, match="at least half the current value 32"):
        settings.check({}, per_broker=True)


def test_unknown_names_may_be_stored() -> None:
    settings, reported = settings_of()
    settings.check({"some.plugin": "x"}, per_broker=False)
    settings.on_entity_changed("<default>", {"some.plugin": "x"})
    assert settings.config.of_cluster == {"some.plugin": "x"}
    assert reported == []


PASSWORD = "listener.name.ssl.ssl.keystore.password"


def test_passwords_are_stored_encrypted_and_read_back() -> None:
    settings, _ = settings_of(password_encoder_secret="one")
    stored = settings.to_store({PASSWORD: "geheim", "log.retention.ms": "5"})
    assert stored["log.retention.ms"] == "5"
    assert "geheim" not in stored[PASSWORD]
    settings.on_entity_changed("3", stored)
    assert settings.config.security("SSL").get("ssl.keystore.password") == "geheim"


def test_without_a_secret_no_password_is_stored_nor_read() -> None:
    stored = settings_of(password_encoder_secret="one")[0].to_store({PASSWORD: "geheim"})
    for given in ({}, {"password_encoder_secret": "another"}):
        settings, _ = settings_of(**given)
        settings.on_entity_changed("3", {**stored, "log.retention.ms": "5"})
        assert settings.config.of_broker == {"log.retention.ms": "5"}
    with pytest.raises(NoSecret):
        settings_of()[0].to_store({PASSWORD: "geheim"})
    assert settings_of()[0].to_store({"log.retention.ms": "5"}) == {"log.retention.ms": "5"}


def test_the_old_secret_decrypts_what_the_present_one_cannot() -> None:
    stored = settings_of(password_encoder_secret="one")[0].to_store({PASSWORD: "geheim", "x": "y"})
    settings, _ = settings_of(password_encoder_secret="two", password_encoder_old_secret="one")
    anew = settings.with_current_secret(stored)
    assert anew["x"] == "y"
    assert settings.usable(anew, per_broker=True)[PASSWORD] == "geheim"
    assert settings.with_current_secret(anew) == anew
    assert settings_of(password_encoder_secret="one")[0].with_current_secret(stored) == stored


def test_only_valid_dynamic_settings_of_the_store_are_applied() -> None:
    settings, _ = settings_of()
    stored = {"log.segment.bytes": "x", "num.partitions": "2", "log.retention.ms": "5", "remote.x": "y"}
    for per_broker in (True, False):
        assert settings.usable(stored, per_broker=per_broker) == {"log.retention.ms": "5"}
    one_brokers = {
        "sasl.login.refresh.buffer.seconds": "5",
        "listener.name.x.sasl.enabled.mechanisms": "PLAIN",
    }
    assert settings.usable(one_brokers, per_broker=True) == one_brokers
    assert settings.usable(one_brokers, per_broker=False) == {}
    assert settings.usable({"ssl.keystore.location": "/x"}, per_broker=True) == {}


def test_stored_settings_that_contradict_each_other_change_nothing() -> None:
    settings, reported = settings_of()
    settings.on_entity_changed("3", {"log.retention.ms": "0", "log.segment.bytes": "100"})
    assert settings.config.get_int("log.segment.bytes") == 1 << 30
    assert reported == []


def test_a_failing_reconfigurable_does_not_affect_others() -> None:
    settings, reported = settings_of()

    def fail(names: frozenset[str]) -> None:
        raise OSError("no")

    settings.on_change.insert(0, fail)
    settings.on_entity_changed("3", {"log.segment.bytes": "100"})
    assert reported == [frozenset({"log.segment.bytes"})]


def test_every_dynamic_setting_is_documented_as_dynamic() -> None:
    dynamic = {name for name, key in BROKER_CONFIGS.keys.items() if key.dynamic}
    assert {"log.retention.ms", "message.max.bytes", "unclean.leader.election.enable"} < dynamic
    assert not {"log.retention.hours", "num.partitions", "listeners"} & dynamic
