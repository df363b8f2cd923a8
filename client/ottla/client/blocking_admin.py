"""The admin client for code without an event loop: the same names, from any thread.

See `ottla.client.blocking`. Invariant: every call of the asynchronous one is here, with the same arguments
and results; a test compares.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from ottla.client.admin import AdminClient as Asynchronous
from ottla.client.errors import IllegalStateError
from ottla.client.loop_thread import LoopThread
from ottla.security.clients import ClientSecurity

P = ParamSpec("P")
T = TypeVar("T")
Call = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]


def _blocking(call: Call[P, T]) -> Callable[Concatenate[AdminClient, P], T]:
    """The same call, run to its end in the loop's thread. All of them are found in the asynchronous class."""

    def run(self: AdminClient, /, *arguments: P.args, **keywords: P.kwargs) -> T:
        return self._run(call(self._admin, *arguments, **keywords))

    run.__name__ = call.__name__
    run.__qualname__ = f"AdminClient.{call.__name__}"
    run.__doc__ = call.__doc__
    return run


class AdminClient:
    """May be shared by threads."""

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        /,
        *,
        security: ClientSecurity | None = None,
        **keywords: object,
    ) -> None:
        """As the asynchronous one, and ready. Raises ConfigError."""
        self._admin = Asynchronous(settings, security=security, **keywords)
        self.config = self._admin.config
        self._thread: LoopThread | None = LoopThread(f"admin {self.config.client_id}")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            work.close()
            raise IllegalStateError("the admin client is closed")
        return self._thread.run(work)

    def close(self) -> None:
        """A second call does nothing."""
        thread = self._thread
        if thread is not None:
            self._thread = None
            try:
                thread.run(self._admin.close())
            finally:
                thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the cluster ---

    describe_cluster = _blocking(Asynchronous.describe_cluster)
    describe_features = _blocking(Asynchronous.describe_features)
    describe_api_versions = _blocking(Asynchronous.describe_api_versions)
    update_features = _blocking(Asynchronous.update_features)
    describe_metadata_quorum = _blocking(Asynchronous.describe_metadata_quorum)
    unregister_broker = _blocking(Asynchronous.unregister_broker)
    list_client_metrics_resources = _blocking(Asynchronous.list_client_metrics_resources)
    add_raft_voter = _blocking(Asynchronous.add_raft_voter)
    remove_raft_voter = _blocking(Asynchronous.remove_raft_voter)

    # --- topics ---

    list_topics = _blocking(Asynchronous.list_topics)
    describe_topics = _blocking(Asynchronous.describe_topics)
    create_topics = _blocking(Asynchronous.create_topics)
    create_topic = _blocking(Asynchronous.create_topic)
    delete_topics = _blocking(Asynchronous.delete_topics)
    delete_topic = _blocking(Asynchronous.delete_topic)
    create_partitions = _blocking(Asynchronous.create_partitions)

    # --- settings ---

    describe_configs = _blocking(Asynchronous.describe_configs)
    incremental_alter_configs = _blocking(Asynchronous.incremental_alter_configs)
    alter_configs = _blocking(Asynchronous.alter_configs)
    describe_topic_configs = _blocking(Asynchronous.describe_topic_configs)
    describe_broker_configs = _blocking(Asynchronous.describe_broker_configs)
    alter_topic_config = _blocking(Asynchronous.alter_topic_config)
    alter_broker_config = _blocking(Asynchronous.alter_broker_config)

    # --- replicas and leaders ---

    alter_partition_reassignments = _blocking(Asynchronous.alter_partition_reassignments)
    list_partition_reassignments = _blocking(Asynchronous.list_partition_reassignments)
    elect_leaders = _blocking(Asynchronous.elect_leaders)
    elect_preferred_leaders = _blocking(Asynchronous.elect_preferred_leaders)

    # --- groups ---

    list_groups = _blocking(Asynchronous.list_groups)
    describe_groups = _blocking(Asynchronous.describe_groups)
    describe_group = _blocking(Asynchronous.describe_group)
    delete_groups = _blocking(Asynchronous.delete_groups)
    delete_group = _blocking(Asynchronous.delete_group)
    remove_group_members = _blocking(Asynchronous.remove_group_members)

    # --- what groups have committed ---

    list_group_offsets = _blocking(Asynchronous.list_group_offsets)
    group_offsets = _blocking(Asynchronous.group_offsets)
    zookeeper_group_offsets = _blocking(Asynchronous.zookeeper_group_offsets)
    alter_group_offsets = _blocking(Asynchronous.alter_group_offsets)
    delete_group_offsets = _blocking(Asynchronous.delete_group_offsets)

    # --- logs ---

    list_offsets = _blocking(Asynchronous.list_offsets)
    delete_records = _blocking(Asynchronous.delete_records)
    end_offsets = _blocking(Asynchronous.end_offsets)
    start_offsets = _blocking(Asynchronous.start_offsets)
    offsets_for_time = _blocking(Asynchronous.offsets_for_time)

    # --- log directories ---

    describe_log_dirs = _blocking(Asynchronous.describe_log_dirs)
    describe_replica_log_dirs = _blocking(Asynchronous.describe_replica_log_dirs)
    alter_replica_log_dirs = _blocking(Asynchronous.alter_replica_log_dirs)

    # --- transactions ---

    describe_producers = _blocking(Asynchronous.describe_producers)
    describe_transactions = _blocking(Asynchronous.describe_transactions)
    list_transactions = _blocking(Asynchronous.list_transactions)
    abort_transaction = _blocking(Asynchronous.abort_transaction)
    fence_producers = _blocking(Asynchronous.fence_producers)

    # --- quotas ---

    describe_client_quotas = _blocking(Asynchronous.describe_client_quotas)
    alter_client_quotas = _blocking(Asynchronous.alter_client_quotas)
    alter_client_quota = _blocking(Asynchronous.alter_client_quota)

    # --- ACLs ---

    describe_acls = _blocking(Asynchronous.describe_acls)
    create_acls = _blocking(Asynchronous.create_acls)
    delete_acls = _blocking(Asynchronous.delete_acls)

    # --- credentials ---

    describe_user_scram_credentials = _blocking(Asynchronous.describe_user_scram_credentials)
    alter_user_scram_credentials = _blocking(Asynchronous.alter_user_scram_credentials)
    set_scram_credential = _blocking(Asynchronous.set_scram_credential)
    delete_scram_credentials = _blocking(Asynchronous.delete_scram_credentials)

    # --- delegation tokens ---

    create_delegation_token = _blocking(Asynchronous.create_delegation_token)
    renew_delegation_token = _blocking(Asynchronous.renew_delegation_token)
    expire_delegation_token = _blocking(Asynchronous.expire_delegation_token)
    describe_delegation_tokens = _blocking(Asynchronous.describe_delegation_tokens)
