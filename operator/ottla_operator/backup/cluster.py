"""Takes the backup of a running cluster, and restores one into another cluster, by the Admin API.

`plan_restore` is pure: what exists in the target stays, and what differs there is reported. Offsets of groups
are restored where the records are, so that a group never skips records that it has not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from ottla.client.admin import AdminClient
from ottla.client.admin_types import (
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    ConfigType,
    NewTopic,
    OffsetSpec,
    OffsetToCommit,
    QuotaEntity,
    TopicPartition,
)
from ottla.client.errors import ClientError, SecurityDisabledError, UnknownTopicOrPartitionError
from ottla.security.acls import AclBinding
from ottla_operator.backup.document import Backup, Entity, OffsetRecord, TopicRecord
from ottla_operator.conditions import iso_time
from ottla_operator.resources.settings import THROTTLED_REPLICAS

Part = Literal["topics", "settings", "acls", "quotas", "offsets"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
_TOPICS_PER_REQUEST: Final = 100
_COMMIT_ATTEMPTS, _COMMIT_PAUSE_S = 20, 0.5
_OF_TOPIC, _OF_BROKER, _OF_ALL = 1, 2, 3
_OF_A_MOVE: Final = (
    *THROTTLED_REPLICAS,
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
"""Settings of a reassignment in progress."""


async def take_backup(admin: AdminClient, now_ms: int) -> Backup:
    """Read the metadata of the cluster. Raises ClientError."""
    cluster = await admin.describe_cluster()
    described = {n: t for n, t in (await admin.describe_topics()).items() if not t.internal}
    configs = await admin.describe_topic_configs(described) if described else {}
    left_out: list[str] = []
    topics = {
        name: TopicRecord(
            name,
            len(topic.partitions),
            max((len(partition.replicas) for partition in topic.partitions), default=0),
            _own(configs[name], (_OF_TOPIC,), f"topic {name}", left_out),
        )
        for name, topic in described.items()
    }
    settings = {}
    for broker in (None, *sorted(node.id for node in cluster.brokers)):
        found = await admin.describe_broker_configs(broker)
        where = "all brokers" if broker is None else f"broker {broker}"
        own = _own(found, (_OF_ALL,) if broker is None else (_OF_BROKER,), where, left_out)
        if own:
            settings["" if broker is None else str(broker)] = own
    acls: frozenset[AclBinding] = frozenset()
    try:
        acls = frozenset(await admin.describe_acls())
    except SecurityDisabledError:
        left_out.append("ACLs: the brokers have no authorizer, or a custom one")
    quotas = await admin.describe_client_quotas()
    users = dict(await admin.describe_user_scram_credentials())
    left_out += [f"the password of user {user} ({', '.join(users[user])})" for user in sorted(users)]
    return Backup(
        cluster.cluster_id or "",
        iso_time(now_ms),
        topics,
        settings,
        acls,
        {tuple(sorted(entity.items())): values for entity, values in quotas.items()},
        users,
        frozenset(await _offsets(admin)),
        tuple(left_out),
    )


def _own(
    configs: Mapping[str, ConfigEntry], sources: tuple[int, ...], where: str, left_out: list[str]
) -> dict[str, str]:
    """The settings from these sources; sensitive ones have no value and are left out."""
    own = {}
    for name, entry in sorted(configs.items()):
        if entry.source not in sources or name in _OF_A_MOVE:
            continue
        if entry.value is None:
            left_out.append(f"setting {name} of {where}: it is sensitive")
        else:
            own[name] = entry.value
    return own


async def _offsets(admin: AdminClient) -> list[OffsetRecord]:
    by_broker = (await admin.list_groups()).raise_first()
    groups = sorted({group.group_id for groups in by_broker.values() for group in groups})
    found = (await admin.list_group_offsets(dict.fromkeys(groups))).raise_first() if groups else {}
    return [
        OffsetRecord(group, tp.topic, tp.partition, given.offset, given.metadata)
        for group, offsets in found.items()
        for tp, given in offsets.items()
        if given is not None
    ]


@dataclass(frozen=True, slots=True)
class LogRange:
    """The offsets that a partition of the target has."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Restore:
    """What a restore does; `notes`: what it leaves as it is, and why."""

    topics: tuple[TopicRecord, ...] = ()
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    acls: frozenset[AclBinding] = frozenset()
    quotas: Mapping[Entity, Mapping[str, float]] = field(default_factory=dict)
    offsets: frozenset[OffsetRecord] = frozenset()
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """What it does, a line for each."""
        return [
            *(f"topic {t.name}: {t.partitions} partitions of {t.replicas} replicas" for t in self.topics),
            *(
                f"setting {name}={value} of {f'broker {broker}' if broker else 'all brokers'}"
                for broker, values in sorted(self.settings.items())
                for name, value in sorted(values.items())
            ),
            *(f"ACL {text}" for text in sorted(map(_shown, self.acls))),
            *(
                f"quota {key}={value:g} of {_named(entity)}"
                for entity, values in sorted(self.quotas.items(), key=repr)
                for key, value in sorted(values.items())
            ),
            *(
                f"offset {each.offset} of group {each.group} in {each.topic}-{each.partition}"
                for each in sorted(self.offsets)
            ),
        ]


def _named(entity: Entity) -> str:
    return ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in entity)


def _shown(binding: AclBinding) -> str:
    pattern, entry = binding
    what = f"{pattern.resource_type.name.lower()} {pattern.pattern_type.name.lower()} {pattern.name}"
    whose = f"{entry.permission.name.lower()} {entry.principal} {entry.operation.label}"
    return f"{whose} on {what} from {entry.host}"


def plan_restore(
    backup: Backup,
    target: Backup,
    *,
    brokers: Iterable[int],
    logs: Mapping[tuple[str, int], LogRange],
    parts: Iterable[Part] = PARTS,
) -> Restore:
    """Plan the restoration of these parts. `target`: the metadata of the target; `brokers`: its brokers;
    `logs`: the offsets of its partitions. A partition that is still to be created is empty."""
    notes: list[str] = []
    wanted = set(parts)
    topics = []
    for name, topic in sorted(backup.topics.items()) if "topics" in wanted else ():
        existing = target.topics.get(name)
        if existing is None:
            topics.append(topic)
        elif existing != topic:
            notes.append(f"topic {name} exists and differs; it stays")
    known = {"", *map(str, brokers)}
    settings: dict[str, dict[str, str]] = {}
    for broker, values in sorted(backup.settings.items()) if "settings" in wanted else ():
        if broker not in known:
            notes.append(f"settings of broker {broker}: there is no such broker")
            continue
        for name, value in values.items():
            has = target.settings.get(broker, {}).get(name)
            if has is None:
                settings.setdefault(broker, {})[name] = value
            elif has != value:
                notes.append(
                    f"setting {name} of {broker or 'all brokers'} is {has} and not {value}; it stays"
                )
    quotas: dict[Entity, dict[str, float]] = {}
    for entity, limits in backup.quotas.items() if "quotas" in wanted else ():
        for key, limit in limits.items():
            current = target.quotas.get(entity, {}).get(key)
            if current is None:
                quotas.setdefault(entity, {})[key] = limit
            elif current != limit:
                notes.append(f"quota {key} of {dict(entity)} is {current:g} and not {limit:g}; it stays")
    offsets = frozenset(_restorable(backup, target, logs, notes)) if "offsets" in wanted else frozenset()
    missing = sorted(backup.users.keys() - target.users.keys()) if wanted == set(PARTS) else []
    notes += [f"user {user} has no password yet: set it, or create its User resource" for user in missing]
    return Restore(
        tuple(topics),
        settings,
        backup.acls - target.acls if "acls" in wanted else frozenset(),
        quotas,
        offsets,
        tuple(notes),
    )


def _restorable(
    backup: Backup, target: Backup, logs: Mapping[tuple[str, int], LogRange], notes: list[str]
) -> Iterable[OffsetRecord]:
    """The offsets that are not committed yet, and whose records are there."""
    committed = {(each.group, each.topic, each.partition): each.offset for each in target.offsets}
    without: dict[str, int] = {}
    for each in sorted(backup.offsets):
        if (each.group, each.topic, each.partition) in committed:
            if committed[each.group, each.topic, each.partition] != each.offset:
                notes.append(
                    f"group {each.group} has another offset in {each.topic}-{each.partition}; it stays"
                )
            continue
        log = logs.get((each.topic, each.partition), LogRange(0, 0))
        if log.start <= each.offset <= log.end:
            yield each
        else:
            without[each.group] = without.get(each.group, 0) + 1
    for group, count in without.items():
        notes.append(
            f"group {group}: the records of {count} offsets are not there; restore again with the data"
        )


async def observe_target(
    admin: AdminClient, backup: Backup, now_ms: int
) -> tuple[Backup, list[int], Mapping[tuple[str, int], LogRange]]:
    """The metadata of the target, its brokers, and the offsets of the partitions that `backup` names."""
    target = await take_backup(admin, now_ms)
    brokers = [node.id for node in (await admin.describe_cluster()).brokers]
    named = {TopicPartition(each.topic, each.partition) for each in backup.offsets}
    there = [
        tp for tp in named if tp.topic in target.topics and tp.partition < target.topics[tp.topic].partitions
    ]
    starts = await admin.list_offsets(dict.fromkeys(there, OffsetSpec.EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(there, OffsetSpec.LATEST))
    return target, brokers, {tp: LogRange(starts[tp].offset, ends[tp].offset) for tp in there}


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore has left as it is, and what has failed."""

    notes: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


async def restore(admin: AdminClient, backup: Backup, now_ms: int) -> Restored:
    """Restore what the backup has and the cluster has not. Raises ClientError."""
    target, brokers, logs = await observe_target(admin, backup, now_ms)
    plan = plan_restore(backup, target, brokers=brokers, logs=logs)
    return Restored(plan.notes, tuple(await execute_restore(admin, plan)))


async def execute_restore(admin: AdminClient, restore: Restore) -> list[str]:
    """Execute it. Returns what has failed and why."""
    failed: list[str] = []

    def note(what: str, errors: Mapping[Any, ClientError]) -> None:
        failed.extend(f"{what} {key}: {error}" for key, error in errors.items())

    new = [NewTopic(t.name, t.partitions, t.replicas, dict(t.config)) for t in restore.topics]
    for begin in range(0, len(new), _TOPICS_PER_REQUEST):
        part = new[begin : begin + _TOPICS_PER_REQUEST]
        note("topic", (await admin.create_topics(part)).errors)
    for broker, values in restore.settings.items():
        resource = ConfigResource(ConfigType.BROKER, broker)
        changes = [ConfigChange(name, value) for name, value in values.items()]
        note("settings of", (await admin.incremental_alter_configs({resource: changes})).errors)
    if restore.acls:
        note("ACL", (await admin.create_acls(restore.acls)).errors)
    if restore.quotas:
        quotas = {QuotaEntity(dict(entity)): values for entity, values in restore.quotas.items()}
        note("quotas of", (await admin.alter_client_quotas(quotas)).errors)
    by_group: dict[str, dict[TopicPartition, int | OffsetToCommit]] = {}
    for each in restore.offsets:
        # Without the leader epoch, which is another one in another cluster.
        given = OffsetToCommit(each.offset, each.metadata)
        by_group.setdefault(each.group, {})[TopicPartition(each.topic, each.partition)] = given
    for group, offsets in sorted(by_group.items()):
        note(f"offset of group {group} in", await _commit(admin, group, offsets))
    return failed


async def _commit(
    admin: AdminClient, group: str, offsets: Mapping[TopicPartition, int | OffsetToCommit]
) -> Mapping[TopicPartition, ClientError]:
    """Commit the offsets. The coordinator may not know a topic that was created just now."""
    errors: Mapping[TopicPartition, ClientError] = {}
    for _ in range(_COMMIT_ATTEMPTS):
        errors = (await admin.alter_group_offsets(group, offsets)).errors
        if not any(isinstance(error, UnknownTopicOrPartitionError) for error in errors.values()):
            break
        await asyncio.sleep(_COMMIT_PAUSE_S)
    return errors
