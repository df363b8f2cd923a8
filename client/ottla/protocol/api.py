"""The APIs of a Kafka 3.9 broker with ZooKeeper: their keys and versions.

Used where an API is needed by name or versions are compared. The APIs that a broker of Ottla advertises are
the routes of `server.dispatch`, and may be fewer.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from ottla.protocol.types import NEVER


class ApiKey(IntEnum):
    """Names of the API keys on the wire."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69


class ApiInfo(NamedTuple):
    """One row of `API_TABLE`. `cluster_action`: the API requires ClusterAction on the cluster."""

    min_version: int
    max_version: int
    flexible_from: int = NEVER
    cluster_action: bool = False


API_TABLE: dict[ApiKey, ApiInfo] = {
    ApiKey.PRODUCE: ApiInfo(0, 11, 9),
    ApiKey.FETCH: ApiInfo(0, 17, 12),
    ApiKey.LIST_OFFSETS: ApiInfo(0, 9, 6),
    ApiKey.METADATA: ApiInfo(0, 12, 9),
    ApiKey.LEADER_AND_ISR: ApiInfo(0, 7, 4, cluster_action=True),
    ApiKey.STOP_REPLICA: ApiInfo(0, 4, 2, cluster_action=True),
    ApiKey.UPDATE_METADATA: ApiInfo(0, 8, 6, cluster_action=True),
    ApiKey.CONTROLLED_SHUTDOWN: ApiInfo(0, 3, 3, cluster_action=True),
    ApiKey.OFFSET_COMMIT: ApiInfo(0, 9, 8),
    ApiKey.OFFSET_FETCH: ApiInfo(0, 9, 6),
    ApiKey.FIND_COORDINATOR: ApiInfo(0, 6, 3),
    ApiKey.JOIN_GROUP: ApiInfo(0, 9, 6),
    ApiKey.HEARTBEAT: ApiInfo(0, 4, 4),
    ApiKey.LEAVE_GROUP: ApiInfo(0, 5, 4),
    ApiKey.SYNC_GROUP: ApiInfo(0, 5, 4),
    ApiKey.DESCRIBE_GROUPS: ApiInfo(0, 5, 5),
    ApiKey.LIST_GROUPS: ApiInfo(0, 5, 3),
    ApiKey.SASL_HANDSHAKE: ApiInfo(0, 1),
    ApiKey.API_VERSIONS: ApiInfo(0, 4, 3),
    ApiKey.CREATE_TOPICS: ApiInfo(0, 7, 5),
    ApiKey.DELETE_TOPICS: ApiInfo(0, 6, 4),
    ApiKey.DELETE_RECORDS: ApiInfo(0, 2, 2),
    ApiKey.INIT_PRODUCER_ID: ApiInfo(0, 5, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiInfo(0, 4, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiInfo(0, 5, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: ApiInfo(0, 4, 3),
    ApiKey.END_TXN: ApiInfo(0, 4, 3),
    ApiKey.WRITE_TXN_MARKERS: ApiInfo(0, 1, 1, cluster_action=True),
    ApiKey.TXN_OFFSET_COMMIT: ApiInfo(0, 4, 3),
    ApiKey.DESCRIBE_ACLS: ApiInfo(0, 3, 2),
    ApiKey.CREATE_ACLS: ApiInfo(0, 3, 2),
    ApiKey.DELETE_ACLS: ApiInfo(0, 3, 2),
    ApiKey.DESCRIBE_CONFIGS: ApiInfo(0, 4, 4),
    ApiKey.ALTER_CONFIGS: ApiInfo(0, 2, 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: ApiInfo(0, 2, 2),
    ApiKey.DESCRIBE_LOG_DIRS: ApiInfo(0, 4, 2),
    ApiKey.SASL_AUTHENTICATE: ApiInfo(0, 2, 2),
    ApiKey.CREATE_PARTITIONS: ApiInfo(0, 3, 2),
    ApiKey.CREATE_DELEGATION_TOKEN: ApiInfo(0, 3, 2),
    ApiKey.RENEW_DELEGATION_TOKEN: ApiInfo(0, 2, 2),
    ApiKey.EXPIRE_DELEGATION_TOKEN: ApiInfo(0, 2, 2),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: ApiInfo(0, 3, 2),
    ApiKey.DELETE_GROUPS: ApiInfo(0, 2, 2),
    ApiKey.ELECT_LEADERS: ApiInfo(0, 2, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ApiInfo(0, 1, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ApiInfo(0, 0, 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ApiInfo(0, 0, 0),
    ApiKey.OFFSET_DELETE: ApiInfo(0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ApiInfo(0, 1, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: ApiInfo(0, 1, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ApiInfo(0, 0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ApiInfo(0, 0, 0),
    ApiKey.ALTER_PARTITION: ApiInfo(0, 3, 0, cluster_action=True),
    ApiKey.UPDATE_FEATURES: ApiInfo(0, 1, 0, cluster_action=True),
    ApiKey.ENVELOPE: ApiInfo(0, 0, 0, cluster_action=True),
    ApiKey.DESCRIBE_CLUSTER: ApiInfo(0, 1, 0),
    ApiKey.DESCRIBE_PRODUCERS: ApiInfo(0, 0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: ApiInfo(0, 0, 0),
    ApiKey.LIST_TRANSACTIONS: ApiInfo(0, 1, 0),
    ApiKey.ALLOCATE_PRODUCER_IDS: ApiInfo(0, 0, 0, cluster_action=True),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ApiInfo(0, 0, 0),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ApiInfo(0, 0, 0),
}
