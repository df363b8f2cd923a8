"""Topics on the target: created with the source's partitions and settings, and updated when these change.

Called by the job on the driver before each batch, so that every partition of the batch exists on the
target. `plan`, a pure function of both clusters' topics, decides what to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from ottla_pipeline.errors import JobStartError
from ottla_pipeline.mirroring.target import MirroredTopic, ReplicationPolicy
from ottla_pipeline.mirroring.translation import Lineage

REQUEST_S: Final = 60.0
NOT_COPIED: Final = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.difference.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
        "message.timestamp.type",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)
"""Settings that belong to the topic's cluster. Timestamps are those of the records: see ALWAYS."""
ALWAYS: Final = {"message.timestamp.type": "CreateTime"}
"""With LogAppendTime the target would replace the source's timestamps."""
MESSAGE_BYTES_MAX: Final = "max.message.bytes"
MESSAGE_BYTES_DEFAULT: Final = 1_048_588


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of a cluster; `configs` are those that are set on the topic itself."""

    id: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    message_bytes_max: int = MESSAGE_BYTES_DEFAULT


@dataclass(slots=True)
class Plan:
    """Changes of the target's topics, by their names."""

    create: dict[str, Topic] = field(default_factory=dict)
    grow: dict[str, int] = field(default_factory=dict)
    configure: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """A setting that is None is reset to the cluster's default."""

    @property
    def empty(self) -> bool:
        return not (self.create or self.grow or self.configure)


def copied(configs: Mapping[str, str], not_copied: Iterable[str] = ()) -> dict[str, str]:
    """The source's settings that the target should have."""
    left_out = NOT_COPIED.union(not_copied)
    return {name: value for name, value in configs.items() if name not in left_out} | ALWAYS


def plan(
    source: Mapping[str, Topic],
    target: Mapping[str, Topic],
    naming: ReplicationPolicy,
    *,
    not_copied: Iterable[str] = (),
    sync_configs: bool = True,
) -> Plan:
    """The changes that make the target's topics like the source's. Partitions are never removed: Kafka
    cannot."""
    result = Plan()
    left_alone = NOT_COPIED.union(not_copied) - ALWAYS.keys()
    for name, topic in source.items():
        there = naming.target_topic(name)
        wanted = copied(topic.configs, not_copied)
        found = target.get(there)
        if found is None:
            result.create[there] = Topic("", topic.partitions, wanted)
            continue
        if found.partitions < topic.partitions:
            result.grow[there] = topic.partitions
        if sync_configs:
            changed: dict[str, str | None] = {
                key: value for key, value in wanted.items() if found.configs.get(key) != value
            }
            gone = found.configs.keys() - wanted.keys() - left_alone
            if changed or gone:
                result.configure[there] = changed | dict.fromkeys(sorted(gone))
    return result


class TopicSync:
    """Keeps the target's topics like the source's. `mirrored` are the mirrored topics, by source name."""

    def __init__(
        self,
        source: Mapping[str, str],
        target: Mapping[str, str],
        naming: ReplicationPolicy,
        wanted: Callable[[str], bool],
        *,
        replication_factor: int = -1,
        not_copied: Iterable[str] = (),
        sync_configs: bool = True,
        interval_s: float = 60.0,
        echo: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._source = AdminClient(dict(source))
        self._target = AdminClient(dict(target))
        self._naming = naming
        self._wanted = wanted
        self._replication_factor = replication_factor
        self._not_copied = frozenset(not_copied)
        self._sync_configs = sync_configs
        self._interval_s = interval_s
        self._echo = echo
        self._partition_counts: dict[str, int] = {}
        self._refreshed_at = float("-inf")
        self.mirrored: dict[str, MirroredTopic] = {}

    def close(self) -> None:
        """Closes the connections; nothing may be called after this."""
        del self._source, self._target

    def refresh(self, now_s: float | None = None) -> Mapping[str, MirroredTopic]:
        """The mirrored topics, after creation and growth on the target. Lists the source's topics each
        time, and describes them if these have changed, or after the interval."""
        now_s = time.monotonic() if now_s is None else now_s
        counts = self._listed()
        if counts != self._partition_counts or now_s - self._refreshed_at >= self._interval_s:
            self.mirrored = self._synchronize(list(counts))
            self._partition_counts, self._refreshed_at = counts, now_s
        return self.mirrored

    def ensure(self, topic: str, configs: Mapping[str, str]) -> None:
        """Creates a topic of one partition on the target unless it exists."""
        if topic not in self._target.list_topics(timeout=REQUEST_S).topics:
            self._create({topic: Topic("", 1, configs)})

    def _listed(self) -> dict[str, int]:
        found = self._source.list_topics(timeout=REQUEST_S).topics
        return {
            name: len(topic.partitions)
            for name, topic in sorted(found.items())
            if topic.error is None and topic.partitions and self._wanted(name)
        }

    def _synchronize(self, names: list[str]) -> dict[str, MirroredTopic]:
        naming = self._naming
        there = [naming.target_topic(name) for name in names]
        source = describe_topics(self._source, names)
        target = describe_topics(self._target, there)
        todo = plan(source, target, naming, not_copied=self._not_copied, sync_configs=self._sync_configs)
        if not todo.empty:
            self._apply(todo)
            target = describe_topics(self._target, there)
        clusters = [admin.list_topics(timeout=REQUEST_S).cluster_id for admin in (self._source, self._target)]
        mirrored: dict[str, MirroredTopic] = {}
        for name, topic in source.items():
            here = target[naming.target_topic(name)]
            lineage = Lineage(f"{clusters[0]}/{topic.id}", f"{clusters[1]}/{here.id}")
            mirrored[name] = MirroredTopic(name, naming.target_topic(name), lineage, here.message_bytes_max)
        return mirrored

    def _apply(self, todo: Plan) -> None:
        self._create(todo.create)
        if todo.grow:
            grown = self._target.create_partitions(
                [NewPartitions(name, total) for name, total in todo.grow.items()], operation_timeout=REQUEST_S
            )
            for name, future in grown.items():
                _await_result(
                    future, f"topic {name} to {todo.grow[name]} partitions on {self._naming.target}"
                )
                self._echo(f"increased {name} to {todo.grow[name]} partitions")
        for name, changes in todo.configure.items():
            entries = [
                ConfigEntry(
                    key,
                    value or "",
                    incremental_operation=AlterConfigOpType.DELETE
                    if value is None
                    else AlterConfigOpType.SET,
                )
                for key, value in changes.items()
            ]
            resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
            for future in self._target.incremental_alter_configs([resource]).values():
                _await_result(future, f"settings of topic {name} on {self._naming.target}")
            self._echo(f"set {', '.join(changes)} of {name}")

    def _create(self, topics: Mapping[str, Topic]) -> None:
        if not topics:
            return
        new = [
            NewTopic(name, topic.partitions, self._replication_factor, config=dict(topic.configs))
            for name, topic in topics.items()
        ]
        for name, future in self._target.create_topics(new, operation_timeout=REQUEST_S).items():
            _await_result(future, f"topic {name} on {self._naming.target}")
            self._echo(f"created {name} with {topics[name].partitions} partitions")


class TopicSyncFailed(JobStartError):
    """A topic of the target could not be created or changed; the message has its name and the broker's
    error."""


def _await_result(future: object, what: str) -> None:
    try:
        future.result(REQUEST_S)  # type: ignore[attr-defined]
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise TopicSyncFailed(f"{what}: {error.args[0].str()}") from None


def describe_topics(admin: AdminClient, names: list[str]) -> dict[str, Topic]:
    """Descriptions of those topics that exist."""
    if not names:
        return {}
    found = {}
    for name, future in admin.describe_topics(TopicCollection(names), request_timeout=REQUEST_S).items():
        try:
            found[name] = future.result(REQUEST_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in found]
    configs = admin.describe_configs(resources, request_timeout=REQUEST_S) if resources else {}
    result: dict[str, Topic] = {}
    for resource, future in configs.items():
        entries = future.result(REQUEST_S)
        own = {
            key: entry.value
            for key, entry in entries.items()
            if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value and entry.value is not None
        }
        topic = found[resource.name]
        largest = entries.get(MESSAGE_BYTES_MAX)
        result[resource.name] = Topic(
            str(topic.topic_id),
            len(topic.partitions),
            own,
            int(largest.value) if largest is not None else MESSAGE_BYTES_DEFAULT,
        )
    return result
