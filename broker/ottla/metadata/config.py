"""A broker's settings, and a topic's: parsed, checked and typed.

Called by whoever starts a broker (`ottla broker`, tests) and by every room that reads a setting; the operator
checks a Topic's `spec.config` by the same table. Invariants: a `BrokerConfig` that exists is valid, and what
Ottla cannot honour and would be unsafe to ignore (TLS, SASL, authorizers) never becomes one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.metadata.config_def import ConfigDef, ConfigKey, ConfigType, Value
from ottla.metadata.config_table import BROKER_CONFIGS, TOPIC_CONFIGS, TOPIC_SYNONYMS, WITHOUT_EFFECT

__all__ = [
    "BROKER_CONFIGS",
    "TOPIC_CONFIGS",
    "TOPIC_SYNONYMS",
    "BrokerConfig",
    "ConfigDef",
    "ConfigError",
    "ConfigKey",
    "ConfigType",
    "Listener",
    "is_connect_string",
    "read_properties",
    "topic_defaults",
    "validate_topic_config",
]

_REFUSED: Final = {
    "authorizer.class.name": "no authorizer is served yet",
    "process.roles": "KRaft is not served; Ottla keeps its metadata in ZooKeeper",
    "control.plane.listener.name": "a control plane listener of its own is not served yet",
    "zookeeper.set.acl": "node ACLs are not served yet",
}
_REFUSED_BY_PREFIX: Final = {
    "ssl.": "TLS is not served yet",
    "sasl.": "SASL is not served yet",
    "zookeeper.ssl.": "TLS to ZooKeeper is not served yet",
    "remote.log.": "tiered storage is not served",
    "controller.quorum.": "KRaft is not served; Ottla keeps its metadata in ZooKeeper",
}


# A name, an IPv4 address, or an IPv6 address in brackets; then a port.
_HOST_PORT: Final = re.compile(
    r"(\[[0-9A-Fa-f:.%a-z]+\]|[^\s:/\[\]]+)"
    r"(:([1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5]))?$"
)


class ConfigError(Exception):
    """Settings that a broker cannot start with; `problems` has one line for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Listener:
    """One address of a broker. `host` is "" for all interfaces."""

    name: str
    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{self.host}:{self.port}"


class BrokerConfig:
    """The valid settings of one broker. Read by name, with the type: `config.get_int("num.partitions")`."""

    def __init__(self, values: Mapping[str, Value], given: Mapping[str, str], warnings: list[str]) -> None:
        self._values = dict(values)
        self.given = dict(given)
        """What was set, as text; the rest are defaults."""
        self.warnings = warnings
        self.broker_id: int = self.get_int("broker.id")
        self.rack: str | None = self.get_optional_str("broker.rack")
        self.log_dirs: list[Path] = [
            Path(d.strip()) for d in (self.get_optional_str("log.dirs") or self.get_str("log.dir")).split(",")
        ]
        self.zookeeper_connect: str | None = self.get_optional_str("zookeeper.connect")
        protocols = _protocol_map(self.get_str("listener.security.protocol.map"))
        self.listeners: list[Listener] = _parse_listeners(self.get_str("listeners"), protocols)
        advertised = self.get_optional_str("advertised.listeners")
        self.advertised_listeners: list[Listener] = (
            _parse_listeners(advertised, protocols) if advertised else self.listeners
        )
        self.inter_broker_listener: str = self.get_optional_str("inter.broker.listener.name") or self.get_str(
            "security.inter.broker.protocol"
        )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """Check everything at once; raises ConfigError with a line per problem."""
        values, problems = BROKER_CONFIGS.parse_all(properties)
        warnings: list[str] = []
        for name, text in properties.items():
            if name not in BROKER_CONFIGS:
                _judge_unknown(name, text, problems, warnings)
        if problems:
            raise ConfigError(problems)
        problems = _cross_checks(values)
        if problems:
            raise ConfigError(problems)
        return cls(values, properties, warnings)

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def get_int(self, name: str) -> int:
        value = self._values[name]
        assert isinstance(value, int), f"{name} is not an integer: {value!r}"
        return value

    def get_optional_int(self, name: str) -> int | None:
        return None if self._values[name] is None else self.get_int(name)

    def get_float(self, name: str) -> float:
        value = self._values[name]
        assert isinstance(value, int | float), f"{name} is not a number: {value!r}"
        return float(value)

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

    def get_list(self, name: str) -> tuple[str, ...]:
        value = self._values[name]
        assert isinstance(value, tuple), f"{name} is not a list: {value!r}"
        return value

    def text(self, name: str) -> str | None:
        """The value in Kafka's text form, as DescribeConfigs shows it."""
        given = self.given.get(name)
        return given.strip() if given is not None else BROKER_CONFIGS[name].default


def validate_topic_config(name: str, value: str | None) -> str | None:
    """What is wrong with a topic's setting, or None."""
    problem = TOPIC_CONFIGS.problem(name, value)
    if problem is not None and name not in TOPIC_CONFIGS:
        near = difflib.get_close_matches(name, TOPIC_CONFIGS.keys, n=1)
        return f"Unknown topic config name: {name}" + (f" (did you mean {near[0]}?)" if near else "")
    return problem


def topic_defaults(config: BrokerConfig) -> dict[str, str]:
    """What every topic setting is on this broker where the topic does not set it, as text."""
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
                # A negative retention means "for ever" in every unit.
                text = str(value * factor if value >= 0 else -1)
            assert text is not None
            defaults[name] = text
            break
    return defaults


def read_properties(path: Path) -> dict[str, str]:
    """A Java properties file: `key=value` or `key: value`, # and ! comments, \\ joins lines.

    Raises ConfigError when the file cannot be read, or for a line with no key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError([f"cannot read {path}: {reason}"]) from None
    settings: dict[str, str] = {}
    pending = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = pending + raw.lstrip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1]
            continue
        cut = min((i for i in (line.find("="), line.find(":")) if i >= 0), default=-1)
        name, value = (line[:cut], line[cut + 1 :]) if cut >= 0 else (line, "")
        name = name.strip()
        if not name:
            raise ConfigError([f"{path}:{number}: a line with a value and no name: {raw.strip()}"])
        settings[name] = value.strip().replace("\\\\", "\\")
    return settings


def _judge_unknown(name: str, text: str, problems: list[str], warnings: list[str]) -> None:
    if name in _REFUSED and text.strip() and text.strip() != "false":
        problems.append(f"{name}={text}: {_REFUSED[name]}")
        return
    for prefix, reason in _REFUSED_BY_PREFIX.items():
        if name.startswith(prefix):
            problems.append(f"{name}: {reason}")
            return
    if name in WITHOUT_EFFECT:
        warnings.append(f"{name} is a setting of Kafka's that has no effect in Ottla yet")
        return
    near = difflib.get_close_matches(name, BROKER_CONFIGS.keys, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    warnings.append(f"unknown setting {name} is ignored{hint}")


def _cross_checks(values: Mapping[str, Value]) -> list[str]:
    """Rules that hold between settings."""
    problems: list[str] = []
    try:
        protocols = _protocol_map(str(values["listener.security.protocol.map"]))
        listeners = _parse_listeners(str(values["listeners"]), protocols)
        advertised = values["advertised.listeners"]
        told = _parse_listeners(str(advertised), protocols) if advertised else listeners
    except ConfigError as error:
        return error.problems
    names = [listener.name for listener in listeners]
    if len(set(names)) != len(names):
        problems.append(f"listeners={values['listeners']}: each listener needs a name of its own")
    problems += [
        f"listeners: {listener}: {listener.protocol} is not served yet; only PLAINTEXT is"
        for listener in listeners
        if listener.protocol != "PLAINTEXT"
    ]
    problems += [
        f"advertised.listeners: {listener}: there is no listener {listener.name} among {', '.join(names)}"
        for listener in told
        if listener.name not in names
    ]
    problems += [
        f"advertised.listeners: {listener}: a client cannot connect to {listener.host}; name the host"
        for listener in told
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
    version = str(values["inter.broker.protocol.version"])
    if not version.startswith("3.9"):
        problems.append(f"inter.broker.protocol.version={version}: only 3.9 is served yet")
    return problems


def is_connect_string(text: str) -> bool:
    """Whether ZooKeeper's client would take it; the port may be left out, as there."""
    hosts, slash, chroot = text.partition("/")
    if slash and ("//" in text or chroot.strip() != chroot or chroot.endswith("/")):
        return False
    return all(_HOST_PORT.match(host.strip()) for host in hosts.split(","))


def _protocol_map(text: str) -> dict[str, str]:
    mapping: dict[str, str] = {}
    for item in text.split(","):
        name, colon, protocol = item.strip().partition(":")
        if not colon or protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            raise ConfigError(
                [
                    f"listener.security.protocol.map={text}: {item.strip()} is not NAME:PROTOCOL, "
                    "with PROTOCOL one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"
                ]
            )
        mapping[name.upper()] = protocol
    return mapping


def _parse_listeners(text: str, protocols: Mapping[str, str]) -> list[Listener]:
    listeners: list[Listener] = []
    for raw in text.split(","):
        item = raw.strip()
        name, scheme, address = item.partition("://")
        host, colon, port = address.rpartition(":")
        if not scheme or not colon or not port.isdigit() or int(port) > 65535:
            raise ConfigError([f"listeners: {item!r} is not NAME://HOST:PORT with a port from 0 to 65535"])
        name = name.upper()
        if name not in protocols:
            raise ConfigError(
                [f"listeners: {item}: no protocol for {name} in listener.security.protocol.map"]
            )
        listeners.append(Listener(name, protocols[name], host.strip("[]"), int(port)))
    return listeners
