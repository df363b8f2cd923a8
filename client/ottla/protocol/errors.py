"""Error codes of the protocol, and the exceptions that code about the protocol raises.

`ErrorCode` is the code on the wire; `KafkaError` is the exception with a code, from which a response is made,
or which a response raises. `ProtocolError` and its subclasses are errors of decoding, the peer's fault, and
of encoding, the caller's fault.

Codes, names and the retriable ones are those of Kafka 3.9; the texts are Ottla's.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """The error codes of Kafka 3.9."""

    retriable: bool
    """Whether the same request may succeed later, perhaps after a metadata update."""
    message: str
    """One sentence that describes the error."""

    # The defaults are for type checkers, to which a look-up, ErrorCode(3), is a construction.
    def __new__(cls, code: int, retriable: bool = False, message: str = "") -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.message = message
        return member

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """The member of `code`; UNKNOWN_SERVER_ERROR for a code from after 3.9."""
        try:
            return cls(code)
        except ValueError:
            return cls.UNKNOWN_SERVER_ERROR

    UNKNOWN_SERVER_ERROR = (-1, False, "The broker had an unexpected error; its log has the details.")
    NONE = (0, False, "No error.")
    OFFSET_OUT_OF_RANGE = (1, False, "The offset is outside the log: below its start, or beyond its end.")
    CORRUPT_MESSAGE = (2, True, "A record batch has a wrong checksum or inconsistent sizes.")
    UNKNOWN_TOPIC_OR_PARTITION = (3, True, "This broker does not have the topic or partition.")
    INVALID_FETCH_SIZE = (4, False, "The requested fetch size is invalid.")
    LEADER_NOT_AVAILABLE = (5, True, "The partition has no leader at present.")
    NOT_LEADER_OR_FOLLOWER = (
        6,
        True,
        "The broker is not the leader of the partition, or has no replica that can serve the request.",
    )
    REQUEST_TIMED_OUT = (7, True, "The request was not completed within its time-out.")
    BROKER_NOT_AVAILABLE = (8, False, "The broker cannot serve this now.")
    REPLICA_NOT_AVAILABLE = (9, True, "The replica is not available for the request.")
    MESSAGE_TOO_LARGE = (10, False, "A record batch is larger than the topic allows (max.message.bytes).")
    STALE_CONTROLLER_EPOCH = (11, False, "The controller that sent this has been replaced.")
    OFFSET_METADATA_TOO_LARGE = (
        12,
        False,
        "The metadata of a committed offset are longer than the broker allows.",
    )
    NETWORK_EXCEPTION = (13, True, "The connection failed before the response.")
    COORDINATOR_LOAD_IN_PROGRESS = (
        14,
        True,
        "The coordinator is still reading its partition of the internal topic.",
    )
    COORDINATOR_NOT_AVAILABLE = (15, True, "No coordinator is available at present.")
    NOT_COORDINATOR = (16, True, "This broker does not coordinate that group or transactional id.")
    INVALID_TOPIC_EXCEPTION = (
        17,
        False,
        "The topic's name is invalid, or the topic does not allow the operation.",
    )
    RECORD_LIST_TOO_LARGE = (18, False, "The batches of the request exceed the size of a log segment.")
    NOT_ENOUGH_REPLICAS = (
        19,
        True,
        "Fewer replicas are in sync than min.insync.replicas requires; nothing was appended.",
    )
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        True,
        "The records were appended, but the in-sync replicas fell below min.insync.replicas.",
    )
    INVALID_REQUIRED_ACKS = (21, False, "acks must be -1 (all), 0 or 1.")
    ILLEGAL_GENERATION = (22, False, "The member's generation is not the group's current one.")
    INCONSISTENT_GROUP_PROTOCOL = (23, False, "The member has no protocol in common with the group.")
    INVALID_GROUP_ID = (24, False, "The group id is invalid.")
    UNKNOWN_MEMBER_ID = (25, False, "The group has no member with this id.")
    INVALID_SESSION_TIMEOUT = (26, False, "The session timeout is outside what the broker allows.")
    REBALANCE_IN_PROGRESS = (27, False, "The group is rebalancing; the member has to rejoin.")
    INVALID_COMMIT_OFFSET_SIZE = (28, False, "The offsets to commit do not fit into one record batch.")
    TOPIC_AUTHORIZATION_FAILED = (29, False, "The principal is not allowed to do this with the topic.")
    GROUP_AUTHORIZATION_FAILED = (30, False, "The principal is not allowed to do this with the group.")
    CLUSTER_AUTHORIZATION_FAILED = (31, False, "The principal is not allowed to do this with the cluster.")
    INVALID_TIMESTAMP = (
        32,
        False,
        "A record's timestamp is further from the broker's clock than the topic allows.",
    )
    UNSUPPORTED_SASL_MECHANISM = (33, False, "The broker does not offer that SASL mechanism.")
    ILLEGAL_SASL_STATE = (34, False, "The request is not valid in this state of the SASL exchange.")
    UNSUPPORTED_VERSION = (35, False, "The broker does not serve this version of the request.")
    TOPIC_ALREADY_EXISTS = (36, False, "A topic with this name exists already.")
    INVALID_PARTITIONS = (37, False, "The number of partitions is invalid.")
    INVALID_REPLICATION_FACTOR = (
        38,
        False,
        "The replication factor is below 1 or above the number of brokers.",
    )
    INVALID_REPLICA_ASSIGNMENT = (39, False, "The replica assignment is invalid.")
    INVALID_CONFIG = (40, False, "A setting or its value is invalid.")
    NOT_CONTROLLER = (41, True, "This broker is not the controller.")
    INVALID_REQUEST = (42, False, "The request is inconsistent or incomplete.")
    UNSUPPORTED_FOR_MESSAGE_FORMAT = (43, False, "The topic's message format does not support the request.")
    POLICY_VIOLATION = (44, False, "A policy of the cluster forbids this.")
    OUT_OF_ORDER_SEQUENCE_NUMBER = (
        45,
        False,
        "The sequence number does not follow the producer's last batch.",
    )
    DUPLICATE_SEQUENCE_NUMBER = (46, False, "The producer has sent a batch with this sequence number before.")
    INVALID_PRODUCER_EPOCH = (47, False, "A newer instance of this producer has taken over.")
    INVALID_TXN_STATE = (48, False, "The transaction's state does not allow the operation.")
    INVALID_PRODUCER_ID_MAPPING = (
        49,
        False,
        "The producer id is not the transactional id's current one.",
    )
    INVALID_TRANSACTION_TIMEOUT = (50, False, "The transaction timeout is above transaction.max.timeout.ms.")
    CONCURRENT_TRANSACTIONS = (51, True, "The producer's previous transaction is not completed yet.")
    TRANSACTION_COORDINATOR_FENCED = (52, False, "The coordinator that wrote this marker has been replaced.")
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = (
        53,
        False,
        "The principal is not allowed to use the transactional id.",
    )
    SECURITY_DISABLED = (54, False, "The broker runs without an authorizer.")
    OPERATION_NOT_ATTEMPTED = (55, False, "Not attempted, because another part of the request failed.")
    KAFKA_STORAGE_ERROR = (56, True, "The broker could not read or write the partition's log.")
    LOG_DIR_NOT_FOUND = (57, False, "The broker has no such log directory.")
    SASL_AUTHENTICATION_FAILED = (58, False, "Authentication failed.")
    UNKNOWN_PRODUCER_ID = (59, False, "The broker has no state of this producer id.")
    REASSIGNMENT_IN_PROGRESS = (60, False, "A reassignment of the partition is in progress.")
    DELEGATION_TOKEN_AUTH_DISABLED = (61, False, "Delegation tokens are disabled.")
    DELEGATION_TOKEN_NOT_FOUND = (62, False, "There is no such delegation token.")
    DELEGATION_TOKEN_OWNER_MISMATCH = (63, False, "The delegation token belongs to another principal.")
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        False,
        "Delegation tokens cannot be managed over a connection of this kind.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = (
        65,
        False,
        "The principal is not allowed to do this with the delegation token.",
    )
    DELEGATION_TOKEN_EXPIRED = (66, False, "The delegation token has expired.")
    INVALID_PRINCIPAL_TYPE = (67, False, "Principals of this type cannot be used here.")
    NON_EMPTY_GROUP = (68, False, "The group still has members.")
    GROUP_ID_NOT_FOUND = (69, False, "There is no such group.")
    FETCH_SESSION_ID_NOT_FOUND = (70, True, "The fetch session does not exist; start a new one.")
    INVALID_FETCH_SESSION_EPOCH = (71, True, "The fetch session has another epoch; start a new one.")
    LISTENER_NOT_FOUND = (72, True, "The leader has no listener with the name of this request's listener.")
    TOPIC_DELETION_DISABLED = (73, False, "delete.topic.enable is off.")
    FENCED_LEADER_EPOCH = (74, True, "The leader epoch of the request is older than the broker's.")
    UNKNOWN_LEADER_EPOCH = (75, True, "The leader epoch of the request is newer than the broker's.")
    UNSUPPORTED_COMPRESSION_TYPE = (
        76,
        False,
        "The request's version does not support the compression codec.",
    )
    STALE_BROKER_EPOCH = (77, False, "The broker has registered again since this was sent.")
    OFFSET_NOT_AVAILABLE = (78, True, "The new leader's high watermark has not caught up yet.")
    MEMBER_ID_REQUIRED = (79, False, "Join again with the member id of this response.")
    PREFERRED_LEADER_NOT_AVAILABLE = (80, True, "The preferred leader is not alive and in sync.")
    GROUP_MAX_SIZE_REACHED = (81, False, "The group is full (group.max.size).")
    FENCED_INSTANCE_ID = (82, False, "Another member has taken over this group.instance.id.")
    ELIGIBLE_LEADERS_NOT_AVAILABLE = (83, True, "No eligible leader is alive.")
    ELECTION_NOT_NEEDED = (84, True, "The leader would not change by an election.")
    NO_REASSIGNMENT_IN_PROGRESS = (85, False, "No reassignment of the partition is in progress.")
    GROUP_SUBSCRIBED_TO_TOPIC = (86, False, "A member of the group subscribes to the topic.")
    INVALID_RECORD = (87, False, "A record violates a rule of its topic.")
    UNSTABLE_OFFSET_COMMIT = (88, True, "Offsets of an open transaction are pending; retry.")
    THROTTLING_QUOTA_EXCEEDED = (89, True, "The quota is exceeded; retry later.")
    PRODUCER_FENCED = (90, False, "A newer producer uses this transactional id.")
    RESOURCE_NOT_FOUND = (91, False, "The resource does not exist.")
    DUPLICATE_RESOURCE = (92, False, "The resource is given twice or exists already.")
    UNACCEPTABLE_CREDENTIAL = (93, False, "The credential does not meet the requirements.")
    INCONSISTENT_VOTER_SET = (94, False, "Sender and receiver have different voter sets (KRaft).")
    INVALID_UPDATE_VERSION = (
        95,
        False,
        "The update was made against a version that is no longer the current one.",
    )
    FEATURE_UPDATE_FAILED = (96, False, "A feature's level could not be changed.")
    PRINCIPAL_DESERIALIZATION_FAILURE = (97, False, "The forwarded principal cannot be read.")
    SNAPSHOT_NOT_FOUND = (98, False, "There is no such snapshot (KRaft).")
    POSITION_OUT_OF_RANGE = (99, False, "The position is outside the snapshot (KRaft).")
    UNKNOWN_TOPIC_ID = (100, True, "This broker does not have a topic with this id.")
    DUPLICATE_BROKER_REGISTRATION = (101, False, "Another live broker is registered with this id.")
    BROKER_ID_NOT_REGISTERED = (102, False, "No broker with this id is registered.")
    INCONSISTENT_TOPIC_ID = (
        103,
        True,
        "The topic id is not the one in the log: the topic was deleted and created again.",
    )
    INCONSISTENT_CLUSTER_ID = (104, False, "The request has another cluster id.")
    TRANSACTIONAL_ID_NOT_FOUND = (105, False, "There is no such transactional id.")
    FETCH_SESSION_TOPIC_ID_ERROR = (
        106,
        True,
        "The session mixes requests with and without topic ids; start a new one.",
    )
    INELIGIBLE_REPLICA = (
        107,
        False,
        "The replica may not join the in-sync set: it is fenced or shutting down.",
    )
    NEW_LEADER_ELECTED = (108, False, "The change was made and a new leader was elected.")
    OFFSET_MOVED_TO_TIERED_STORAGE = (109, False, "The offset is no longer in the local log.")
    FENCED_MEMBER_EPOCH = (110, False, "The coordinator has moved the member to a later epoch.")
    UNRELEASED_INSTANCE_ID = (111, False, "The group.instance.id still belongs to another member.")
    UNSUPPORTED_ASSIGNOR = (112, False, "The group cannot use that assignor.")
    STALE_MEMBER_EPOCH = (113, False, "The member's epoch is stale; it has to get its assignment first.")
    MISMATCHED_ENDPOINT_TYPE = (
        114,
        False,
        "The request is for a controller but the receiver is a broker, or the reverse.",
    )
    UNSUPPORTED_ENDPOINT_TYPE = (115, False, "This kind of endpoint is not supported here.")
    UNKNOWN_CONTROLLER_ID = (116, False, "There is no controller with this id.")
    UNKNOWN_SUBSCRIPTION_ID = (117, False, "The client's telemetry subscription is out of date.")
    TELEMETRY_TOO_LARGE = (118, False, "The telemetry is larger than the broker accepts.")
    INVALID_REGISTRATION = (119, False, "The registration contradicts the cluster's.")
    TRANSACTION_ABORTABLE = (
        120,
        False,
        "The producer must abort the transaction, and can continue then.",
    )
    INVALID_RECORD_STATE = (
        121,
        False,
        "The record's state does not allow the operation (share groups).",
    )
    SHARE_SESSION_NOT_FOUND = (122, True, "The share session does not exist.")
    INVALID_SHARE_SESSION_EPOCH = (123, True, "The share session has another epoch.")
    FENCED_STATE_EPOCH = (124, False, "The state's epoch is older than the coordinator's (share groups).")
    INVALID_VOTER_KEY = (125, False, "The voter's key is not the receiver's (KRaft).")
    DUPLICATE_VOTER = (126, False, "The voter set has the voter already (KRaft).")
    VOTER_NOT_FOUND = (127, False, "The voter set does not have the voter (KRaft).")


class KafkaError(Exception):
    """An error with a code, for a response or of a response."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = code.message if message is None else message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class ProtocolError(Exception):
    """Bytes that cannot be decoded, or a message that cannot be encoded."""


class MalformedMessage(ProtocolError):
    """Bytes that cannot be decoded: `what` is wrong, at byte `position` (-1: unknown)."""

    def __init__(self, subject: str, what: str, position: int = -1) -> None:
        super().__init__(subject, what, position)
        self.subject = subject
        self.what = what
        self.position = position

    def __str__(self) -> str:
        place = f" (at byte {self.position})" if self.position >= 0 else ""
        return f"malformed {self.subject}: {self.what}{place}"


class TooManyElements(MalformedMessage):
    """A message with more array elements than are decoded at once."""


class UnencodableMessage(ProtocolError):
    """A message with a field that the version does not have, or a value outside its type."""


class UnknownVersion(ProtocolError):
    """A version, or an API, that the table does not have."""
