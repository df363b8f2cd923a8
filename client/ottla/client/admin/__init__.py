"""The admin client: what tools, the operator and users ask of a cluster, as coroutines.

    async with AdminClient(bootstrap_servers="127.0.0.1:9092") as admin:
        made = await admin.create_topics([NewTopic("orders", 12, 3), NewTopic("bills", 3, 3)])
        for name, error in made.errors.items():
            log.warning("%s: %s", name, error)

One module a family of requests. A call about many items returns `Results`: each item's result, or its
error. Calls about one thing return it, or raise. Errors are those of `ottla.client.errors`: Kafka's codes as
classes; `ClusterUnreachable` when no broker answers. Requests that concern several brokers go to all at a
time; what has moved is followed there until default.api.timeout.ms. Not for the data path.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from ottla.client.admin.acls import Acls
from ottla.client.admin.cluster import ClusterCalls
from ottla.client.admin.configs import Configs
from ottla.client.admin.fan_out import RetryPolicy
from ottla.client.admin.group_offsets import GroupOffsets
from ottla.client.admin.groups import Groups
from ottla.client.admin.log_dirs import LogDirs
from ottla.client.admin.logs import Logs
from ottla.client.admin.quotas import Quotas
from ottla.client.admin.replicas import Replicas
from ottla.client.admin.tokens import Tokens
from ottla.client.admin.topics import Topics
from ottla.client.admin.transactions import Transactions
from ottla.client.admin.users import Users
from ottla.client.admin_member_types import (
    ANY,
    DelegationToken,
    GroupDescription,
    GroupListing,
    GroupMember,
    MemberToRemove,
    ProducerIdAndEpoch,
    ProducerState,
    QuotaEntity,
    ScramDeletion,
    ScramUpsertion,
    TransactionDescription,
    TransactionListing,
)
from ottla.client.admin_types import (
    ApiVersions,
    ClusterDescription,
    ClusterFeatures,
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigSynonym,
    ConfigType,
    CreatedTopic,
    ElectionType,
    FeatureLevels,
    FeatureUpdate,
    ListedOffset,
    LogDirDescription,
    NewPartitions,
    NewTopic,
    Node,
    OffsetSpec,
    OffsetToCommit,
    PartitionDescription,
    Reassignment,
    ReplicaInfo,
    ReplicaLogDirs,
    Results,
    TopicDescription,
    TopicListing,
    TopicPartition,
    TopicPartitionReplica,
    UpgradeType,
)
from ottla.client.core.config import AdminConfig
from ottla.client.core.stats import Figures
from ottla.client.metrics import Metric, Reporting, of_client, of_requests
from ottla.client.node_connections import Buffers
from ottla.client.routing import Brokers, ClusterUnreachable
from ottla.security.acls import (
    AclBinding,
    AclFilter,
    Entry,
    EntryFilter,
    Operation,
    PatternFilter,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla.security.clients import ClientSecurity


class AdminClient(
    ClusterCalls,
    Topics,
    Configs,
    Replicas,
    Groups,
    GroupOffsets,
    Logs,
    LogDirs,
    Transactions,
    Quotas,
    Acls,
    Users,
    Tokens,
):
    """One client of one cluster; settings are Kafka's, as keywords or as a mapping of dotted keys: see
    `AdminConfig`. Not safe for use from several event loops."""

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        /,
        *,
        security: ClientSecurity | None = None,
        **keywords: object,
    ) -> None:
        """`security`: what was made already of security.protocol, ssl.* and sasl.*. Raises ConfigError."""
        self.config = AdminConfig.of(settings, **keywords)
        config = self.config
        self._brokers = Brokers(
            config.bootstrap_servers,
            client_id=config.client_id,
            timeout_s=min(config.request_timeout_ms, config.default_api_timeout_ms) / 1000,
            retry_pause_s=config.retry_backoff_ms / 1000,
            security=security or config.security(),
            buffers=Buffers(config.send_buffer_bytes, config.receive_buffer_bytes),
            window=config.window,
        )
        self._reporting = Reporting(
            config.client_id, config.metric_reporters, config.window.window_s, self.measurements
        )
        self._retry_policy = RetryPolicy(
            config.default_api_timeout_ms / 1000,
            config.retries,
            config.retry_backoff_ms,
            config.retry_backoff_max_ms,
            random.Random().uniform,
        )

    async def close(self) -> None:
        """Close the connections."""
        self._reporting.stop()
        await self._brokers.close()

    def metrics(self) -> Figures:
        """Figures of the whole client by Kafka's names: totals, and rates over metrics.num.samples ×
        metrics.sample.window.ms."""
        return of_client(self.measurements())

    def measurements(self) -> list[Metric]:
        """All figures, also those of each broker."""
        brokers = self._brokers
        return list(of_requests("admin-client", brokers.connections, brokers.stats, time.monotonic()))

    async def __aenter__(self) -> Self:
        """Brokers are looked for with the first call."""
        self._reporting.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


__all__ = [
    "ANY",
    "AclBinding",
    "AclFilter",
    "AdminClient",
    "ApiVersions",
    "ClusterDescription",
    "ClusterFeatures",
    "ClusterUnreachable",
    "ConfigChange",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigResource",
    "ConfigSynonym",
    "ConfigType",
    "CreatedTopic",
    "DelegationToken",
    "ElectionType",
    "Entry",
    "EntryFilter",
    "FeatureLevels",
    "FeatureUpdate",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "ListedOffset",
    "LogDirDescription",
    "MemberToRemove",
    "NewPartitions",
    "NewTopic",
    "Node",
    "OffsetSpec",
    "OffsetToCommit",
    "Operation",
    "PartitionDescription",
    "PatternFilter",
    "PatternType",
    "Permission",
    "ProducerIdAndEpoch",
    "ProducerState",
    "QuotaEntity",
    "Reassignment",
    "ReplicaInfo",
    "ReplicaLogDirs",
    "ResourcePattern",
    "ResourceType",
    "Results",
    "ScramDeletion",
    "ScramUpsertion",
    "TopicDescription",
    "TopicListing",
    "TopicPartition",
    "TopicPartitionReplica",
    "TransactionDescription",
    "TransactionListing",
    "UpgradeType",
]
