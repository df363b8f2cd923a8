"""The admin client for code without an event loop; see `ottla.client.blocking`.

Invariant: it has every call of the asynchronous client, with the same arguments and results; a test compares.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla.client.admin import AdminClient as Asynchronous
from ottla.client.errors import IllegalStateError
from ottla.client.loop_thread import EventLoopThread, blocking
from ottla.security.clients import ClientSecurity

T = TypeVar("T")


class AdminClient:
    """The calls of `ottla.client.AdminClient`, each of which blocks until it is done. Thread-safe."""

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        /,
        *,
        security: ClientSecurity | None = None,
        **keywords: object,
    ) -> None:
        """Starts its thread. Raises ConfigError."""
        self._client = Asynchronous(settings, security=security, **keywords)
        self.config = self._client.config
        self._thread: EventLoopThread | None = EventLoopThread(f"admin {self.config.client_id}")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            work.close()
            raise IllegalStateError("the admin client is closed")
        return self._thread.run(work)

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        thread = self._thread
        if thread is not None:
            self._thread = None
            try:
                thread.run(self._client.close())
            finally:
                thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the cluster ---

    describe_cluster = blocking(Asynchronous.describe_cluster)
    describe_features = blocking(Asynchronous.describe_features)
    describe_api_versions = blocking(Asynchronous.describe_api_versions)
    update_features = blocking(Asynchronous.update_features)
    describe_metadata_quorum = blocking(Asynchronous.describe_metadata_quorum)
    unregister_broker = blocking(Asynchronous.unregister_broker)
    list_client_metrics_resources = blocking(Asynchronous.list_client_metrics_resources)
    add_raft_voter = blocking(Asynchronous.add_raft_voter)
    remove_raft_voter = blocking(Asynchronous.remove_raft_voter)

    # --- topics ---

    list_topics = blocking(Asynchronous.list_topics)
    describe_topics = blocking(Asynchronous.describe_topics)
    create_topics = blocking(Asynchronous.create_topics)
    create_topic = blocking(Asynchronous.create_topic)
    delete_topics = blocking(Asynchronous.delete_topics)
    delete_topic = blocking(Asynchronous.delete_topic)
    create_partitions = blocking(Asynchronous.create_partitions)

    # --- configs ---

    describe_configs = blocking(Asynchronous.describe_configs)
    incremental_alter_configs = blocking(Asynchronous.incremental_alter_configs)
    alter_configs = blocking(Asynchronous.alter_configs)
    describe_topic_configs = blocking(Asynchronous.describe_topic_configs)
    describe_broker_configs = blocking(Asynchronous.describe_broker_configs)
    alter_topic_config = blocking(Asynchronous.alter_topic_config)
    alter_broker_config = blocking(Asynchronous.alter_broker_config)

    # --- replicas and leaders ---

    alter_partition_reassignments = blocking(Asynchronous.alter_partition_reassignments)
    list_partition_reassignments = blocking(Asynchronous.list_partition_reassignments)
    elect_leaders = blocking(Asynchronous.elect_leaders)
    elect_preferred_leaders = blocking(Asynchronous.elect_preferred_leaders)

    # --- groups ---

    list_groups = blocking(Asynchronous.list_groups)
    describe_groups = blocking(Asynchronous.describe_groups)
    describe_group = blocking(Asynchronous.describe_group)
    delete_groups = blocking(Asynchronous.delete_groups)
    delete_group = blocking(Asynchronous.delete_group)
    remove_group_members = blocking(Asynchronous.remove_group_members)

    # --- committed offsets ---

    list_group_offsets = blocking(Asynchronous.list_group_offsets)
    group_offsets = blocking(Asynchronous.group_offsets)
    zookeeper_group_offsets = blocking(Asynchronous.zookeeper_group_offsets)
    alter_group_offsets = blocking(Asynchronous.alter_group_offsets)
    delete_group_offsets = blocking(Asynchronous.delete_group_offsets)

    # --- logs ---

    list_offsets = blocking(Asynchronous.list_offsets)
    delete_records = blocking(Asynchronous.delete_records)
    end_offsets = blocking(Asynchronous.end_offsets)
    start_offsets = blocking(Asynchronous.start_offsets)
    offsets_for_time = blocking(Asynchronous.offsets_for_time)

    # --- log directories ---

    describe_log_dirs = blocking(Asynchronous.describe_log_dirs)
    describe_replica_log_dirs = blocking(Asynchronous.describe_replica_log_dirs)
    alter_replica_log_dirs = blocking(Asynchronous.alter_replica_log_dirs)

    # --- transactions ---

    describe_producers = blocking(Asynchronous.describe_producers)
    describe_transactions = blocking(Asynchronous.describe_transactions)
    list_transactions = blocking(Asynchronous.list_transactions)
    abort_transaction = blocking(Asynchronous.abort_transaction)
    fence_producers = blocking(Asynchronous.fence_producers)

    # --- quotas ---

    describe_client_quotas = blocking(Asynchronous.describe_client_quotas)
    alter_client_quotas = blocking(Asynchronous.alter_client_quotas)
    alter_client_quota = blocking(Asynchronous.alter_client_quota)

    # --- ACLs ---

    describe_acls = blocking(Asynchronous.describe_acls)
    create_acls = blocking(Asynchronous.create_acls)
    delete_acls = blocking(Asynchronous.delete_acls)

    # --- credentials ---

    describe_user_scram_credentials = blocking(Asynchronous.describe_user_scram_credentials)
    alter_user_scram_credentials = blocking(Asynchronous.alter_user_scram_credentials)
    set_scram_credential = blocking(Asynchronous.set_scram_credential)
    delete_scram_credentials = blocking(Asynchronous.delete_scram_credentials)

    # --- delegation tokens ---

    create_delegation_token = blocking(Asynchronous.create_delegation_token)
    renew_delegation_token = blocking(Asynchronous.renew_delegation_token)
    expire_delegation_token = blocking(Asynchronous.expire_delegation_token)
    describe_delegation_tokens = blocking(Asynchronous.describe_delegation_tokens)
