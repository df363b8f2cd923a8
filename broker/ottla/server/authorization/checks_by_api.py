"""The authorization check of each API. An API in neither table cannot be served with an authorizer.

Called by `ottla.server.assembly.request_processing` when the broker has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ottla.metadata.cache import MetadataCache
from ottla.metadata.config import BrokerConfig
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.security.acls import Operation, ResourceType
from ottla.security.authorizer import Authorizer
from ottla.server.authorization import cluster as clusters
from ottla.server.authorization import groups, topics, transactions
from ottla.server.authorization.auth_helper import DENIED_MESSAGES
from ottla.server.authorization.checks import (
    AuthorizationCheck,
    authorized_route,
    cluster,
    each,
    identity,
    resource,
)
from ottla.server.dispatch.dispatcher import Route

TOPIC, GROUP, TRANSACTION = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE, DELETE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DELETE, Operation.DESCRIBE

WITHOUT_CHECK: Final = frozenset(
    (
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.FETCH,
        ApiKey.ENVELOPE,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
    )
)
"""APIs that need no authorization, or check it elsewhere: Fetch checks each topic itself, and the right to
renew or expire a token does not depend on ACLs. The last three are not supported in ZooKeeper mode."""


def checks_by_api(
    config: BrokerConfig, cache: MetadataCache, is_controller: Callable[[], bool]
) -> dict[ApiKey, AuthorizationCheck]:
    """The check of every API that needs one."""
    cluster_action = cluster(Operation.CLUSTER_ACTION)
    alter_cluster = cluster(Operation.ALTER)
    describe_cluster = cluster(DESCRIBE)
    read_group = resource(READ, GROUP, "group_id")
    cluster_denied = DENIED_MESSAGES[ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    deletion = config.get_bool("delete.topic.enable")
    return {
        ApiKey.PRODUCE: topics.produce,
        ApiKey.LIST_OFFSETS: each(DESCRIBE, TOPIC, "topics", "topics"),
        ApiKey.METADATA: topics.metadata(cache, auto_create=config.get_bool("auto.create.topics.enable")),
        ApiKey.LEADER_AND_ISR: cluster_action,
        ApiKey.STOP_REPLICA: cluster_action,
        ApiKey.UPDATE_METADATA: cluster_action,
        ApiKey.CONTROLLED_SHUTDOWN: cluster_action,
        ApiKey.OFFSET_COMMIT: groups.offset_commit,
        ApiKey.OFFSET_FETCH: groups.offset_fetch,
        ApiKey.FIND_COORDINATOR: groups.find_coordinator,
        ApiKey.JOIN_GROUP: groups.join,
        ApiKey.HEARTBEAT: read_group,
        ApiKey.LEAVE_GROUP: read_group,
        ApiKey.SYNC_GROUP: read_group,
        ApiKey.DESCRIBE_GROUPS: groups.describe_groups,
        ApiKey.LIST_GROUPS: groups.list_groups,
        ApiKey.CREATE_TOPICS: topics.create_topics(is_controller),
        ApiKey.DELETE_TOPICS: topics.delete_topics(cache, is_controller, enabled=deletion),
        ApiKey.DELETE_RECORDS: each(DELETE, TOPIC, "topics", "topics"),
        ApiKey.INIT_PRODUCER_ID: topics.init_producer_id,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: topics.offset_for_leader_epoch,
        ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions(cache),
        ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets,
        ApiKey.END_TXN: resource(WRITE, TRANSACTION, "transactional_id"),
        ApiKey.WRITE_TXN_MARKERS: clusters.write_txn_markers,
        ApiKey.TXN_OFFSET_COMMIT: transactions.offset_commit,
        ApiKey.DESCRIBE_ACLS: describe_cluster,
        ApiKey.CREATE_ACLS: alter_cluster,
        ApiKey.DELETE_ACLS: alter_cluster,
        ApiKey.DESCRIBE_CONFIGS: clusters.configs(Operation.DESCRIBE_CONFIGS, "results", with_text=True),
        ApiKey.ALTER_CONFIGS: clusters.configs(Operation.ALTER_CONFIGS, "responses", with_text=False),
        ApiKey.ALTER_REPLICA_LOG_DIRS: cluster(Operation.ALTER, ""),
        ApiKey.DESCRIBE_LOG_DIRS: clusters.describe_log_dirs,
        ApiKey.CREATE_PARTITIONS: topics.create_partitions(is_controller),
        ApiKey.CREATE_DELEGATION_TOKEN: clusters.create_token,
        ApiKey.DESCRIBE_DELEGATION_TOKEN: clusters.describe_tokens,
        ApiKey.DELETE_GROUPS: each(DELETE, GROUP, "groups_names", "results", name=identity),
        ApiKey.ELECT_LEADERS: cluster(Operation.ALTER, ""),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: clusters.configs(
            Operation.ALTER_CONFIGS, "responses", with_text=False
        ),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_cluster,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: describe_cluster,
        ApiKey.OFFSET_DELETE: groups.offset_delete,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: cluster(Operation.DESCRIBE_CONFIGS, ""),
        ApiKey.ALTER_CLIENT_QUOTAS: cluster(Operation.ALTER_CONFIGS, cluster_denied),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: clusters.describe_scram,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: clusters.alter_scram(is_controller),
        ApiKey.ALTER_PARTITION: cluster_action,
        ApiKey.UPDATE_FEATURES: cluster(Operation.ALTER, cluster_denied),
        ApiKey.DESCRIBE_CLUSTER: clusters.describe_cluster,
        ApiKey.DESCRIBE_PRODUCERS: topics.describe_producers,
        ApiKey.DESCRIBE_TRANSACTIONS: transactions.describe,
        ApiKey.LIST_TRANSACTIONS: transactions.list_all,
        ApiKey.ALLOCATE_PRODUCER_IDS: cluster_action,
    }


def authorize_routes(
    routes: Iterable[Route],
    authorizer: Authorizer,
    checks: dict[ApiKey, AuthorizationCheck],
) -> list[Route]:
    """The routes with their checks. Raises KeyError for an API that is in neither table."""
    return [
        route
        if route.api_key in WITHOUT_CHECK
        else authorized_route(route, checks[route.api_key], authorizer)
        for route in routes
    ]
