"""A class for each error code of Kafka 3.9.

Written by `python -m ottla.client.errors_source`; change that.
"""

from __future__ import annotations

from typing import Final

from ottla.client.error_kinds import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    InvalidMetadataError,
    RetriableError,
)
from ottla.protocol.errors import ErrorCode


class UnknownServerError(BrokerError):
    """The broker had an unexpected error; its log has the details."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class OffsetOutOfRangeError(BrokerError):
    """The offset is outside the log: below its start, or beyond its end."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptMessageError(RetriableError, BrokerError):
    """A record batch has a wrong checksum or inconsistent sizes."""

    code = ErrorCode.CORRUPT_MESSAGE


class UnknownTopicOrPartitionError(InvalidMetadataError, BrokerError):
    """This broker does not have the topic or partition."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class InvalidFetchSizeError(BrokerError):
    """The requested fetch size is invalid."""

    code = ErrorCode.INVALID_FETCH_SIZE


class LeaderNotAvailableError(InvalidMetadataError, BrokerError):
    """The partition has no leader at present."""

    code = ErrorCode.LEADER_NOT_AVAILABLE


class NotLeaderOrFollowerError(InvalidMetadataError, BrokerError):
    """The broker is not the leader of the partition, or has no replica that can serve the request."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class RequestTimedOutError(RetriableError, BrokerError, TimeoutError):
    """The request was not completed within its time-out."""

    code = ErrorCode.REQUEST_TIMED_OUT


class BrokerNotAvailableError(BrokerError):
    """The broker cannot serve this now."""

    code = ErrorCode.BROKER_NOT_AVAILABLE


class ReplicaNotAvailableError(InvalidMetadataError, BrokerError):
    """The replica is not available for the request."""

    code = ErrorCode.REPLICA_NOT_AVAILABLE


class MessageTooLargeError(BrokerError):
    """A record batch is larger than the topic allows (max.message.bytes)."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class StaleControllerEpochError(BrokerError):
    """The controller that sent this has been replaced."""

    code = ErrorCode.STALE_CONTROLLER_EPOCH


class OffsetMetadataTooLargeError(BrokerError):
    """The metadata of a committed offset are longer than the broker allows."""

    code = ErrorCode.OFFSET_METADATA_TOO_LARGE


class NetworkError(InvalidMetadataError, BrokerError):
    """The connection failed before the response."""

    code = ErrorCode.NETWORK_EXCEPTION


class CoordinatorLoadInProgressError(RetriableError, BrokerError):
    """The coordinator is still reading its partition of the internal topic."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class CoordinatorNotAvailableError(RetriableError, BrokerError):
    """No coordinator is available at present."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class NotCoordinatorError(RetriableError, BrokerError):
    """This broker does not coordinate that group or transactional id."""

    code = ErrorCode.NOT_COORDINATOR


class InvalidTopicError(BrokerError):
    """The topic's name is invalid, or the topic does not allow the operation."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class RecordListTooLargeError(BrokerError):
    """The batches of the request exceed the size of a log segment."""

    code = ErrorCode.RECORD_LIST_TOO_LARGE


class NotEnoughReplicasError(RetriableError, BrokerError):
    """Fewer replicas are in sync than min.insync.replicas requires; nothing was appended."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppendError(RetriableError, BrokerError):
    """The records were appended, but the in-sync replicas fell below min.insync.replicas."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class InvalidRequiredAcksError(BrokerError):
    """Acks must be -1 (all), 0 or 1."""

    code = ErrorCode.INVALID_REQUIRED_ACKS


class IllegalGenerationError(BrokerError):
    """The member's generation is not the group's current one."""

    code = ErrorCode.ILLEGAL_GENERATION


class InconsistentGroupProtocolError(BrokerError):
    """The member has no protocol in common with the group."""

    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class InvalidGroupIdError(BrokerError):
    """The group id is invalid."""

    code = ErrorCode.INVALID_GROUP_ID


class UnknownMemberIdError(BrokerError):
    """The group has no member with this id."""

    code = ErrorCode.UNKNOWN_MEMBER_ID


class InvalidSessionTimeoutError(BrokerError):
    """The session timeout is outside what the broker allows."""

    code = ErrorCode.INVALID_SESSION_TIMEOUT


class RebalanceInProgressError(BrokerError):
    """The group is rebalancing; the member has to rejoin."""

    code = ErrorCode.REBALANCE_IN_PROGRESS


class InvalidCommitOffsetSizeError(BrokerError):
    """The offsets to commit do not fit into one record batch."""

    code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE


class TopicAuthorizationFailedError(AuthorizationError, BrokerError):
    """The principal is not allowed to do this with the topic."""

    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class GroupAuthorizationFailedError(AuthorizationError, BrokerError):
    """The principal is not allowed to do this with the group."""

    code = ErrorCode.GROUP_AUTHORIZATION_FAILED


class ClusterAuthorizationFailedError(AuthorizationError, BrokerError):
    """The principal is not allowed to do this with the cluster."""

    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class InvalidTimestampError(BrokerError):
    """A record's timestamp is further from the broker's clock than the topic allows."""

    code = ErrorCode.INVALID_TIMESTAMP


class UnsupportedSaslMechanismError(AuthenticationError, BrokerError):
    """The broker does not offer that SASL mechanism."""

    code = ErrorCode.UNSUPPORTED_SASL_MECHANISM


class IllegalSaslStateError(AuthenticationError, BrokerError):
    """The request is not valid in this state of the SASL exchange."""

    code = ErrorCode.ILLEGAL_SASL_STATE


class UnsupportedVersionError(BrokerError):
    """The broker does not serve this version of the request."""

    code = ErrorCode.UNSUPPORTED_VERSION


class TopicAlreadyExistsError(BrokerError):
    """A topic with this name exists already."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitionsError(BrokerError):
    """The number of partitions is invalid."""

    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactorError(BrokerError):
    """The replication factor is below 1 or above the number of brokers."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignmentError(BrokerError):
    """The replica assignment is invalid."""

    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class InvalidConfigError(BrokerError):
    """A setting or its value is invalid."""

    code = ErrorCode.INVALID_CONFIG


class NotControllerError(RetriableError, BrokerError):
    """This broker is not the controller."""

    code = ErrorCode.NOT_CONTROLLER


class InvalidRequestError(BrokerError):
    """The request is inconsistent or incomplete."""

    code = ErrorCode.INVALID_REQUEST


class UnsupportedForMessageFormatError(BrokerError):
    """The topic's message format does not support the request."""

    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class PolicyViolationError(BrokerError):
    """A policy of the cluster forbids this."""

    code = ErrorCode.POLICY_VIOLATION


class OutOfOrderSequenceNumberError(BrokerError):
    """The sequence number does not follow the producer's last batch."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class DuplicateSequenceNumberError(BrokerError):
    """The producer has sent a batch with this sequence number before."""

    code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER


class InvalidProducerEpochError(BrokerError):
    """A newer instance of this producer has taken over."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTxnStateError(BrokerError):
    """The transaction's state does not allow the operation."""

    code = ErrorCode.INVALID_TXN_STATE


class InvalidProducerIdMappingError(BrokerError):
    """The producer id is not the transactional id's current one."""

    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class InvalidTransactionTimeoutError(BrokerError):
    """The transaction timeout is above transaction.max.timeout.ms."""

    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class ConcurrentTransactionsError(RetriableError, BrokerError):
    """The producer's previous transaction is not completed yet."""

    code = ErrorCode.CONCURRENT_TRANSACTIONS


class TransactionCoordinatorFencedError(BrokerError):
    """The coordinator that wrote this marker has been replaced."""

    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class TransactionalIdAuthorizationFailedError(AuthorizationError, BrokerError):
    """The principal is not allowed to use the transactional id."""

    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class SecurityDisabledError(BrokerError):
    """The broker runs without an authorizer."""

    code = ErrorCode.SECURITY_DISABLED


class OperationNotAttemptedError(BrokerError):
    """Not attempted, because another part of the request failed."""

    code = ErrorCode.OPERATION_NOT_ATTEMPTED


class KafkaStorageError(InvalidMetadataError, BrokerError):
    """The broker could not read or write the partition's log."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class LogDirNotFoundError(BrokerError):
    """The broker has no such log directory."""

    code = ErrorCode.LOG_DIR_NOT_FOUND


class SaslAuthenticationFailedError(AuthenticationError, BrokerError):
    """Authentication failed."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class UnknownProducerIdError(BrokerError):
    """The broker has no state of this producer id."""

    code = ErrorCode.UNKNOWN_PRODUCER_ID


class ReassignmentInProgressError(BrokerError):
    """A reassignment of the partition is in progress."""

    code = ErrorCode.REASSIGNMENT_IN_PROGRESS


class DelegationTokenAuthDisabledError(BrokerError):
    """Delegation tokens are disabled."""

    code = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


class DelegationTokenNotFoundError(BrokerError):
    """There is no such delegation token."""

    code = ErrorCode.DELEGATION_TOKEN_NOT_FOUND


class DelegationTokenOwnerMismatchError(BrokerError):
    """The delegation token belongs to another principal."""

    code = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


class DelegationTokenRequestNotAllowedError(BrokerError):
    """Delegation tokens cannot be managed over a connection of this kind."""

    code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


class DelegationTokenAuthorizationFailedError(AuthorizationError, BrokerError):
    """The principal is not allowed to do this with the delegation token."""

    code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED


class DelegationTokenExpiredError(BrokerError):
    """The delegation token has expired."""

    code = ErrorCode.DELEGATION_TOKEN_EXPIRED


class InvalidPrincipalTypeError(BrokerError):
    """Principals of this type cannot be used here."""

    code = ErrorCode.INVALID_PRINCIPAL_TYPE


class NonEmptyGroupError(BrokerError):
    """The group still has members."""

    code = ErrorCode.NON_EMPTY_GROUP


class GroupIdNotFoundError(BrokerError):
    """There is no such group."""

    code = ErrorCode.GROUP_ID_NOT_FOUND


class FetchSessionIdNotFoundError(RetriableError, BrokerError):
    """The fetch session does not exist; start a new one."""

    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND


class InvalidFetchSessionEpochError(RetriableError, BrokerError):
    """The fetch session has another epoch; start a new one."""

    code = ErrorCode.INVALID_FETCH_SESSION_EPOCH


class ListenerNotFoundError(InvalidMetadataError, BrokerError):
    """The leader has no listener with the name of this request's listener."""

    code = ErrorCode.LISTENER_NOT_FOUND


class TopicDeletionDisabledError(BrokerError):
    """Delete.topic.enable is off."""

    code = ErrorCode.TOPIC_DELETION_DISABLED


class FencedLeaderEpochError(InvalidMetadataError, BrokerError):
    """The leader epoch of the request is older than the broker's."""

    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpochError(RetriableError, BrokerError):
    """The leader epoch of the request is newer than the broker's."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class UnsupportedCompressionTypeError(BrokerError):
    """The request's version does not support the compression codec."""

    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class StaleBrokerEpochError(BrokerError):
    """The broker has registered again since this was sent."""

    code = ErrorCode.STALE_BROKER_EPOCH


class OffsetNotAvailableError(RetriableError, BrokerError):
    """The new leader's high watermark has not caught up yet."""

    code = ErrorCode.OFFSET_NOT_AVAILABLE


class MemberIdRequiredError(BrokerError):
    """Join again with the member id of this response."""

    code = ErrorCode.MEMBER_ID_REQUIRED


class PreferredLeaderNotAvailableError(InvalidMetadataError, BrokerError):
    """The preferred leader is not alive and in sync."""

    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


class GroupMaxSizeReachedError(BrokerError):
    """The group is full (group.max.size)."""

    code = ErrorCode.GROUP_MAX_SIZE_REACHED


class FencedInstanceIdError(BrokerError):
    """Another member has taken over this group.instance.id."""

    code = ErrorCode.FENCED_INSTANCE_ID


class EligibleLeadersNotAvailableError(InvalidMetadataError, BrokerError):
    """No eligible leader is alive."""

    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


class ElectionNotNeededError(InvalidMetadataError, BrokerError):
    """The leader would not change by an election."""

    code = ErrorCode.ELECTION_NOT_NEEDED


class NoReassignmentInProgressError(BrokerError):
    """No reassignment of the partition is in progress."""

    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class GroupSubscribedToTopicError(BrokerError):
    """A member of the group subscribes to the topic."""

    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


class InvalidRecordError(BrokerError):
    """A record violates a rule of its topic."""

    code = ErrorCode.INVALID_RECORD


class UnstableOffsetCommitError(RetriableError, BrokerError):
    """Offsets of an open transaction are pending; retry."""

    code = ErrorCode.UNSTABLE_OFFSET_COMMIT


class ThrottlingQuotaExceededError(RetriableError, BrokerError):
    """The quota is exceeded; retry later."""

    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class ProducerFencedError(BrokerError):
    """A newer producer uses this transactional id."""

    code = ErrorCode.PRODUCER_FENCED


class ResourceNotFoundError(BrokerError):
    """The resource does not exist."""

    code = ErrorCode.RESOURCE_NOT_FOUND


class DuplicateResourceError(BrokerError):
    """The resource is given twice or exists already."""

    code = ErrorCode.DUPLICATE_RESOURCE


class UnacceptableCredentialError(BrokerError):
    """The credential does not meet the requirements."""

    code = ErrorCode.UNACCEPTABLE_CREDENTIAL


class InconsistentVoterSetError(BrokerError):
    """Sender and receiver have different voter sets (KRaft)."""

    code = ErrorCode.INCONSISTENT_VOTER_SET


class InvalidUpdateVersionError(BrokerError):
    """The update was made against a version that is no longer the current one."""

    code = ErrorCode.INVALID_UPDATE_VERSION


class FeatureUpdateFailedError(BrokerError):
    """A feature's level could not be changed."""

    code = ErrorCode.FEATURE_UPDATE_FAILED


class PrincipalDeserializationFailureError(BrokerError):
    """The forwarded principal cannot be read."""

    code = ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE


class SnapshotNotFoundError(BrokerError):
    """There is no such snapshot (KRaft)."""

    code = ErrorCode.SNAPSHOT_NOT_FOUND


class PositionOutOfRangeError(BrokerError):
    """The position is outside the snapshot (KRaft)."""

    code = ErrorCode.POSITION_OUT_OF_RANGE


class UnknownTopicIdError(InvalidMetadataError, BrokerError):
    """This broker does not have a topic with this id."""

    code = ErrorCode.UNKNOWN_TOPIC_ID


class DuplicateBrokerRegistrationError(BrokerError):
    """Another live broker is registered with this id."""

    code = ErrorCode.DUPLICATE_BROKER_REGISTRATION


class BrokerIdNotRegisteredError(BrokerError):
    """No broker with this id is registered."""

    code = ErrorCode.BROKER_ID_NOT_REGISTERED


class InconsistentTopicIdError(InvalidMetadataError, BrokerError):
    """The topic id is not the one in the log: the topic was deleted and created again."""

    code = ErrorCode.INCONSISTENT_TOPIC_ID


class InconsistentClusterIdError(BrokerError):
    """The request has another cluster id."""

    code = ErrorCode.INCONSISTENT_CLUSTER_ID


class TransactionalIdNotFoundError(BrokerError):
    """There is no such transactional id."""

    code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


class FetchSessionTopicIdError(RetriableError, BrokerError):
    """The session mixes requests with and without topic ids; start a new one."""

    code = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


class IneligibleReplicaError(BrokerError):
    """The replica may not join the in-sync set: it is fenced or shutting down."""

    code = ErrorCode.INELIGIBLE_REPLICA


class NewLeaderElectedError(BrokerError):
    """The change was made and a new leader was elected."""

    code = ErrorCode.NEW_LEADER_ELECTED


class OffsetMovedToTieredStorageError(BrokerError):
    """The offset is no longer in the local log."""

    code = ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE


class FencedMemberEpochError(BrokerError):
    """The coordinator has moved the member to a later epoch."""

    code = ErrorCode.FENCED_MEMBER_EPOCH


class UnreleasedInstanceIdError(BrokerError):
    """The group.instance.id still belongs to another member."""

    code = ErrorCode.UNRELEASED_INSTANCE_ID


class UnsupportedAssignorError(BrokerError):
    """The group cannot use that assignor."""

    code = ErrorCode.UNSUPPORTED_ASSIGNOR


class StaleMemberEpochError(BrokerError):
    """The member's epoch is stale; it has to get its assignment first."""

    code = ErrorCode.STALE_MEMBER_EPOCH


class MismatchedEndpointTypeError(BrokerError):
    """The request is for a controller but the receiver is a broker, or the reverse."""

    code = ErrorCode.MISMATCHED_ENDPOINT_TYPE


class UnsupportedEndpointTypeError(BrokerError):
    """This kind of endpoint is not supported here."""

    code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


class UnknownControllerIdError(BrokerError):
    """There is no controller with this id."""

    code = ErrorCode.UNKNOWN_CONTROLLER_ID


class UnknownSubscriptionIdError(BrokerError):
    """The client's telemetry subscription is out of date."""

    code = ErrorCode.UNKNOWN_SUBSCRIPTION_ID


class TelemetryTooLargeError(BrokerError):
    """The telemetry is larger than the broker accepts."""

    code = ErrorCode.TELEMETRY_TOO_LARGE


class InvalidRegistrationError(BrokerError):
    """The registration contradicts the cluster's."""

    code = ErrorCode.INVALID_REGISTRATION


class TransactionAbortableError(BrokerError):
    """The producer must abort the transaction, and can continue then."""

    code = ErrorCode.TRANSACTION_ABORTABLE


class InvalidRecordStateError(BrokerError):
    """The record's state does not allow the operation (share groups)."""

    code = ErrorCode.INVALID_RECORD_STATE


class ShareSessionNotFoundError(RetriableError, BrokerError):
    """The share session does not exist."""

    code = ErrorCode.SHARE_SESSION_NOT_FOUND


class InvalidShareSessionEpochError(RetriableError, BrokerError):
    """The share session has another epoch."""

    code = ErrorCode.INVALID_SHARE_SESSION_EPOCH


class FencedStateEpochError(BrokerError):
    """The state's epoch is older than the coordinator's (share groups)."""

    code = ErrorCode.FENCED_STATE_EPOCH


class InvalidVoterKeyError(BrokerError):
    """The voter's key is not the receiver's (KRaft)."""

    code = ErrorCode.INVALID_VOTER_KEY


class DuplicateVoterError(BrokerError):
    """The voter set has the voter already (KRaft)."""

    code = ErrorCode.DUPLICATE_VOTER


class VoterNotFoundError(BrokerError):
    """The voter set does not have the voter (KRaft)."""

    code = ErrorCode.VOTER_NOT_FOUND


BY_CODE: Final[dict[int, type[BrokerError]]] = {
    -1: UnknownServerError,
    1: OffsetOutOfRangeError,
    2: CorruptMessageError,
    3: UnknownTopicOrPartitionError,
    4: InvalidFetchSizeError,
    5: LeaderNotAvailableError,
    6: NotLeaderOrFollowerError,
    7: RequestTimedOutError,
    8: BrokerNotAvailableError,
    9: ReplicaNotAvailableError,
    10: MessageTooLargeError,
    11: StaleControllerEpochError,
    12: OffsetMetadataTooLargeError,
    13: NetworkError,
    14: CoordinatorLoadInProgressError,
    15: CoordinatorNotAvailableError,
    16: NotCoordinatorError,
    17: InvalidTopicError,
    18: RecordListTooLargeError,
    19: NotEnoughReplicasError,
    20: NotEnoughReplicasAfterAppendError,
    21: InvalidRequiredAcksError,
    22: IllegalGenerationError,
    23: InconsistentGroupProtocolError,
    24: InvalidGroupIdError,
    25: UnknownMemberIdError,
    26: InvalidSessionTimeoutError,
    27: RebalanceInProgressError,
    28: InvalidCommitOffsetSizeError,
    29: TopicAuthorizationFailedError,
    30: GroupAuthorizationFailedError,
    31: ClusterAuthorizationFailedError,
    32: InvalidTimestampError,
    33: UnsupportedSaslMechanismError,
    34: IllegalSaslStateError,
    35: UnsupportedVersionError,
    36: TopicAlreadyExistsError,
    37: InvalidPartitionsError,
    38: InvalidReplicationFactorError,
    39: InvalidReplicaAssignmentError,
    40: InvalidConfigError,
    41: NotControllerError,
    42: InvalidRequestError,
    43: UnsupportedForMessageFormatError,
    44: PolicyViolationError,
    45: OutOfOrderSequenceNumberError,
    46: DuplicateSequenceNumberError,
    47: InvalidProducerEpochError,
    48: InvalidTxnStateError,
    49: InvalidProducerIdMappingError,
    50: InvalidTransactionTimeoutError,
    51: ConcurrentTransactionsError,
    52: TransactionCoordinatorFencedError,
    53: TransactionalIdAuthorizationFailedError,
    54: SecurityDisabledError,
    55: OperationNotAttemptedError,
    56: KafkaStorageError,
    57: LogDirNotFoundError,
    58: SaslAuthenticationFailedError,
    59: UnknownProducerIdError,
    60: ReassignmentInProgressError,
    61: DelegationTokenAuthDisabledError,
    62: DelegationTokenNotFoundError,
    63: DelegationTokenOwnerMismatchError,
    64: DelegationTokenRequestNotAllowedError,
    65: DelegationTokenAuthorizationFailedError,
    66: DelegationTokenExpiredError,
    67: InvalidPrincipalTypeError,
    68: NonEmptyGroupError,
    69: GroupIdNotFoundError,
    70: FetchSessionIdNotFoundError,
    71: InvalidFetchSessionEpochError,
    72: ListenerNotFoundError,
    73: TopicDeletionDisabledError,
    74: FencedLeaderEpochError,
    75: UnknownLeaderEpochError,
    76: UnsupportedCompressionTypeError,
    77: StaleBrokerEpochError,
    78: OffsetNotAvailableError,
    79: MemberIdRequiredError,
    80: PreferredLeaderNotAvailableError,
    81: GroupMaxSizeReachedError,
    82: FencedInstanceIdError,
    83: EligibleLeadersNotAvailableError,
    84: ElectionNotNeededError,
    85: NoReassignmentInProgressError,
    86: GroupSubscribedToTopicError,
    87: InvalidRecordError,
    88: UnstableOffsetCommitError,
    89: ThrottlingQuotaExceededError,
    90: ProducerFencedError,
    91: ResourceNotFoundError,
    92: DuplicateResourceError,
    93: UnacceptableCredentialError,
    94: InconsistentVoterSetError,
    95: InvalidUpdateVersionError,
    96: FeatureUpdateFailedError,
    97: PrincipalDeserializationFailureError,
    98: SnapshotNotFoundError,
    99: PositionOutOfRangeError,
    100: UnknownTopicIdError,
    101: DuplicateBrokerRegistrationError,
    102: BrokerIdNotRegisteredError,
    103: InconsistentTopicIdError,
    104: InconsistentClusterIdError,
    105: TransactionalIdNotFoundError,
    106: FetchSessionTopicIdError,
    107: IneligibleReplicaError,
    108: NewLeaderElectedError,
    109: OffsetMovedToTieredStorageError,
    110: FencedMemberEpochError,
    111: UnreleasedInstanceIdError,
    112: UnsupportedAssignorError,
    113: StaleMemberEpochError,
    114: MismatchedEndpointTypeError,
    115: UnsupportedEndpointTypeError,
    116: UnknownControllerIdError,
    117: UnknownSubscriptionIdError,
    118: TelemetryTooLargeError,
    119: InvalidRegistrationError,
    120: TransactionAbortableError,
    121: InvalidRecordStateError,
    122: ShareSessionNotFoundError,
    123: InvalidShareSessionEpochError,
    124: FencedStateEpochError,
    125: InvalidVoterKeyError,
    126: DuplicateVoterError,
    127: VoterNotFoundError,
}
