"""The `Kafka` interface over the admin client, `ottla.client.admin`.

Called by `reconcile` and `step_executor`, on every platform. Invariants: partitions are described by the
controller, whose metadata changes first; an error of the client becomes `StepFailed` or an unreachable
`KafkaState`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ottla.client.admin import AdminClient
from ottla.client.admin_types import (
    ConfigEntry,
    LogDirDescription,
    NewPartitions,
    Node,
    Reassignment,
    TopicDescription,
    TopicPartition,
)
from ottla.client.errors import (
    NetworkError,
    NoReassignmentInProgressError,
    ReplicaNotAvailableError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from ottla.client.routing import ClusterUnreachable
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.acls import AclBinding, AclFilter, EntryFilter, PatternFilter
from ottla.security.clients import ClientSecurity
from ottla.wire.connection import ConnectionLost, UnsupportedApi
from ottla_operator.backup.cluster import Restored, restore, take_backup
from ottla_operator.backup.document import Backup
from ottla_operator.planning import steps
from ottla_operator.planning.listener_security import SCRAM_MECHANISM
from ottla_operator.planning.observed import (
    AccessState,
    BrokerDisks,
    GroupQuery,
    GroupState,
    KafkaState,
    LogDir,
    PartitionKey,
    PartitionState,
    Positions,
    QuotaEntity,
    TopicState,
)
from ottla_operator.platform.interfaces import Address, StepFailed

log = logging.getLogger(__name__)

_UNREACHABLE = (ClusterUnreachable, NetworkError, ConnectionLost, OSError, TimeoutError)
_TOPIC_SOURCE = 1
_QUOTA_TYPES = ("user", "client-id")
_DEFAULT = "<default>"
_OFFSETS_TOPIC = "__consumer_offsets"
_TIMEOUT_S = 8.0
_OBSERVE_TIMEOUT_S = 5.0
_GROUP_TIMEOUT_S = 3.0


NewClient = Callable[[Sequence[Address], ClientSecurity | None], AdminClient]
"""Returns an admin client for bootstrap servers; it connects with its first request."""


def new_admin_client(brokers: Sequence[Address], security: ClientSecurity | None) -> AdminClient:
    """The operator's admin client for these brokers."""
    return AdminClient(
        bootstrap_servers=list(brokers),
        client_id="ottla-operator",
        default_api_timeout_ms=int(_TIMEOUT_S * 1000),
        security=security,
    )


class KafkaAdmin:
    """The admin client for the brokers of the last observation, and one for each controller."""

    def __init__(
        self, properties: Callable[[], Mapping[str, str]] = dict, new_client: NewClient = new_admin_client
    ) -> None:
        """`properties`: returns the client properties for security, called in every observation. When they
        change, as with a renewed certificate, the client connects again."""
        self._properties = properties
        self._new_client = new_client
        self._connection_properties: Mapping[str, str] = {}
        self._security: ClientSecurity | None = None
        self._brokers: tuple[Address, ...] = ()
        self._admin: AdminClient | None = None
        self._controllers: dict[Address, AdminClient] = {}

    async def close(self) -> None:
        """Close all clients; the next observation opens new ones."""
        for admin in (self._admin, *self._controllers.values()):
            if admin is not None:
                await admin.close()
        self._admin = None
        self._controllers.clear()

    async def _client(self, brokers: Sequence[Address]) -> AdminClient:
        """Raises ValueError for invalid properties."""
        properties = self._properties()
        if properties != self._connection_properties:
            await self.close()
            self._security = ClientSecurity.of_properties(properties) if properties else None
            self._connection_properties = properties
        if self._admin is None or tuple(brokers) != self._brokers:
            await self.close()
            self._brokers = tuple(brokers)
            self._admin = self._new_client(brokers, self._security)
        return self._admin

    async def take_backup(self, now_ms: int) -> Backup:
        """The metadata of the cluster that was observed last. Raises ClientError and StepFailed."""
        if self._admin is None:
            raise StepFailed("Unreachable", "no broker is running")
        return await take_backup(self._admin, now_ms)

    async def restore(self, backup: Backup, now_ms: int) -> Restored:
        """Restore a backup into the cluster that was observed last. Raises ClientError and StepFailed."""
        if self._admin is None:
            raise StepFailed("Unreachable", "no broker is running")
        return await restore(self._admin, backup, now_ms)

    async def observe(
        self,
        brokers: Sequence[Address],
        groups: Mapping[str, GroupQuery],
        *,
        access: bool = False,
        log_dirs: bool = False,
    ) -> KafkaState:
        if not brokers:
            return KafkaState(problem="no broker is running")
        try:
            admin = await self._client(brokers)
        except ValueError as error:
            return KafkaState(problem=f"the operator's own certificate: {error}")
        try:
            async with asyncio.timeout(_OBSERVE_TIMEOUT_S):
                cluster = await admin.describe_cluster()
        except (KafkaError, UnsupportedApi, *_UNREACHABLE) as error:
            return KafkaState(problem=_reason(error))
        registered = frozenset(node.id for node in cluster.brokers)
        without = KafkaState(
            True, cluster.cluster_id or "", -1, registered, problem="the cluster has no elected controller"
        )
        node = next((node for node in cluster.brokers if node.id == cluster.controller_id), None)
        if node is None:
            return without
        try:
            async with asyncio.timeout(_OBSERVE_TIMEOUT_S):
                seen = await self._observe_controller(node)
        except (KafkaError, UnsupportedApi, *_UNREACHABLE) as error:
            # Brokers still name it as the controller, but it may have stopped: another one is elected soon.
            return replace(without, problem=f"the controller, broker {node.id}: {_reason(error)}")
        if seen is None:
            return without
        quotas = await self._quotas(admin)
        found = {}
        for group, query in sorted(groups.items()):
            if query.in_zookeeper:
                found[group] = await self._zookeeper_group(admin, group, seen.topics)
                continue
            state = await self._group(admin, group, seen.topics)
            found[group] = replace(state, positions=await self._positions(admin, query, seen.topics))
        seen_access = await self._access(admin) if access else None
        dirs = await self._log_dirs(admin) if log_dirs else {}
        return replace(seen, groups=found, quotas=quotas, access=seen_access, log_dirs=dirs)

    async def _observe_controller(self, node: Node) -> KafkaState | None:
        """The cluster as described by this broker; None when it is not the controller."""
        address = (node.host, node.port)
        controller = self._controllers.get(address)
        if controller is None:
            controller = self._controllers[address] = self._new_client([address], self._security)
        described = await controller.describe_cluster()
        if described.controller_id != node.id:
            return None
        # Reassignments first: one that the controller does not list has ended in its metadata, too, so that a
        # replica that is being removed is never taken for one that stays.
        moves = await controller.list_partition_reassignments()
        topics = await controller.describe_topics()
        configs = await controller.describe_topic_configs(topics)
        settings = await controller.describe_broker_configs(None)
        return KafkaState(
            reachable=True,
            cluster_id=described.cluster_id or "",
            controller_id=node.id,
            brokers=frozenset(broker.id for broker in described.brokers),
            topics={
                name: _topic_state(topic, configs.get(name, {}), moves) for name, topic in topics.items()
            },
            settings={name: entry.value for name, entry in settings.items()},
        )

    async def _quotas(self, admin: AdminClient) -> dict[QuotaEntity, dict[str, float]] | None:
        try:
            async with asyncio.timeout(_OBSERVE_TIMEOUT_S):
                described = (await admin.describe_client_quotas()).items()
        except (KafkaError, UnsupportedApi, *_UNREACHABLE) as error:
            log.debug("the quotas could not be read: %s", _reason(error))
            return None
        quotas = {}
        for entity, limits in described:
            if set(entity) <= set(_QUOTA_TYPES):
                user, client = (
                    _DEFAULT if type_ in entity and entity[type_] is None else entity.get(type_)
                    for type_ in _QUOTA_TYPES
                )
                quotas[user, client] = limits
        return quotas

    async def _access(self, admin: AdminClient) -> AccessState | None:
        try:
            async with asyncio.timeout(_OBSERVE_TIMEOUT_S):
                return await _observe_access(admin)
        except (KafkaError, UnsupportedApi, *_UNREACHABLE) as error:
            log.warning("credentials and ACLs could not be read: %s", _reason(error))
            return None

    async def _group(self, admin: AdminClient, group: str, topics: Mapping[str, TopicState]) -> GroupState:
        # FindCoordinator would create the offsets topic; an observation must not.
        if _OFFSETS_TOPIC not in topics:
            return GroupState(group, "Dead", lags={}, offsets={})
        try:
            async with asyncio.timeout(_GROUP_TIMEOUT_S):
                found = await admin.describe_group(group)
                committed = await admin.group_offsets(group)
                ends = await admin.end_offsets(committed)
        except (KafkaError, UnsupportedApi, *_UNREACHABLE):
            return GroupState(group, "Unknown")
        lags, offsets = _lags(committed, ends)
        return GroupState(group, found.state, len(found.members), found.coordinator.id, lags, offsets)

    async def _zookeeper_group(
        self, admin: AdminClient, group: str, topics: Mapping[str, TopicState]
    ) -> GroupState:
        """A group of 0.8 consumers: its offsets are in ZooKeeper, and its members are not known to
        brokers."""
        partitions = [TopicPartition(*each.key) for topic in topics.values() for each in topic.partitions]
        try:
            async with asyncio.timeout(_GROUP_TIMEOUT_S):
                committed = await admin.zookeeper_group_offsets(group, partitions)
                ends = await admin.end_offsets(committed)
        except (KafkaError, UnsupportedApi, *_UNREACHABLE):
            return GroupState(group, "Unknown")
        lags, offsets = _lags(committed, ends)
        return GroupState(group, "Unknown" if committed else "Dead", lags=lags, offsets=offsets)

    async def _positions(
        self, admin: AdminClient, query: GroupQuery, topics: Mapping[str, TopicState]
    ) -> Positions | None:
        """The offsets for a GroupQuery; None without topics, or when they could not be read."""
        if not query.topics:
            return None
        partitions = [
            TopicPartition(*partition.key)
            for topic in query.topics
            if topic in topics
            for partition in topics[topic].partitions
        ]
        try:
            async with asyncio.timeout(_GROUP_TIMEOUT_S):
                starts = await admin.start_offsets(partitions)
                ends = await admin.end_offsets(partitions)
                at_time = {}
                if query.timestamp_ms is not None:
                    at_time = await admin.offsets_for_time(partitions, query.timestamp_ms)
        except (KafkaError, UnsupportedApi, *_UNREACHABLE) as error:
            log.debug("offsets could not be read: %s", _reason(error))
            return None
        if len(ends) < len(partitions) or len(starts) < len(partitions):
            # A partition has no leader. A reset covers all partitions of a topic or none.
            return None
        return Positions(
            *({(tp.topic, tp.partition): at for tp, at in m.items()} for m in (starts, ends, at_time))
        )

    async def _log_dirs(self, admin: AdminClient) -> dict[int, tuple[LogDir, ...]]:
        """The log directories of the brokers that answer."""
        try:
            async with asyncio.timeout(_OBSERVE_TIMEOUT_S):
                described = await admin.describe_log_dirs()
        except (KafkaError, UnsupportedApi, *_UNREACHABLE) as error:
            log.debug("the log directories could not be read: %s", _reason(error))
            return {}
        return {broker: tuple(map(_log_dir, dirs)) for broker, dirs in described.items()}

    async def log_dirs(self) -> BrokerDisks:
        """The sizes of all replicas, and of the log directories. Raises StepFailed."""
        admin = self._admin
        if admin is None:
            raise StepFailed("Unreachable", "no broker is running")
        try:
            async with asyncio.timeout(_OBSERVE_TIMEOUT_S):
                described = (await admin.describe_log_dirs()).raise_first()
        except (KafkaError, UnsupportedApi, *_UNREACHABLE) as error:
            raise StepFailed("KafkaError", f"the log directories: {_reason(error)}") from None
        sizes: dict[PartitionKey, int] = {}
        disks: dict[int, int] = {}
        for broker, dirs in described.items():
            for directory in dirs:
                for partition, replica in directory.replicas.items():
                    key = (partition.topic, partition.partition)
                    sizes[key] = max(sizes.get(key, 0), replica.size)
            # A file system with several log directories counts once for each.
            totals = [directory.total_bytes for directory in dirs]
            if totals and all(total is not None and total > 0 for total in totals):
                disks[broker] = sum(totals)
        return BrokerDisks(sizes, disks)

    async def execute(self, step: steps.KafkaStep) -> None:
        admin = self._admin
        if admin is None:
            raise StepFailed("Unreachable", "no broker is running")
        try:
            await _execute(admin, step)
        except (UnsupportedVersionError, UnsupportedApi) as error:
            raise StepFailed("NotSupported", f"{step}: {error}") from None
        except _UNREACHABLE as error:
            raise StepFailed("Unreachable", f"{step}: {_reason(error)}") from None
        except KafkaError as error:
            raise StepFailed("KafkaError", f"{step}: {error}") from None


def _log_dir(directory: LogDirDescription) -> LogDir:
    replicas = directory.replicas.items()
    return LogDir(
        directory.path,
        {(key.topic, key.partition): each.size for key, each in replicas if not each.is_future},
        {(key.topic, key.partition): each.size for key, each in replicas if each.is_future},
        failed=directory.error is not None,
        total=directory.total_bytes if directory.total_bytes >= 0 else None,
        usable=directory.usable_bytes if directory.usable_bytes >= 0 else None,
    )


def _lags(
    committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> tuple[dict[str, int], dict[tuple[str, int], int]]:
    """(lag by topic, committed offsets)."""
    lags: dict[str, int] = {}
    for partition, offset in committed.items():
        lag = max(0, ends.get(partition, offset) - offset)
        lags[partition.topic] = lags.get(partition.topic, 0) + lag
    return lags, {(partition.topic, partition.partition): at for partition, at in committed.items()}


def _reason(error: BaseException) -> str:
    """The error's message; a TimeoutError has none of its own."""
    return str(error) or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)


def _topic_state(
    topic: TopicDescription,
    config: dict[str, ConfigEntry],
    moves: dict[TopicPartition, Reassignment],
) -> TopicState:
    partitions = []
    for partition in topic.partitions:
        move = moves.get(TopicPartition(topic.name, partition.partition))
        partitions.append(
            PartitionState(
                topic=topic.name,
                partition=partition.partition,
                leader=partition.leader,
                replicas=move.replicas if move else partition.replicas,
                isr=partition.isr,
                adding=move.adding if move else (),
                removing=move.removing if move else (),
            )
        )
    min_isr = config.get("min.insync.replicas")
    own = {
        name: entry.value
        for name, entry in config.items()
        if entry.source == _TOPIC_SOURCE and entry.value is not None
    }
    return TopicState(
        name=topic.name,
        topic_id=str(topic.topic_id),
        partitions=tuple(partitions),
        config=own,
        min_isr=int(min_isr.value) if min_isr and min_isr.value else 1,
        internal=topic.internal,
    )


async def _execute(admin: AdminClient, step: steps.KafkaStep) -> None:
    match step:
        case steps.CreateTopic():
            await _create_topic(admin, step)
        case steps.AlterTopicConfig():
            await admin.alter_topic_config(step.topic, set_values=step.set_, delete=step.delete)
        case steps.AlterBrokerSettings():
            await admin.alter_broker_config(None, set_values=step.set_, delete=step.delete)
        case steps.ResetOffsets():
            offsets = {TopicPartition(*key): offset for key, offset in step.offsets.items()}
            (await admin.alter_group_offsets(step.group, offsets, live=step.live)).raise_first()
        case steps.AlterQuota():
            await _alter_quota(admin, step)
        case steps.CreatePartitions():
            await _create_partitions(admin, step)
        case steps.DeleteTopic():
            await _ignoring(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, admin.delete_topic(step.topic))
        case steps.DeleteGroup():
            await _ignoring(ErrorCode.GROUP_ID_NOT_FOUND, admin.delete_group(step.group))
        case (
            steps.SetScramCredential()
            | steps.DeleteScramCredential()
            | steps.CreateAcls()
            | steps.DeleteAcls()
        ):
            await _execute_access_step(admin, step)
        case steps.Reassign():
            await _reassign(admin, step)
        case steps.CancelReassign():
            await _cancel(admin, step)
        case steps.MoveReplicas():
            await _move(admin, step)
        case steps.ElectPreferredLeaders():
            await admin.elect_preferred_leaders([TopicPartition(*key) for key in step.partitions])
        case _:
            raise StepFailed("NotSupported", f"{step}: not supported")


async def _create_topic(admin: AdminClient, step: steps.CreateTopic) -> None:
    if step.assignment is None:
        creating = admin.create_topic(
            step.topic, partitions=step.partitions, replication_factor=step.replicas, config=step.config
        )
    else:
        creating = admin.create_topic(step.topic, config=step.config, assignment=step.assignment)
    await _ignoring(ErrorCode.TOPIC_ALREADY_EXISTS, creating)


async def _alter_quota(admin: AdminClient, step: steps.AlterQuota) -> None:
    named = zip(_QUOTA_TYPES, step.entity, strict=True)
    entity = {type_: None if name == _DEFAULT else name for type_, name in named if name is not None}
    await admin.alter_client_quota(entity, {**step.set_, **dict.fromkeys(step.delete)})


async def _create_partitions(admin: AdminClient, step: steps.CreatePartitions) -> None:
    grown = NewPartitions(step.total, step.assignment)
    (await admin.create_partitions({step.topic: grown})).raise_first()


async def _reassign(admin: AdminClient, step: steps.Reassign) -> None:
    targets = {TopicPartition(*key): replicas for key, replicas in step.assignment.items()}
    refused = (await admin.alter_partition_reassignments(targets)).errors
    if refused:
        partition, error = next(iter(refused.items()))
        raise StepFailed("KafkaError", f"{step}: {partition.topic}-{partition.partition}: {error}")


async def _cancel(admin: AdminClient, step: steps.CancelReassign) -> None:
    targets = dict.fromkeys((TopicPartition(*key) for key in step.partitions), None)
    refused = (await admin.alter_partition_reassignments(targets)).errors
    for partition, error in refused.items():
        # It has ended, or its topic is gone.
        if not isinstance(error, (NoReassignmentInProgressError, UnknownTopicOrPartitionError)):
            raise StepFailed("KafkaError", f"{step}: {partition.topic}-{partition.partition}: {error}")


async def _move(admin: AdminClient, step: steps.MoveReplicas) -> None:
    moves = {(*key, step.broker): path for key, path in step.log_dirs.items()}
    for replica, error in (await admin.alter_replica_log_dirs(moves)).errors.items():
        # The replica has left the broker, or its topic is gone.
        if not isinstance(error, (ReplicaNotAvailableError, UnknownTopicOrPartitionError)):
            raise StepFailed("KafkaError", f"{step}: {replica.topic}-{replica.partition}: {error}")


async def _ignoring(code: ErrorCode, call: Coroutine[Any, Any, object]) -> None:
    """Await the call. An error with `code` means that the change exists already, and is ignored."""
    try:
        await call
    except KafkaError as error:
        if error.code != code:
            raise


# ---- credentials and ACLs of Users


async def _observe_access(admin: AdminClient) -> AccessState:
    """Raises KafkaError, UnsupportedApi and what an unreachable cluster raises."""
    scram = dict(await admin.describe_user_scram_credentials())
    try:
        bindings = await admin.describe_acls()
    except KafkaError as error:
        if error.code != ErrorCode.SECURITY_DISABLED:
            raise
        return AccessState(scram, None)
    acls: dict[str, set[AclBinding]] = {}
    for binding in bindings:
        acls.setdefault(binding.entry.principal, set()).add(binding)
    return AccessState(scram, {principal: frozenset(found) for principal, found in acls.items()})


async def _execute_access_step(admin: AdminClient, step: steps.AccessStep) -> None:
    match step:
        case steps.SetScramCredential():
            await admin.set_scram_credential(step.user, SCRAM_MECHANISM, step.password, step.iterations)
        case steps.DeleteScramCredential():
            try:
                await admin.delete_scram_credentials(step.user, [SCRAM_MECHANISM])
            except KafkaError as error:
                if error.code != ErrorCode.RESOURCE_NOT_FOUND:
                    raise
        case steps.CreateAcls():
            (await admin.create_acls(step.bindings)).raise_first()
        case steps.DeleteAcls():
            removed = await admin.delete_acls([_exactly(binding) for binding in step.bindings])
            for found in removed.raise_first().values():
                found.raise_first()


def _exactly(binding: AclBinding) -> AclFilter:
    return AclFilter(PatternFilter(*binding.pattern), EntryFilter(*binding.entry))
