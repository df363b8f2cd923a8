"""settings.md, client-settings.md and pipeline-settings.md: names, types, defaults, allowed values, meaning.

`NOT_IN_TABLE` are the settings of Kafka 3.9's brokers that the tables of Ottla do not have;
tests/interop/java/test_dynamic_settings_like_kafka.py compares all names with Kafka's own definitions.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from pydantic import BaseModel

from ottla.client.core.config import AdminConfig, ClientConfig, ProducerConfig
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.metadata import broker_config_table
from ottla.metadata.broker_config_table import (
    BROKER_CONFIGS,
    OTTLA_CONFIGS,
    PER_BROKER,
    QUOTA_CONFIGS,
    WITHOUT_EFFECT,
)
from ottla.metadata.config import BrokerConfig, ConfigError
from ottla.metadata.config_def import NO_EFFECT, ConfigKey
from ottla.metadata.security_config_table import SECURITY_CONFIGS, ZOOKEEPER_CONFIGS
from ottla.metadata.topic_config_table import TOPIC_CONFIGS, TOPIC_SYNONYMS
from ottla.security import authorizer
from ottla_pipeline.command import job_names
from references.markdown import attribute_docs, code, plain, table

NOT_IN_TABLE: Final = ["client.quota.callback.class", "control.plane.listener.name", "controller.listener.names", "controller.quorum.append.linger.ms", "controller.quorum.bootstrap.servers", "controller.quorum.election.backoff.max.ms", "controller.quorum.election.timeout.ms", "controller.quorum.fetch.timeout.ms", "controller.quorum.request.timeout.ms", "controller.quorum.retry.backoff.ms", "controller.quorum.voters", "early.start.listeners", "group.consumer.migration.policy", "group.coordinator.new.enable", "group.share.enable", "log.initial.task.delay.ms", "metadata.log.segment.min.bytes", "node.id", "process.roles", "producer.id.expiration.check.interval.ms", "remote.fetch.max.wait.ms", "remote.log.index.file.cache.total.size.bytes", "remote.log.manager.copier.thread.pool.size", "remote.log.manager.copy.max.bytes.per.second", "remote.log.manager.copy.quota.window.num", "remote.log.manager.copy.quota.window.size.seconds", "remote.log.manager.expiration.thread.pool.size", "remote.log.manager.fetch.max.bytes.per.second", "remote.log.manager.fetch.quota.window.num", "remote.log.manager.fetch.quota.window.size.seconds", "remote.log.manager.task.interval.ms", "remote.log.manager.task.retry.backoff.max.ms", "remote.log.manager.task.retry.backoff.ms", "remote.log.manager.task.retry.jitter", "remote.log.manager.thread.pool.size", "remote.log.metadata.custom.metadata.max.bytes", "remote.log.metadata.manager.class.name", "remote.log.metadata.manager.class.path", "remote.log.metadata.manager.impl.prefix", "remote.log.metadata.manager.listener.name", "remote.log.reader.max.pending.tasks", "remote.log.reader.threads", "remote.log.storage.manager.class.name", "remote.log.storage.manager.class.path", "remote.log.storage.manager.impl.prefix", "remote.log.storage.system.enable", "sasl.mechanism.controller.protocol", "security.providers", "server.max.startup.time.ms", "unclean.leader.election.interval.ms", "unstable.api.versions.enable", "unstable.feature.versions.enable", "zookeeper.metadata.migration.enable", "zookeeper.metadata.migration.min.batch.size"]  # fmt: skip

_KRAFT: Final = "KRaft"
_REASONS: Final = {
    "client.quota.callback.class": "Java classes; quotas are by user and client id",
    "control.plane.listener.name": "a separate listener for the controller's requests",
    "log.initial.task.delay.ms": "an internal setting of Kafka",
    "producer.id.expiration.check.interval.ms": "an internal setting of Kafka",
    "security.providers": "Java classes",
    "unstable.api.versions.enable": "unreleased versions of APIs",
}
"""What a setting that is not in the table is for; the rest belongs to tiered storage or KRaft."""

DIFFERENCES: Final[Mapping[str, str]] = {
    "alter.config.policy.class.name": "a Python class, not a Java class ([policies](../guides/security.md))",
    "authorizer.class.name": "Kafka's two class names, or a Python class; other Java classes are refused",
    "broker.id": "must be set: Ottla does not generate ids",
    "create.topic.policy.class.name": "a Python class, not a Java class ([policies](../guides/security.md))",
    "advertised.listeners": "read-only; in Kafka it can change while the broker runs",
    "inter.broker.protocol.version": "from 2.8 to 3.9; older versions are refused",
    "listener.security.protocol.map": "read-only; in Kafka it can change while the broker runs",
    "listeners": "read-only; in Kafka it can change while the broker runs",
    "log.cleaner.threads": "processes, since compaction would hold the interpreter",
    "principal.builder.class": "Kafka's default, or a Python class; Java classes are refused",
    "remote.storage.enable": "true is refused: there is no tiered storage",
    "replica.selector.class": "only Kafka's RackAwareReplicaSelector; other classes are refused",
    "sasl.enabled.mechanisms": "GSSAPI, which is the default, is refused for a listener with SASL: set it",
    "sasl.mechanism.inter.broker.protocol": "GSSAPI, which is the default, is refused: set it",
    "sasl.server.callback.handler.class": "only Kafka's own handlers; other classes are refused",
    "sasl.login.callback.handler.class": "only Kafka's own handlers; other classes are refused",
    "socket.send.buffer.bytes": "unless it is set, the system's size, which grows with the connection",
    "ssl.engine.factory.class": "refused for a listener with TLS",
    "ssl.keystore.type": "a JKS file is refused; the error has the command that converts it",
    "ssl.truststore.type": "a JKS file is refused; the error has the command that converts it",
    "zookeeper.ssl.crl.enable": "true is refused",
    "zookeeper.ssl.ocsp.enable": "true is refused",
    "request_percentage": "a share of the one event loop: 100 is all of it ([limits](limits.md#connections))",
}
"""Where Ottla differs from Kafka 3.9 in a setting that it has."""

_INERT_OF_TOPICS: Final = frozenset(
    (
        *("local.retention.bytes", "local.retention.ms", "message.format.version"),
        *("remote.log.copy.disable", "remote.log.delete.on.disable"),
    )
)

_QUOTAS: Final = (
    ("producer_byte_rate", "LONG", "user, client-id", "Bytes a second that the client may produce to a broker."),
    ("consumer_byte_rate", "LONG", "user, client-id", "Bytes a second that the client may fetch from a broker."),
    ("request_percentage", "DOUBLE", "user, client-id", "Share of a broker's time that the requests may take."),
    (
        "controller_mutation_rate",
        "DOUBLE",
        "user, client-id",
        "Partitions a second that the client may create and delete (KIP-599).",
    ),
    ("connection_creation_rate", "INT", "ip", "New connections a second from the address to a broker."),
)  # fmt: skip


def pages() -> dict[str, str]:
    return {
        "settings.md": broker_page(),
        "client-settings.md": client_page(),
        "pipeline-settings.md": pipeline_page(),
    }


# --- brokers and topics -----------------------------------------------------------------------------

_BROKER_HEAD: Final = """\
# Settings of brokers, topics and quotas

Names, types, defaults and ranges are those of Apache Kafka 3.9 in ZooKeeper mode; tests compare them with Kafka's own
definitions and with a running Kafka. Kafka 3.9.1 has {kafka} broker settings: Ottla honours {honoured} of them, accepts
{inert} [without effect](#settings-without-effect) and does not have {missing} ([below](#settings-that-ottla-does-not-have)).
Settings that begin with `ottla.` are [Ottla's own](#ottlas-own-settings).

A broker reads `server.properties` (`ottla broker --config FILE`, single settings by `--override NAME=VALUE`). On Kubernetes and
with `ottla up`, `spec.config` of a [BrokerCluster](resources/brokercluster.md) has the same names. `ottla configs describe
broker ID` prints the values of a running broker with their sources.

**Update** is Kafka's update mode. *read-only*: in the file, from the next start on. *per broker*: by
`ottla configs set broker ID NAME=VALUE` while the broker runs. *cluster-wide*: also for all brokers, by
`ottla configs set broker all NAME=VALUE`. A broker stores no password without `password.encoder.secret`.

A value that a broker cannot honour safely ends its start with a line for each problem. A setting without effect, and an unknown one,
is logged as a warning; the warning names the nearest known name. Units are in the names: `.ms`, `.minutes`, `.bytes`. Settings that
end in `.ms` and accept -1 have no limit then.
"""


def broker_page() -> str:
    honoured = [key for key in BROKER_CONFIGS.keys.values() if key.name not in WITHOUT_EFFECT]
    kafka = len(BROKER_CONFIGS.keys) + len(NOT_IN_TABLE)
    parts = [
        _BROKER_HEAD.format(
            kafka=kafka,
            honoured=len(honoured),
            inert=len(WITHOUT_EFFECT),
            missing=len(NOT_IN_TABLE),
        ),
        "## Topics\n",
        "`ottla topics create NAME --config retention.ms=3600000`, `ottla configs set topic NAME retention.ms=3600000`, or `spec.config` of a\n"
        "[Topic](resources/topic.md). A topic that does not set a value has that of the broker's setting in the column *falls back to*.\n",
        table(
            ("setting", "type", "default", "allowed", "falls back to", "meaning"),
            (_topic_row(key) for key in TOPIC_CONFIGS.keys.values()),
        ),
    ]
    for title, keys in _groups().items():
        parts += [f"## {title}\n", _broker_table(keys)]
        if title == "TLS and SASL":
            parts.insert(-1, _PREFIXES)
    parts += [
        "## Replication throttles\n",
        "These exist only as dynamic settings; values in `server.properties` are ignored, as in Kafka.\n",
        _broker_table(QUOTA_CONFIGS.keys.values()),
        "## Ottla's own settings\n",
        _broker_table(OTTLA_CONFIGS.keys.values()),
        "## Settings of the authorizer\n",
        "Kafka does not list them among the broker's; AclAuthorizer and `authorizer.class.name=module:Class` use them. Settings that\n"
        "begin with `authorizer.` belong to an authorizer of your own.\n",
        table(
            ("setting", "default", "meaning"),
            (
                (
                    code(authorizer.SUPER_USERS),
                    "",
                    "Principals that may do everything: `User:NAME`, separated by `;`.",
                ),
                (
                    code(authorizer.ALLOW_IF_NO_ACL),
                    "`false`",
                    "Whether a resource without ACLs is open to all.",
                ),
            ),
        ),
        "## Client quotas\n",
        "`ottla quotas set --user NAME --client ID NAME=VALUE`, or a [Quota](resources/quota.md). Each broker counts for itself.\n",
        table(
            ("quota", "type", "of", "meaning", "differs from Kafka"),
            (
                (code(name), kind, of, meaning, DIFFERENCES.get(name, ""))
                for name, kind, of, meaning in _QUOTAS
            ),
        ),
        "## Settings without effect\n",
        "A broker accepts them with Kafka's types and ranges, shows them in descriptions, and logs a warning if one is set.\n",
        table(
            ("setting", "default", "why"),
            (
                (code(key.name), _default(key), plain(key.doc.removeprefix(f"{NO_EFFECT}: ")))
                for key in sorted(BROKER_CONFIGS.keys.values(), key=lambda key: key.name)
                if key.name in WITHOUT_EFFECT
            ),
        ),
        "## Settings that Ottla does not have\n",
        "*refused*: the broker does not start with it, since it would be unsafe to ignore. *warning*: logged and ignored. None of them can be\n"
        "altered on a running broker.\n",
        table(
            ("setting", "in a file", "part of"),
            ((code(name), _in_a_file(name), _part_of(name)) for name in NOT_IN_TABLE),
        ),
    ]
    return "\n".join(parts)


_PREFIXES: Final = """\
With the prefix `listener.name.NAME.` they hold for one listener, and `connections.max.reauth.ms`, `sasl.jaas.config`,
`sasl.login.callback.handler.class`, `sasl.login.class` and `sasl.server.callback.handler.class` with
`listener.name.NAME.MECHANISM.` for one mechanism of it. Key and trust stores of an open listener change at once, by their
prefixed names; other changes take effect when the broker restarts. [Security](../guides/security.md) has examples.
"""


def _groups() -> dict[str, list[ConfigKey]]:
    """The honoured settings by the headings of their table."""
    found: dict[str, list[ConfigKey]] = {}
    group: list[ConfigKey] = []
    for line in broker_config_table._IMPLEMENTED.splitlines():
        text = line.strip()
        if text.startswith("# "):
            title = text[2:]
            group = found.setdefault(title[0].upper() + title[1:], [])
        elif text and text[0] not in "|\\" and (name := text.split()[0].lstrip("*")) in BROKER_CONFIGS:
            group.append(BROKER_CONFIGS[name])
    found["ZooKeeper"] += ZOOKEEPER_CONFIGS
    found["TLS and SASL"] = list(SECURITY_CONFIGS)
    return found


def _broker_table(keys: Iterable[ConfigKey]) -> str:
    return table(
        ("setting", "type", "default", "allowed", "update", "meaning"), (_broker_row(key) for key in keys)
    )


def _broker_row(key: ConfigKey) -> tuple[str, ...]:
    update = "read-only"
    if key.dynamic:
        update = "per broker" if key.name in PER_BROKER else "cluster-wide"
    return code(key.name), key.type.label, _default(key), _allowed(key), update, _meaning(key)


def _topic_row(key: ConfigKey) -> tuple[str, ...]:
    synonyms = ", ".join(code(name) for name, _ in TOPIC_SYNONYMS.get(key.name, ()))
    meaning = f"{_meaning(key)} {'*No effect in Ottla.*' if key.name in _INERT_OF_TOPICS else ''}"
    return code(key.name), key.type.label, _default(key), _allowed(key), synonyms, meaning


def _meaning(key: ConfigKey) -> str:
    difference = DIFFERENCES.get(key.name)
    return plain(key.doc) + (f" **Differs**: {difference}." if difference else "")


def _default(key: ConfigKey) -> str:
    if key.default is None:
        return "none"
    return code(key.default) if key.default else "empty"


def _allowed(key: ConfigKey) -> str:
    return "" if key.rule is None else plain(key.rule.allowed.removeprefix("one of "))


def _in_a_file(name: str) -> str:
    try:
        warnings = BrokerConfig.from_properties({"broker.id": "0", name: "x"}).warnings
    except ConfigError:
        return "refused"
    assert warnings
    return "warning"


def _part_of(name: str) -> str:
    if name.startswith("remote."):
        return "tiered storage"
    if name.startswith("group."):
        return "the group protocols of KIP-848 and KIP-932, which need KRaft"
    return _REASONS.get(name, _KRAFT)


# --- clients ----------------------------------------------------------------------------------------

_CLIENT_HEAD: Final = """\
# Settings of the clients

Settings of `ottla.client`: `Producer`, `Consumer`, `AdminClient` and their blocking forms, with the names, defaults and units of
Kafka's Java clients. A setting is given as a keyword, with `_` for `.`, or in a mapping with Kafka's names:
`Producer(bootstrap_servers="localhost:9092", linger_ms=5)`. An unknown name is an error.

`security.protocol` (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL) and all `ssl.*` and `sasl.*` of Kafka's clients are described in the
[guide of the client](../guides/client.md#security); `ottla` reads them from `--command-config FILE`.
"""


def client_page() -> str:
    parts = [_CLIENT_HEAD]
    for title, config in (
        ("All clients", ClientConfig),
        ("Producers", ProducerConfig),
        ("Consumers", ConsumerConfig),
        ("Admin clients", AdminConfig),
    ):
        inherited = set() if config is ClientConfig else {each.name for each in fields(ClientConfig)}
        docs = attribute_docs(config)
        rows = [
            (code(each.name.replace("_", ".")), _value(each.default), plain(docs.get(each.name, "")))
            for each in fields(config)
            if "parse" in each.metadata and each.name not in inherited
        ]
        parts += [f"## {title}\n", table(("setting", "default", "meaning"), rows)]
    return "\n".join(parts)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    return "" if value in (None, "") else code(value)


# --- jobs of the pipeline ---------------------------------------------------------------------------

_PIPELINE_HEAD: Final = """\
# Settings of pipeline jobs

The YAML of `ottla-pipeline JOB --config FILE`, and of `spec.config` of a [Pipeline](resources/pipeline.md). `--check` validates a file
without Spark. An unknown field or a value of another type is an error that names its path. A field without a default is
required.
"""


_GUIDES: Final = {
    "audit": "audit.md",
    "lake": "lake.md",
    "mirror": "mirror.md",
    "python": "streams.md",
    "windows": "windows.md",
}


def pipeline_page() -> str:
    parts = [_PIPELINE_HEAD]
    configs: dict[type[BaseModel], list[str]] = {}
    docs: dict[str, str] = {}
    for name in job_names():
        module = importlib.import_module(f"ottla_pipeline.jobs.{name.replace('-', '_')}")
        configs.setdefault(module.CONFIG, []).append(name)
        docs[name] = " ".join((module.__doc__ or "").strip().partition("\n\n")[0].split())
    shared = _shared(configs)
    for config, jobs in configs.items():
        parts += [f"## {', '.join(jobs)}\n", *(f"- `{job}`: {plain(docs[job])}" for job in jobs), ""]
        guide = next((_GUIDES[job] for job in jobs if job in _GUIDES), None)
        parts += [f"[The guide](../guides/pipeline/{guide}) has examples.\n"] if guide else []
        parts += _model_parts(config, leave_out=shared)
    parts += ["## Common parts\n"]
    for model in sorted(shared, key=lambda each: each.__name__):
        parts += [f"### {model.__name__}\n", _text(model), _fields_table(model)]
    return "\n".join(parts)


def _shared(configs: Iterable[type[BaseModel]]) -> set[type[BaseModel]]:
    """The models that several jobs have."""
    counts: dict[type[BaseModel], int] = {}
    for config in configs:
        for model in set(_nested(config)):
            counts[model] = counts.get(model, 0) + 1
    return {model for model, count in counts.items() if count > 1}


def _nested(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for field in model.model_fields.values():
        for each in _models_in(field.annotation):
            yield each
            yield from _nested(each)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in getattr(annotation, "__args__", ()):
        yield from _models_in(each)


def _model_parts(config: type[BaseModel], leave_out: set[type[BaseModel]]) -> Iterator[str]:
    yield _fields_table(config)
    for model in dict.fromkeys(_nested(config)):
        if model not in leave_out:
            yield f"### {model.__name__}\n"
            yield _text(model)
            yield _fields_table(model)


def _text(model: type[BaseModel]) -> str:
    own = model.__dict__.get("__doc__")
    return f"{plain(' '.join(own.split()))}\n" if own else ""


def _fields_table(model: type[BaseModel]) -> str:
    schema = model.model_json_schema(by_alias=True)
    docs = attribute_docs(model)
    rows = []
    for name, field in model.model_fields.items():
        shown = field.alias or name
        found = schema["properties"].get(shown) or schema["properties"][name]
        default = "" if field.is_required() else _json(field.get_default(call_default_factory=True))
        rows.append((code(shown), _kind(found), default, plain(docs.get(name, field.description or ""))))
    return table(("field", "type", "default", "meaning"), rows)


def _json(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return "its defaults"
    if value in ({}, [], ()):
        return "empty"
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(value)


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(code(each) for each in schema["enum"])
    if "const" in schema:
        return code(schema["const"])
    variants = schema.get("anyOf") or schema.get("oneOf")
    if variants:
        return " or ".join(_kind(each) for each in variants if each.get("type") != "null")
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"map of {_kind(values)}" if isinstance(values, dict) else "map"
    bounds = [
        f"{sign} {schema[name]}"
        for name, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if name in schema
    ]
    pattern = [f"matches {code(schema['pattern'])}"] if "pattern" in schema else []
    return ", ".join([kind, *bounds, *pattern])
