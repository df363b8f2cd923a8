"""The admin client: administrative requests to a cluster, as coroutines, for users, tools and the operator.

    async with AdminClient(bootstrap_servers="127.0.0.1:9092") as admin:
        made = await admin.create_topics([NewTopic("orders", 12, 3), NewTopic("bills", 3, 3)])
        for name, error in made.errors.items():
            log.warning("%s: %s", name, error)

Each module of this package has the functions of one API family; they take the client's `AdminNetwork` as
their first argument, and `AdminClient` binds them as methods. A call about many items returns `Results`: each
item's result, or its error. A call about one item returns its result, or raises. Errors are those of
`ottla.client.errors`: Kafka's codes as classes; `ClusterUnreachable` when no broker responds. Requests to
several brokers are sent concurrently. An item whose leader or coordinator has moved is retried on the new
broker until default.api.timeout.ms. Not for the data path.
"""

# ruff: noqa: F403, F405

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from ottla.client.admin import (
    acls,
    cluster,
    committed_offsets,
    configs,
    groups,
    log_dirs,
    logs,
    quotas,
    replicas,
    tokens,
    topics,
    transactions,
    users,
)
from ottla.client.admin.fan_out import RetryPolicy
from ottla.client.admin.network import AdminNetwork
from ottla.client.admin_types import *
from ottla.client.core.config import AdminConfig
from ottla.client.core.stats import MetricValues
from ottla.client.metrics import Metric, Reporting, of_client, of_requests
from ottla.client.node_connections import Buffers
from ottla.client.routing import Brokers, ClusterUnreachable
from ottla.environment import environment
from ottla.security.acls import *
from ottla.security.clients import ClientSecurity

P = ParamSpec("P")
T = TypeVar("T")


def _method(
    function: Callable[Concatenate[AdminNetwork, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[AdminClient, P], Coroutine[Any, Any, T]]:
    """A function of an API family as a coroutine method of `AdminClient`."""

    async def method(self: AdminClient, /, *arguments: P.args, **keywords: P.kwargs) -> T:
        return await function(self._network, *arguments, **keywords)

    found = inspect.signature(function)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    _, *others = found.parameters.values()
    vars(method)["__signature__"] = found.replace(parameters=[own, *others])
    method.__name__ = function.__name__
    method.__qualname__ = f"AdminClient.{function.__name__}"
    method.__doc__ = function.__doc__
    return method


class AdminClient:
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
        """`security`: used instead of security.protocol, ssl.* and sasl.*. Raises ConfigError."""
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
        retry_policy = RetryPolicy(
            config.default_api_timeout_ms / 1000,
            config.retries,
            config.retry_backoff_ms,
            config.retry_backoff_max_ms,
            environment.get().random.uniform,
        )
        self._network = AdminNetwork(self._brokers, retry_policy)

    async def close(self) -> None:
        """Close the connections."""
        self._reporting.stop()
        await self._brokers.close()

    def metrics(self) -> MetricValues:
        """Metrics of the whole client by Kafka's names: totals, and rates over metrics.num.samples ×
        metrics.sample.window.ms."""
        return of_client(self.measurements())

    def measurements(self) -> list[Metric]:
        """All metrics, those of each broker included."""
        brokers = self._brokers
        return list(of_requests("admin-client", brokers.connections, brokers.stats, brokers.now()))

    async def __aenter__(self) -> Self:
        """Start the metric reporters; the first call connects."""
        self._reporting.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- the cluster ---

    describe_cluster = _method(cluster.describe_cluster)
    describe_features = _method(cluster.describe_features)
    describe_api_versions = _method(cluster.describe_api_versions)
    update_features = _method(cluster.update_features)
    describe_metadata_quorum = _method(cluster.describe_metadata_quorum)
    unregister_broker = _method(cluster.unregister_broker)
    list_client_metrics_resources = _method(cluster.list_client_metrics_resources)
    add_raft_voter = _method(cluster.add_raft_voter)
    remove_raft_voter = _method(cluster.remove_raft_voter)

    # --- topics ---

    list_topics = _method(topics.list_topics)
    describe_topics = _method(topics.describe_topics)
    create_topics = _method(topics.create_topics)
    create_topic = _method(topics.create_topic)
    delete_topics = _method(topics.delete_topics)
    delete_topic = _method(topics.delete_topic)
    create_partitions = _method(topics.create_partitions)

    # --- settings ---

    describe_configs = _method(configs.describe_configs)
    incremental_alter_configs = _method(configs.incremental_alter_configs)
    alter_configs = _method(configs.alter_configs)
    describe_topic_configs = _method(configs.describe_topic_configs)
    describe_broker_configs = _method(configs.describe_broker_configs)
    alter_topic_config = _method(configs.alter_topic_config)
    alter_broker_config = _method(configs.alter_broker_config)

    # --- replicas and leaders ---

    alter_partition_reassignments = _method(replicas.alter_partition_reassignments)
    list_partition_reassignments = _method(replicas.list_partition_reassignments)
    elect_leaders = _method(replicas.elect_leaders)
    elect_preferred_leaders = _method(replicas.elect_preferred_leaders)

    # --- groups ---

    list_groups = _method(groups.list_groups)
    describe_groups = _method(groups.describe_groups)
    describe_group = _method(groups.describe_group)
    delete_groups = _method(groups.delete_groups)
    delete_group = _method(groups.delete_group)
    remove_group_members = _method(groups.remove_group_members)

    # --- committed offsets of groups ---

    list_group_offsets = _method(committed_offsets.list_group_offsets)
    group_offsets = _method(committed_offsets.group_offsets)
    zookeeper_group_offsets = _method(committed_offsets.zookeeper_group_offsets)
    alter_group_offsets = _method(committed_offsets.alter_group_offsets)
    delete_group_offsets = _method(committed_offsets.delete_group_offsets)

    # --- logs ---

    list_offsets = _method(logs.list_offsets)
    delete_records = _method(logs.delete_records)
    end_offsets = _method(logs.end_offsets)
    start_offsets = _method(logs.start_offsets)
    offsets_for_time = _method(logs.offsets_for_time)

    # --- log directories ---

    describe_log_dirs = _method(log_dirs.describe_log_dirs)
    describe_replica_log_dirs = _method(log_dirs.describe_replica_log_dirs)
    alter_replica_log_dirs = _method(log_dirs.alter_replica_log_dirs)

    # --- transactions ---

    describe_producers = _method(transactions.describe_producers)
    describe_transactions = _method(transactions.describe_transactions)
    list_transactions = _method(transactions.list_transactions)
    abort_transaction = _method(transactions.abort_transaction)
    fence_producers = _method(transactions.fence_producers)

    # --- quotas ---

    describe_client_quotas = _method(quotas.describe_client_quotas)
    alter_client_quotas = _method(quotas.alter_client_quotas)
    alter_client_quota = _method(quotas.alter_client_quota)

    # --- ACLs ---

    describe_acls = _method(acls.describe_acls)
    create_acls = _method(acls.create_acls)
    delete_acls = _method(acls.delete_acls)

    # --- SCRAM credentials ---

    describe_user_scram_credentials = _method(users.describe_user_scram_credentials)
    alter_user_scram_credentials = _method(users.alter_user_scram_credentials)
    set_scram_credential = _method(users.set_scram_credential)
    delete_scram_credentials = _method(users.delete_scram_credentials)

    # --- delegation tokens ---

    create_delegation_token = _method(tokens.create_delegation_token)
    renew_delegation_token = _method(tokens.renew_delegation_token)
    expire_delegation_token = _method(tokens.expire_delegation_token)
    describe_delegation_tokens = _method(tokens.describe_delegation_tokens)


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
