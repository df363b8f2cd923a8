"""Broker and topic configuration (KafkaConfig, LogConfig): parsing, validation, typed access.

Created by `ottla broker` and tests, read by every package of the broker; the operator validates a Topic's
`spec.config` with the same table. Invariants: a `BrokerConfig` is valid; settings that Ottla cannot honour
and that are unsafe to ignore (Kerberos, authorizers in Java) are rejected.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Mapping
from itertools import dropwhile
from pathlib import Path
from typing import Final, NamedTuple

from ottla.metadata import stored_passwords, zookeeper_access
from ottla.metadata.broker_config_table import (
    BROKER_CONFIGS,
    BUILT_IN_POLICIES,
    OTTLA_CONFIGS,
    QUOTA_CONFIGS,
    WITHOUT_EFFECT,
)
from ottla.metadata.config_def import ConfigDef, ConfigError, ConfigKey, ConfigType, Value, read_properties
from ottla.metadata.inter_broker import InterBrokerVersion
from ottla.metadata.listener_security import ListenerSecurity, listener_problems, prefixed_problem, unprefixed
from ottla.metadata.listeners import (
    LIMITS,
    Listener,
    base_name,
    is_connect_string,
    is_limit,
    limit_problem,
    listener_key,
    parse_address_limits,
    parse_listeners,
    parse_protocol_map,
)
from ottla.metadata.security_config_table import BY_MECHANISM, STORE_SETTINGS
from ottla.metadata.topic_config_table import TOPIC_CONFIGS, TOPIC_SYNONYMS
from ottla.security import authorizer

__all__ = [
    "BROKER_CONFIGS",
    "QUOTA_CONFIGS",
    "TOPIC_CONFIGS",
    "TOPIC_SYNONYMS",
    "BrokerConfig",
    "ConfigDef",
    "ConfigError",
    "ConfigKey",
    "ConfigSource",
    "ConfigType",
    "Listener",
    "Synonym",
    "broker_synonyms",
    "deletion_policy_problem",
    "is_connect_string",
    "is_unsupported",
    "read_properties",
    "topic_config_problem",
    "topic_defaults",
    "topic_synonyms",
    "validate_topic_config",
    "without_listener",
]

_REFUSED: Final = {
    "process.roles": "KRaft is not supported; Ottla keeps its metadata in ZooKeeper",
    "control.plane.listener.name": "a separate control plane listener is not supported",
}
_REFUSED_BY_PREFIX: Final = {
    "remote.log.": "tiered storage is not supported",
    "controller.quorum.": "KRaft is not supported; Ottla keeps its metadata in ZooKeeper",
}

# Kafka's settings of features that Ottla does not have. The broker logs them as unknown settings.
_UNSUPPORTED: Final = frozenset(
    (
        "client.quota.callback.class",
        "controller.listener.names",
        "early.start.listeners",
        "group.consumer.migration.policy",
        "group.coordinator.new.enable",
        "group.share.enable",
        "log.initial.task.delay.ms",
        "metadata.log.segment.min.bytes",
        "node.id",
        "producer.id.expiration.check.interval.ms",
        "sasl.mechanism.controller.protocol",
        "security.providers",
        "server.max.startup.time.ms",
        "unclean.leader.election.interval.ms",
        "unstable.api.versions.enable",
        "unstable.feature.versions.enable",
        "zookeeper.metadata.migration.enable",
        "zookeeper.metadata.migration.min.batch.size",
    )
)

# One setting in several units.
_BROKER_SYNONYMS: Final = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)


class ConfigSource(enum.IntEnum):
    """The source of a value; the numbers are those of DescribeConfigs responses (KIP-226)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_CLUSTER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class Synonym(NamedTuple):
    """A setting and layer that a value can come from."""

    name: str
    text: str | None
    source: ConfigSource


class BrokerConfig:
    """The valid settings of one broker. Read by name, with the type: `config.get_int("num.partitions")`.

    Three layers over Kafka's defaults, the strongest first: dynamic settings of this broker, dynamic settings
    of all brokers (KIP-226), and static settings (`static`). The dynamic layers change while the broker runs:
    readers read a setting again, or register a callback with `dynamic_broker_config`.
    """

    def __init__(self, values: Mapping[str, Value], static: Mapping[str, str], warnings: list[str]) -> None:
        self._values = dict(values)
        self.static = dict(static)
        """The static settings from the start of the broker, as text."""
        self.of_broker: dict[str, str] = {}
        self.of_cluster: dict[str, str] = {}
        self._opened_with: dict[str, str] | None = None
        self._of_listeners: Mapping[str, str] = {}
        self.warnings = warnings
        self.broker_id: int = self.get_int("broker.id")
        self.rack: str | None = self.get_optional_str("broker.rack")
        self.log_dirs: list[Path] = [
            Path(d.strip()) for d in (self.get_optional_str("log.dirs") or self.get_str("log.dir")).split(",")
        ]
        self.zookeeper_connect: str | None = self.get_optional_str("zookeeper.connect")
        protocols = parse_protocol_map(self.get_str("listener.security.protocol.map"))
        self.listeners: list[Listener] = parse_listeners(self.get_str("listeners"), protocols)
        advertised = self.get_optional_str("advertised.listeners")
        self.advertised_listeners: list[Listener] = (
            parse_listeners(advertised, protocols) if advertised else self.listeners
        )
        self.inter_broker_version = InterBrokerVersion.of(self.get_str("inter.broker.protocol.version"))
        self.inter_broker_listener: str = self.get_optional_str("inter.broker.listener.name") or self.get_str(
            "security.inter.broker.protocol"
        )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """Parse and validate all settings; raises ConfigError with a line per problem."""
        values, problems = BROKER_CONFIGS.parse_all(properties)
        own, own_problems = OTTLA_CONFIGS.parse_all(properties)
        problems += own_problems
        warnings: list[str] = []
        ignored = authorizer.own_prefix(properties)
        for name, text in properties.items():
            if unprefixed(name) is not None:
                problems += filter(None, [prefixed_problem(name, text)])
            elif (name not in BROKER_CONFIGS or name in WITHOUT_EFFECT) and not name.startswith(ignored):
                _check_unknown(name, text, problems, warnings)
        problems += authorizer.problems(properties)
        if problems:
            raise ConfigError(problems)
        problems = _cross_checks(values) or _security_checks(values, properties)
        problems += _deletion_policy_problems(own)
        if problems:
            raise ConfigError(problems)
        # These are dynamic settings only; static ones are ignored.
        values.update(QUOTA_CONFIGS.parse_all({})[0])
        values.update(own)
        return cls(values, properties, warnings)

    def with_dynamic(self, of_broker: Mapping[str, str], of_cluster: Mapping[str, str]) -> dict[str, Value]:
        """All values with these dynamic layers. Raises ConfigError.

        A setting hides its synonyms in the layers below: a dynamic log.retention.ms overrides a static
        log.retention.hours.
        """
        effective = dict(self.static)
        for layer in (of_cluster, of_broker):
            for name, text in layer.items():
                for synonym in broker_synonyms(name):
                    effective.pop(synonym, None)
                effective[name] = text
        values, problems = BROKER_CONFIGS.parse_all(effective)
        rates, wrong_rates = QUOTA_CONFIGS.parse_all({**of_cluster, **of_broker})
        problems += wrong_rates
        if problems:
            raise ConfigError(problems)
        problems = _cross_checks(values) or _security_checks(values, effective)
        if problems:
            raise ConfigError(problems)
        return {**values, **rates, **OTTLA_CONFIGS.parse_all(self.static)[0]}

    def apply_dynamic(self, of_broker: Mapping[str, str], of_cluster: Mapping[str, str]) -> frozenset[str]:
        """Replace the dynamic layers; returns the names of the settings whose values changed. Raises
        ConfigError, without a change."""
        values, before = self.with_dynamic(of_broker, of_cluster), self._values
        self.of_broker, self.of_cluster, self._values = dict(of_broker), dict(of_cluster), values
        self._of_listeners = self._listener_layer()
        return frozenset(name for name, value in values.items() if value != before[name])

    def synonyms(self, name: str) -> list[Synonym]:
        """The sources of a setting's value, the strongest first.

        As in Kafka, other names count only after the setting's own name: a static log.retention.hours alone
        is not a source of log.retention.ms.
        """
        layers = (
            (self.of_broker, ConfigSource.DYNAMIC_BROKER),
            (self.of_cluster, ConfigSource.DYNAMIC_CLUSTER),
            (self.static, ConfigSource.STATIC_BROKER),
        )
        names = (name, without_listener(name)) if base_name(name) else broker_synonyms(name)
        found = [Synonym(n, layer[n], source) for layer, source in layers for n in names if n in layer]
        keys = {**BROKER_CONFIGS.keys, **OTTLA_CONFIGS.keys}
        found += [
            Synonym(n, keys[n].show(keys[n].default_value), ConfigSource.DEFAULT)
            for n in names
            if n in keys and keys[n].default is not None
        ]
        return list(dropwhile(lambda synonym: synonym.name != name, found))

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def security(self, listener: str) -> ListenerSecurity:
        """The security settings of a listener; each read returns the current value."""
        return ListenerSecurity(listener, self._of_listeners, self.of_cluster, self.static)

    @property
    def listeners_are_open(self) -> bool:
        return self._opened_with is not None

    def open_listeners(self) -> None:
        """Call when the listeners open: later changes of key and trust stores apply at once, other changes of
        listeners' security settings apply from the next start, as in Kafka."""
        self._opened_with = self.of_broker

    def _listener_layer(self) -> Mapping[str, str]:
        if self._opened_with is None:
            return self.of_broker
        kept = {name: text for name, text in self._opened_with.items() if not _is_store_setting(name)}
        return {**kept, **{name: text for name, text in self.of_broker.items() if _is_store_setting(name)}}

    def listener_limit(self, listener: str, name: str) -> int:
        """One of `listeners.LIMITS`: the listener's value, or else the broker's."""
        assert name in LIMITS
        key = listener_key(listener, name)
        for layer in (self.of_broker, self.of_cluster, self.static):
            if key in layer:
                return int(layer[key])
        return self.get_int(name)

    def get_int(self, name: str) -> int:
        value = self._values[name]
        assert isinstance(value, int), f"{name} is not an integer: {value!r}"
        return value

    def get_optional_int(self, name: str) -> int | None:
        return None if self._values[name] is None else self.get_int(name)

    def get_float(self, name: str) -> float:
        value = self._values[name]
        assert isinstance(value, float), f"{name} is not a number: {value!r}"
        return value

    def get_bool(self, name: str) -> bool:
        value = self._values[name]
        assert isinstance(value, bool), f"{name} is not a boolean: {value!r}"
        return value

    def get_str(self, name: str) -> str:
        value = self._values[name]
        assert isinstance(value, str), f"{name} is not a string: {value!r}"
        return value

    def get_optional_str(self, name: str) -> str | None:
        return None if self._values[name] is None else self.get_str(name)

    def text(self, name: str) -> str | None:
        """The value in Kafka's text form, as in DescribeConfigs."""
        key = BROKER_CONFIGS.keys.get(name) or OTTLA_CONFIGS.keys.get(name) or QUOTA_CONFIGS[name]
        return key.show(self._values[name])


def validate_topic_config(name: str, value: str | None) -> str | None:
    """The error of a topic's setting, or None."""
    problem = TOPIC_CONFIGS.problem(name, value)
    if problem is not None and name not in TOPIC_CONFIGS:
        near = difflib.get_close_matches(name, TOPIC_CONFIGS.keys, n=1)
        return f"Unknown topic config name: {name}" + (f" (did you mean {near[0]}?)" if near else "")
    return problem


def topic_config_problem(topic: str, settings: Mapping[str, str]) -> str | None:
    """The error of all settings of a topic together, with Kafka's message, or None."""
    unknown = next((name for name in settings if name not in TOPIC_CONFIGS), None)
    if unknown is not None:
        return validate_topic_config(unknown, settings[unknown])
    for name, text in settings.items():
        problem = TOPIC_CONFIGS.problem_in_kafka(name, text)
        if problem is not None:
            return f"Invalid config value for resource ConfigResource(type=TOPIC, name='{topic}'): {problem}"
    values, _ = TOPIC_CONFIGS.parse_all(settings)
    low, high = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if isinstance(low, int) and isinstance(high, int) and low > high:
        return f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
    return None


def deletion_policy_problem(config: BrokerConfig, settings: Mapping[str, str]) -> str | None:
    """The error of a topic's deletion policies that this broker does not have, or None."""
    chosen = TOPIC_CONFIGS["ottla.deletion.policies"].parse(settings.get("ottla.deletion.policies", ""))
    return _unknown_policy("ottla.deletion.policies", chosen, config["ottla.log.deletion.policy.classes"])


def _unknown_policy(setting: str, chosen: Value, classes: Value) -> str | None:
    assert isinstance(chosen, tuple)
    assert isinstance(classes, tuple)
    known = (*BUILT_IN_POLICIES, *classes)
    unknown = [name for name in chosen if name not in known]
    if not unknown:
        return None
    return (
        f"Invalid value {','.join(chosen)} for configuration {setting}: unknown policy "
        f"{', '.join(unknown)}; ottla.log.deletion.policy.classes allows {', '.join(known)}"
    )


def _deletion_policy_problems(own: Mapping[str, Value]) -> list[str]:
    """Errors of the deletion policies in `own`, the values of Ottla's settings."""
    classes = own["ottla.log.deletion.policy.classes"]
    assert isinstance(classes, tuple)
    taken = [name for name in classes if name in BUILT_IN_POLICIES]
    if taken:
        return [f"ottla.log.deletion.policy.classes={','.join(classes)}: {', '.join(taken)}: is built in"]
    setting = "ottla.log.deletion.policies"
    problem = _unknown_policy(setting, own[setting], classes)
    return [] if problem is None else [problem]


def topic_defaults(config: BrokerConfig) -> dict[str, str]:
    """The values of all topic settings that a topic does not set, on this broker, as text."""
    defaults: dict[str, str] = {}
    for name, key in TOPIC_CONFIGS.keys.items():
        assert key.default is not None
        defaults[name] = key.default
        for synonym, factor in TOPIC_SYNONYMS.get(name, ()):
            value = config[synonym]
            if value is None:
                continue
            text = config.text(synonym)
            if factor != 1 and isinstance(value, int):
                # A negative retention means no limit in every unit.
                text = str(value * factor if value >= 0 else -1)
            assert text is not None
            defaults[name] = text
            break
    return defaults


def broker_synonyms(name: str) -> tuple[str, ...]:
    """The names of one broker setting, the strongest first: in milliseconds, minutes, hours."""
    if name == "log.flush.interval.ms":
        return name, "log.flush.scheduler.interval.ms"  # its default, but not the reverse
    return next((names for names in _BROKER_SYNONYMS if name in names), (name,))


def topic_synonyms(config: BrokerConfig, name: str) -> list[Synonym]:
    """The sources of a topic setting that the topic does not set."""
    synonyms = TOPIC_SYNONYMS.get(name)
    return config.synonyms(synonyms[0][0]) if synonyms else []


def without_listener(name: str) -> str:
    """The setting that a listener's setting overrides (DynamicBrokerConfig.brokerConfigSynonyms); other names
    unchanged."""
    base = base_name(name)
    if base is None:
        return name
    return next((setting for setting in BY_MECHANISM if base.endswith(setting)), base)


def _is_store_setting(name: str) -> bool:
    return unprefixed(name) in STORE_SETTINGS


def is_unsupported(name: str) -> bool:
    """Whether this is a Kafka setting that Ottla does not support, so that it cannot be altered."""
    prefixes = (*_REFUSED_BY_PREFIX, "remote.")
    return name in _REFUSED or name in _UNSUPPORTED or name.startswith(prefixes)


def _check_unknown(name: str, text: str, problems: list[str], warnings: list[str]) -> None:
    if name in authorizer.SETTINGS:
        return
    if name in _REFUSED and text.strip() and text.strip() != "false":
        problems.append(f"{name}={text}: {_REFUSED[name]}")
        return
    for prefix, reason in _REFUSED_BY_PREFIX.items():
        if name.startswith(prefix):
            problems.append(f"{name}: {reason}")
            return
    if name in OTTLA_CONFIGS:
        return
    if is_limit(name):
        problem = limit_problem(name, text)
        if problem is not None:
            problems.append(problem)
        return
    if name in WITHOUT_EFFECT:
        warnings.append(f"{name} is a setting of Kafka that has no effect in Ottla")
        return
    near = difflib.get_close_matches(name, BROKER_CONFIGS.keys, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    warnings.append(f"unknown setting {name} is ignored{hint}")


def _cross_checks(values: Mapping[str, Value]) -> list[str]:
    """Errors of settings that contradict each other."""
    problems: list[str] = []
    try:
        protocols = parse_protocol_map(str(values["listener.security.protocol.map"]))
        listeners = parse_listeners(str(values["listeners"]), protocols)
        advertised = values["advertised.listeners"]
        advertised_listeners = parse_listeners(str(advertised), protocols) if advertised else listeners
    except ConfigError as error:
        return error.problems
    names = [listener.name for listener in listeners]
    if len(set(names)) != len(names):
        problems.append(f"listeners={values['listeners']}: each listener must have a different name")
    problems += [
        f"advertised.listeners: {listener}: there is no listener {listener.name} among {', '.join(names)}"
        for listener in advertised_listeners
        if listener.name not in names
    ]
    problems += [
        f"advertised.listeners: {listener}: a client cannot connect to {listener.host}; set a host name"
        for listener in advertised_listeners
        if listener.host in ("0.0.0.0", "::")
    ]
    log_dirs = [d.strip() for d in str(values["log.dirs"] or values["log.dir"]).split(",")]
    problems += [
        f"log.dirs={values['log.dirs']}: {log_dir} is named {log_dirs.count(log_dir)} times"
        for log_dir in dict.fromkeys(log_dirs)
        if log_dirs.count(log_dir) > 1
    ]
    connect = values["zookeeper.connect"]
    if connect and not is_connect_string(str(connect)):
        problems.append(f"zookeeper.connect={connect}: must be HOST:PORT[,HOST:PORT…][/chroot]")
    problems += zookeeper_access.problems(values) + stored_passwords.problems(values)
    map_bytes, threads = values["log.cleaner.dedupe.buffer.size"], values["log.cleaner.threads"]
    if isinstance(map_bytes, int) and isinstance(threads, int) and map_bytes // max(1, threads) <= 1 << 20:
        problems.append(
            f"log.cleaner.dedupe.buffer.size={map_bytes}: must be more than 1 MiB for each of the "
            f"log.cleaner.threads={threads}"
        )
    queued, largest = values["queued.max.request.bytes"], values["socket.request.max.bytes"]
    if isinstance(queued, int) and isinstance(largest, int) and 0 < queued < largest:
        problems.append(
            f"queued.max.request.bytes={queued}: must be at least socket.request.max.bytes={largest}, or -1"
        )
    overrides = str(values["max.connections.per.ip.overrides"])
    try:
        parse_address_limits(overrides)
    except ValueError as problem:
        problems.append(f"max.connections.per.ip.overrides={overrides}: {problem}")
    if values["max.connections.per.ip"] == 0 and not overrides:
        problems.append("max.connections.per.ip=0: requires max.connections.per.ip.overrides")
    between_brokers = values["inter.broker.listener.name"] or values["security.inter.broker.protocol"]
    if between_brokers not in names:
        problems.append(
            f"inter.broker.listener.name={between_brokers}: not among the listeners {', '.join(names)}"
        )
    low, high = values["group.min.session.timeout.ms"], values["group.max.session.timeout.ms"]
    if isinstance(low, int) and isinstance(high, int) and low > high:
        problems.append(
            f"group.min.session.timeout.ms={low}: must be at most group.max.session.timeout.ms={high}"
        )
    lag, wait = values["replica.lag.time.max.ms"], values["replica.fetch.wait.max.ms"]
    if isinstance(lag, int) and isinstance(wait, int) and wait > lag:
        problems.append(f"replica.fetch.wait.max.ms={wait}: must be at most replica.lag.time.max.ms={lag}")
    problems += _time_problems(values)
    version, stored = (
        str(values[f"{name}.version"]) for name in ("inter.broker.protocol", "log.message.format")
    )
    try:
        problem_of_format = InterBrokerVersion.of(version).format_problem(stored)
        if problem_of_format is not None:
            problems.append(f"log.message.format.version={stored}: {problem_of_format}")
    except ValueError as problem:
        problems.append(f"inter.broker.protocol.version={version}: {problem}")
    return problems


def _security_checks(values: Mapping[str, Value], settings: Mapping[str, str]) -> list[str]:
    """Errors of the security settings that the listeners' protocols require."""
    if "inter.broker.listener.name" in settings and "security.inter.broker.protocol" in settings:
        return ["inter.broker.listener.name: cannot be set together with security.inter.broker.protocol"]
    between_brokers = values["inter.broker.listener.name"] or values["security.inter.broker.protocol"]
    protocols = parse_protocol_map(str(values["listener.security.protocol.map"]))
    return [
        problem
        for listener in parse_listeners(str(values["listeners"]), protocols)
        for problem in listener_problems(
            ListenerSecurity(listener.name, settings),
            listener.protocol,
            between_brokers=listener.name == between_brokers,
        )
    ]


def _time_problems(values: Mapping[str, Value]) -> list[str]:
    """Errors of time settings. Their defaults may be null, which a rule of the key itself would reject."""
    problems = []
    for name, low, or_unlimited in (
        ("log.roll.ms", 1, False),
        ("log.roll.jitter.ms", 0, False),
        ("log.retention.ms", 1, True),
        ("log.retention.minutes", 1, True),
        ("log.retention.hours", 1, True),
    ):
        value = values[name]
        if isinstance(value, int) and value < low and not (or_unlimited and value == -1):
            problems.append(f"{name}={value}: must be {'-1, or ' if or_unlimited else ''}at least {low}")
    return problems
