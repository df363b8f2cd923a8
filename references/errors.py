"""errors.md: Kafka's error codes, the reasons of conditions, and exit codes.

The codes are those of `ottla.protocol.errors`; a code is answered if the broker's source names it. Reasons are found in the
operator's source. A code that is answered, or a reason that is found, needs a text here, and each text needs one of
those: the generation fails otherwise.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ottla.protocol.errors import ErrorCode
from references.markdown import code, plain, table

_ROOT: Final = Path(__file__).parents[1]
_BROKER: Final = ("controller", "coordinators", "metadata", "quotas", "replication", "server", "storage")
_OPERATOR: Final = _ROOT / "operator/ottla_operator"
_RETRY: Final = "Clients try again by themselves."

ACTIONS: Final = {
    "UNKNOWN_SERVER_ERROR": "Look for the exception in the broker's log, and report it.",
    "NONE": "",
    "OFFSET_OUT_OF_RANGE": "Consumers continue by `auto.offset.reset`. If it comes often, retention is shorter than the consumers' lag.",
    "CORRUPT_MESSAGE": "Once: the network or the client. Again and again for one partition: `ottla log check` on its replicas.",
    "UNKNOWN_TOPIC_OR_PARTITION": "Clients update their metadata. If it stays: the topic does not exist, or its creation is not complete.",
    "INVALID_FETCH_SIZE": "Correct the client.",
    "LEADER_NOT_AVAILABLE": "Clients try again; also while a topic is created automatically. If it stays, see [offline partitions](../operations/troubleshooting.md#a-partition-has-no-leader).",
    "NOT_LEADER_OR_FOLLOWER": "Clients update their metadata and ask the leader.",
    "REQUEST_TIMED_OUT": "Produce: replicas did not confirm in time, and the records may be there. Look for slow or missing followers.",
    "BROKER_NOT_AVAILABLE": "The broker is starting or has no controller yet; wait.",
    "REPLICA_NOT_AVAILABLE": "Clients update their metadata.",
    "MESSAGE_TOO_LARGE": "Raise `max.message.bytes` of the topic, or lower `max.request.size` and `batch.size`.",
    "STALE_CONTROLLER_EPOCH": "Between brokers; the old controller resigns.",
    "OFFSET_METADATA_TOO_LARGE": "Commit shorter metadata, or raise `offset.metadata.max.bytes`.",
    "NETWORK_EXCEPTION": "Made by clients and between brokers, when a connection ended.",
    "COORDINATOR_LOAD_IN_PROGRESS": _RETRY,
    "COORDINATOR_NOT_AVAILABLE": "Clients try again. If it stays: `__consumer_offsets` or `__transaction_state` has no leader, or cannot be created because `offsets.topic.replication.factor` is above the number of brokers.",
    "NOT_COORDINATOR": "Clients look for the coordinator again.",
    "INVALID_TOPIC_EXCEPTION": "Use letters, digits, `.`, `_` and `-`, at most 249; clients cannot write to internal topics.",
    "RECORD_LIST_TOO_LARGE": "Send smaller batches, or raise `segment.bytes`.",
    "NOT_ENOUGH_REPLICAS": "Clients try again. Bring the missing brokers back; see [troubleshooting](../operations/troubleshooting.md#writes-fail-with-not_enough_replicas).",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "As NOT_ENOUGH_REPLICAS; the records were appended, and a repetition without idempotence duplicates them.",
    "INVALID_REQUIRED_ACKS": "Correct `acks`.",
    "ILLEGAL_GENERATION": "The member rejoins; a commit of the old generation is rejected. Process records faster, or raise `max.poll.interval.ms`.",
    "INCONSISTENT_GROUP_PROTOCOL": "Give all members a common `partition.assignment.strategy`.",
    "INVALID_GROUP_ID": "Set `group.id`.",
    "UNKNOWN_MEMBER_ID": "The member rejoins: it was removed after `session.timeout.ms` or `max.poll.interval.ms`.",
    "INVALID_SESSION_TIMEOUT": "Use a value between `group.min.session.timeout.ms` and `group.max.session.timeout.ms`.",
    "REBALANCE_IN_PROGRESS": "The member rejoins.",
    "INVALID_COMMIT_OFFSET_SIZE": "Commit fewer partitions at a time.",
    "TOPIC_AUTHORIZATION_FAILED": "Add an ACL: `ottla acls add --topic NAME --operation read --allow User:NAME`. The denial is in `kafka.authorizer.logger`.",
    "GROUP_AUTHORIZATION_FAILED": "Add an ACL: `ottla acls add --group NAME --operation read --allow User:NAME`.",
    "CLUSTER_AUTHORIZATION_FAILED": "Add an ACL of the cluster, or a super user. Between brokers: brokers must be `super.users`.",
    "INVALID_TIMESTAMP": "Correct the producer's clock, or `message.timestamp.before.max.ms` and `.after.max.ms` of the topic.",
    "UNSUPPORTED_SASL_MECHANISM": "Use one of `sasl.enabled.mechanisms` of the listener.",
    "ILLEGAL_SASL_STATE": "Correct the client: it sends requests before its authentication, or twice.",
    "UNSUPPORTED_VERSION": "Use a client that negotiates versions (ApiVersions). KRaft's APIs are not served.",
    "TOPIC_ALREADY_EXISTS": "",
    "INVALID_PARTITIONS": "Partitions can only be added.",
    "INVALID_REPLICATION_FACTOR": "Start more brokers, or lower the factor.",
    "INVALID_REPLICA_ASSIGNMENT": "Name live brokers, each once.",
    "INVALID_CONFIG": "The message has the setting and the allowed values; see [settings](settings.md).",
    "NOT_CONTROLLER": "Admin clients look for the controller again.",
    "INVALID_REQUEST": "The message has the reason. More than 10,000 items of one change are refused, too ([limits](limits.md)).",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": "An old format has no timestamps, headers or transactions.",
    "POLICY_VIOLATION": "The message is that of the [policy](../guides/security.md#policies-for-new-topics-and-changed-settings).",
    "OUT_OF_ORDER_SEQUENCE_NUMBER": "The producer starts a new epoch, or fails. Records before it were lost or removed: look for an unclean election.",
    "INVALID_PRODUCER_EPOCH": "Another producer has the same `transactional.id`: stop one of them.",
    "INVALID_TXN_STATE": "Abort the transaction; the client's calls are in the wrong order.",
    "INVALID_PRODUCER_ID_MAPPING": "Create the producer again: the id expired (`transactional.id.expiration.ms`).",
    "INVALID_TRANSACTION_TIMEOUT": "Lower `transaction.timeout.ms`, or raise `transaction.max.timeout.ms`.",
    "CONCURRENT_TRANSACTIONS": _RETRY,
    "TRANSACTION_COORDINATOR_FENCED": "Between brokers; the new coordinator writes the marker.",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "Add an ACL: `ottla acls add --transactional-id NAME --operation write --allow User:NAME`.",
    "SECURITY_DISABLED": "Set `authorizer.class.name`, on Kubernetes `spec.authorization`.",
    "OPERATION_NOT_ATTEMPTED": "Repair the other item of the request.",
    "KAFKA_STORAGE_ERROR": "A log directory has failed: see [the broker's disk](../operations/disaster-recovery.md#a-broker-loses-its-disk).",
    "LOG_DIR_NOT_FOUND": "Name a directory of `log.dirs`: `ottla cluster disks`.",
    "SASL_AUTHENTICATION_FAILED": "Check user, password and mechanism; the broker's log has the reason.",
    "REASSIGNMENT_IN_PROGRESS": "Wait, or cancel it: `ottla reassign cancel`.",
    "DELEGATION_TOKEN_AUTH_DISABLED": "Set `delegation.token.secret.key` on all brokers.",
    "DELEGATION_TOKEN_NOT_FOUND": "",
    "DELEGATION_TOKEN_OWNER_MISMATCH": "Use the token's owner or one of its renewers.",
    "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED": "Use a connection that was authenticated, and not by a token.",
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED": "Add an ACL of the token.",
    "DELEGATION_TOKEN_EXPIRED": "Create a new token.",
    "INVALID_PRINCIPAL_TYPE": "Use `User:`.",
    "NON_EMPTY_GROUP": "Stop the members first. `ottla groups reset --live` does not need it.",
    "GROUP_ID_NOT_FOUND": "",
    "FETCH_SESSION_ID_NOT_FOUND": _RETRY,
    "INVALID_FETCH_SESSION_EPOCH": _RETRY,
    "LISTENER_NOT_FOUND": "Give all brokers the same listeners.",
    "TOPIC_DELETION_DISABLED": "Set `delete.topic.enable`.",
    "FENCED_LEADER_EPOCH": "Clients update their metadata.",
    "UNKNOWN_LEADER_EPOCH": _RETRY,
    "UNSUPPORTED_COMPRESSION_TYPE": "Use a newer client, or another codec.",
    "STALE_BROKER_EPOCH": "Between brokers.",
    "OFFSET_NOT_AVAILABLE": _RETRY,
    "MEMBER_ID_REQUIRED": "Clients do this by themselves (KIP-394).",
    "PREFERRED_LEADER_NOT_AVAILABLE": "Wait until the broker is in sync.",
    "GROUP_MAX_SIZE_REACHED": "Start fewer members, or raise `group.max.size`.",
    "FENCED_INSTANCE_ID": "Two members have the same `group.instance.id`: stop one of them.",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE": "Bring a replica of the ISR back, or elect an unclean leader, with loss of data.",
    "ELECTION_NOT_NEEDED": "",
    "NO_REASSIGNMENT_IN_PROGRESS": "",
    "GROUP_SUBSCRIBED_TO_TOPIC": "Stop the members first.",
    "INVALID_RECORD": "The message has the record: a compacted topic needs keys, for example.",
    "UNSTABLE_OFFSET_COMMIT": _RETRY,
    "THROTTLING_QUOTA_EXCEEDED": "Clients wait and try again; `controller_mutation_rate` bounds the changes.",
    "PRODUCER_FENCED": "Another producer has the same `transactional.id`: stop one of them.",
    "RESOURCE_NOT_FOUND": "",
    "DUPLICATE_RESOURCE": "Name each resource once.",
    "UNACCEPTABLE_CREDENTIAL": "Use between 4,096 and 16,384 iterations, and a password.",
    "INVALID_UPDATE_VERSION": "The leader reads the state again.",
    "UNKNOWN_TOPIC_ID": "Clients update their metadata: the topic was deleted, or created again.",
    "BROKER_ID_NOT_REGISTERED": "The broker is not running.",
    "INCONSISTENT_TOPIC_ID": "Clients update their metadata: the topic was created again.",
    "TRANSACTIONAL_ID_NOT_FOUND": "",
    "FETCH_SESSION_TOPIC_ID_ERROR": _RETRY,
    "INELIGIBLE_REPLICA": "Between brokers; the replica joins when its broker runs.",
    "NEW_LEADER_ELECTED": "Between brokers.",
    "UNSUPPORTED_ENDPOINT_TYPE": "Brokers have no controller endpoints; use the brokers' addresses.",
    "TRANSACTION_ABORTABLE": "Abort the transaction and begin it again.",
}
"""What to do about a code."""


class Reason(NamedTuple):
    """A reason of a condition, and what to do."""

    meaning: str
    action: str = ""


REASONS: Final = {
    "AddressPending": Reason(
        "a listener outside of Kubernetes has no address yet",
        "Wait; then look at the Service, Ingress or Route that the message names.",
    ),
    "AllBrokersReady": Reason("the brokers are ready"),
    "AllInSync": Reason("all replicas are in sync"),
    "AllPartitionsOnline": Reason("all partitions have a leader"),
    "AnnotationNotRemoved": Reason(
        "the API server refused a change of a Secret",
        "Give the operator the rights of its chart; the message has the API server's answer.",
    ),
    "Applied": Reason("the resource is applied"),
    "ApplyFailed": Reason(
        "the API server refused an object of the operator",
        "The message has the object and the answer: rights, quotas, an admission webhook.",
    ),
    "Applying": Reason("a change is under way", "Wait."),
    "AsDesired": Reason("the replicas are as desired"),
    "AuditNotRunning": Reason("the Pipeline of the audit does not respond", "Look at the Pipeline."),
    "AuditProblem": Reason("the audit cannot give a verdict", "The message has the reason."),
    "BackupFailed": Reason(
        "the last backup failed",
        "The message has the reason: credentials, bucket, connection. See [backup](../operations/backup.md).",
    ),
    "Blocked": Reason(
        "the replication factor cannot be reached", "Start more brokers, or ask for fewer replicas."
    ),
    "BrokersFenced": Reason(
        "an annotation fences a broker", "`kubectl ottla unfence CLUSTER BROKER` when its files are examined."
    ),
    "BrokersNotReady": Reason(
        "brokers are missing or starting",
        "The message has the reason of each. See [troubleshooting](../operations/troubleshooting.md#a-broker-is-not-ready).",
    ),
    "CatchingUp": Reason(
        "the job has records to read", "Wait, or give it [more executors](../guides/pipeline/scale.md)."
    ),
    "CaughtUp": Reason("the job has read all records"),
    "CertManagerNotAvailable": Reason(
        "cert-manager is not installed", "Install it, or remove the issuer from the spec."
    ),
    "CertificateNotReady": Reason(
        "cert-manager has not issued the certificate yet", "`kubectl describe certificate`."
    ),
    "CertificatesNotSet": Reason(
        "the API server refused a change of ZooKeeper's pods", "The message has the answer."
    ),
    "ClaimNotOwned": Reason("the API server refused a change of a claim", "The message has the answer."),
    "ClusterNotFound": Reason(
        "no BrokerCluster has the name of `clusterRef`", "Create it, or correct the name."
    ),
    "ClusterNotReady": Reason("the brokers cannot be reached yet", "Look at the BrokerCluster."),
    "Complete": Reason("every tier has every record"),
    "Completed": Reason("done"),
    "Configuring": Reason("settings of running brokers are altered", "Wait."),
    "ConnectorFailed": Reason(
        "the connector has failed",
        "The message has the first line of its trace; `kubectl logs` of a worker has all.",
    ),
    "Crashed": Reason("the driver ended and is restarted after a back-off", "Its log has the reason."),
    "Created": Reason("the topic exists as specified"),
    "DeleteFailed": Reason("the API server refused a deletion", "The message has the answer."),
    "Deleting": Reason(
        "the resource is being deleted", "See [removal](../operations/removal.md) if it stays."
    ),
    "DeletionHangs": Reason(
        "an object is being deleted and waits for finalizers of others", "Remove what the message names."
    ),
    "Done": Reason("the offsets are reset"),
    "DowngradeRefused": Reason(
        "an older version cannot read what the present one has written",
        "Go back to the version that the message names.",
    ),
    "DryRun": Reason("the status has the offsets that would be set"),
    "Duplicated": Reason(
        "a tier has records twice", "[The audit's report](../guides/pipeline/audit.md) has their names."
    ),
    "Enforced": Reason("the quota is in force"),
    "ExpiresSoon": Reason("a certificate of your own expires soon", "Replace it in its Secret."),
    "Failed": Reason(
        "the offsets could not be reset", "The message has the reason; a new `requestId` tries again."
    ),
    "FieldsComeBack": Reason(
        "another program sets fields of the operator's objects back",
        "Find the program that the message names; see [edits](../operations/edits.md).",
    ),
    "FolderNotWritable": Reason(
        "`ottla up`: a folder of a pipeline cannot be written", "Change its owner or the path."
    ),
    "GroupActive": Reason(
        "the group has members, so that its offsets are not reset", "Stop them, or reset live."
    ),
    "InternalError": Reason("a bug of the operator", "Its log has the exception; report it."),
    "InvalidCertificate": Reason("a certificate of your own cannot be used", "The message has the reason."),
    "InvalidConfig": Reason("Kafka Connect refused the connector's settings", "The message has the fields."),
    "InvalidKey": Reason("a private key of your own cannot be used", "The message has the reason."),
    "InvalidPassword": Reason("the given password cannot be used", "The message has the reason."),
    "InvalidSecret": Reason("a Secret lacks a file", "The message has its name."),
    "InvalidSpec": Reason(
        "the spec breaks a rule",
        "The message has the field and what is allowed. The cluster runs by its last valid spec. See [specs](../operations/specs.md).",
    ),
    "JobFailed": Reason("the job failed", "The message is the error; the driver's log has all."),
    "KafkaError": Reason("the brokers refused a request of the operator", "The message has Kafka's error."),
    "KeyMismatch": Reason("a key does not belong to its certificate", "Replace both in the Secret."),
    "LabelsNotRestored": Reason("the API server refused a change of labels", "The message has the answer."),
    "LagTooHigh": Reason(
        "the group's lag is above `spec.maxLag`",
        "Look at the members: [lag](../operations/troubleshooting.md#a-consumer-group-falls-behind).",
    ),
    "Measuring": Reason("the loads are being measured", "Wait."),
    "Missing": Reason(
        "a tier lacks records", "[The audit's report](../guides/pipeline/audit.md) has their names."
    ),
    "NamesMissing": Reason(
        "a certificate of your own lacks names of brokers", "Issue it with the names of the message."
    ),
    "NoBrokers": Reason("the cluster has no brokers", "Set `spec.replicas`, or add a BrokerPool."),
    "NoLimit": Reason("the lag is known, `spec.maxLag` is not set"),
    "NoMetrics": Reason("the loads cannot be measured", "Enable `ottla.http.port` on all brokers."),
    "NoSuchGroup": Reason("no member has joined the group yet"),
    "NodesUnknown": Reason("the operator cannot list the nodes", "Give it the rights of its chart."),
    "NotAnswering": Reason("the driver, or Connect's REST API, does not respond", "Its log has the reason."),
    "NotAsked": Reason("the spec leaves this to others"),
    "NotEnoughBrokers": Reason(
        "the cluster has fewer brokers than the topic has replicas",
        "Start more brokers, or ask for fewer replicas.",
    ),
    "NotFailing": Reason("the job does not fail"),
    "NotGenerated": Reason(
        "a new key is asked of an authority that is your own", "Replace it in its Secret."
    ),
    "NotKnown": Reason("no batch has been committed yet", "Wait."),
    "NotObserved": Reason("offsets could not be read", "Look at the BrokerCluster."),
    "NotReadable": Reason("an object cannot be read", "The message has the answer of the API server."),
    "NotReported": Reason("no audit reports this topic", "Configure the topic in the audit."),
    "NotRolling": Reason("no restart is under way"),
    "NotRunning": Reason("the connector is paused, stopped or unassigned", "The message has its state."),
    "NotScaling": Reason("no broker is added or removed"),
    "NotSupported": Reason(
        "the cluster does not support what the spec asks for", "The message has the field."
    ),
    "NotYetValid": Reason("a certificate of your own begins later", "Wait, or replace it."),
    "Observed": Reason("the group is observed"),
    "Outdated": Reason(
        "brokers or ZooKeeper servers run an older revision", "Rolling has what they wait for."
    ),
    "PartitionsOffline": Reason(
        "partitions have no leader",
        "[Troubleshooting](../operations/troubleshooting.md#a-partition-has-no-leader).",
    ),
    "Pending": Reason("nothing is known yet", "Wait."),
    "PodRefused": Reason(
        "the API server would refuse the new pod, so that none is stopped",
        "Correct what the message names: service account, priority class, policy.",
    ),
    "PoolInvalid": Reason("a BrokerPool of the cluster has an invalid spec", "Correct the BrokerPool."),
    "PoolPaused": Reason(
        "the BrokerPool is paused", "Remove its annotation `ottla.dev/pause-reconciliation`."
    ),
    "PortInUse": Reason("`ottla up`: another program has the port", "Use `--port`."),
    "Progressing": Reason("changes are under way", "Wait."),
    "RackNotTold": Reason("the API server refused an annotation of a pod", "The message has the answer."),
    "Ready": Reason("ready"),
    "Reassigning": Reason("replicas are moved", "Wait; `ottla reassign list`."),
    "Recovering": Reason("the cluster is filled from a backup", "Wait."),
    "RecoveryFailed": Reason(
        "the backup could not be restored",
        "The message has the reason; the operator tries again. See [backup](../operations/backup.md).",
    ),
    "RecoveryRefused": Reason(
        "the cluster is not empty, so that no backup is restored", "Use an empty cluster."
    ),
    "RecreateFailed": Reason(
        "a StatefulSet could not be created again around its pods", "The message has the answer."
    ),
    "ReplacingBroker": Reason(
        "a broker with a lost volume gets an empty one", "Wait: its replicas are copied from the others."
    ),
    "Resetting": Reason("the offsets are being reset", "Wait."),
    "ResourceConflict": Reason(
        "an older resource manages the same topic, user or quota", "Delete one of the two."
    ),
    "RollStalled": Reason(
        "a broker or server does not come up on the new revision",
        "Take the change back, or correct it. See [rolls](../operations/rolls.md#a-roll-that-does-not-begin-or-stops).",
    ),
    "Rolling": Reason("brokers, servers or workers are restarted one by one", "Wait."),
    "Running": Reason("runs"),
    "ScaleDown": Reason("brokers are emptied and removed", "Wait."),
    "ScaleFailed": Reason("the API server refused another number of pods", "The message has the answer."),
    "ScaleUp": Reason("brokers are added", "Wait."),
    "SecretConflict": Reason(
        "a Secret of this name exists and belongs to something else", "Delete or rename it."
    ),
    "SecretFailed": Reason("`ottla up`: the folder of a Secret cannot be written", "Change its owner."),
    "SecretNotFound": Reason("there is no such Secret", "Create it."),
    "SparkMissing": Reason("`ottla up`: pipelines need Spark", "`pip install 'ottla[pipeline]'`."),
    "Stalled": Reason("the roll has stopped", "As RollStalled."),
    "Starting": Reason("starting", "Wait."),
    "StillRunning": Reason(
        "a broker that was stopped still runs", "Wait; on Kubernetes look at the pod's finalizers and node."
    ),
    "Stopped": Reason("`spec.replicas` is 0"),
    "StorageClassNotFound": Reason("there is no such StorageClass", "Create it, or correct `storage.class`."),
    "Suspended": Reason("`spec.suspend` is true"),
    "Synced": Reason("as the spec says"),
    "TaskFailed": Reason(
        "a task of the connector has failed", "The message has the first line of its trace."
    ),
    "TasksNotRunning": Reason("tasks of the connector are not assigned yet", "Wait."),
    "UnderReplicated": Reason(
        "replicas are not in sync",
        "[Troubleshooting](../operations/troubleshooting.md#partitions-are-under-replicated).",
    ),
    "UpToDate": Reason("all brokers run the present revision"),
    "UserNotFound": Reason("there is no User of this name", "Create it, or correct the name."),
    "UserNotReady": Reason("the User has no credentials yet", "Look at the User."),
    "Valid": Reason("the spec is valid"),
    "VolumeLost": Reason(
        "a broker's volume is lost, and its partitions are not all in sync elsewhere",
        "[Disaster recovery](../operations/disaster-recovery.md#a-broker-loses-its-disk).",
    ),
    "VolumeNotGrown": Reason(
        "the StorageClass does not let a volume grow", "Set `allowVolumeExpansion`, or move to another pool."
    ),
    "VolumesDiffer": Reason("volumes differ from the spec", "The message has the claims and what to do."),
    "WaitingForBrokers": Reason("brokers that the topic or the recovery needs are starting", "Wait."),
    "WaitingForDeletion": Reason(
        "objects of a deleted BrokerCluster of this name still exist",
        "Wait, or remove what the message names.",
    ),
    "WaitingForOtherClusters": Reason("other clusters roll first", "Wait, or `kubectl ottla roll`."),
    "WaitingForWindow": Reason("restarts wait for a maintenance window", "Wait, or `kubectl ottla roll`."),
    "WithinLimit": Reason("the lag is within `spec.maxLag`"),
    "WorkerFailing": Reason("a worker of Connect does not start", "The message has the reason of each."),
    "ZooKeeperAclsNotSet": Reason(
        "the ACLs of existing nodes could not be set", "The message has ZooKeeper's error."
    ),
    "ZooKeeperFailed": Reason("`ottla up`: ZooKeeper did not start", "`zookeeper.log` in the data folder."),
    "ZooKeeperNotReady": Reason(
        "ZooKeeper has no majority yet",
        "[Troubleshooting](../operations/troubleshooting.md#zookeeper-is-not-ready).",
    ),
}

_EXIT: Final = (
    (
        "`ottla` commands for a cluster",
        "0 success; 1 the cluster rejected the request, or it cannot be executed; 2 invalid command line; 3 no broker responded in time",
    ),
    ("`ottla broker`", "0 stopped by a signal; 1 the start or the broker failed; 2 invalid settings"),
    ("`ottla shell`", "with input from a pipe or file: that of the first command that fails"),
    ("`ottla up --plan`, `kubectl ottla plan`", "0 nothing would change; 1 something would; 2 an error"),
    ("`ottla-pipeline`", "0 the job is done or was stopped; 1 it failed; 2 it could not start"),
    (
        "`ottla-registry`, `ottla console`",
        "0 stopped by a signal; 1 the start failed; 2 invalid command line",
    ),
)

_HEAD: Final = """\
# Errors

## Error codes

The codes of Kafka 3.9 that an Ottla broker answers. *again*: the error is retriable, and clients repeat the request by themselves
within their time-outs. The exceptions of the client library have the [same names](client-api.md#errors).
"""

_CONDITIONS: Final = """\
## Reasons of conditions

The reason of a condition in `status.conditions` of a resource, and of the Events of the operator; `message` has the
details. `kubectl get events --field-selector involvedObject.name=NAME` and `kubectl ottla status` print them.
"""


def pages() -> dict[str, str]:
    answered = set(_answered())
    _require(answered, ACTIONS, "ErrorCode")
    parts = [
        _HEAD,
        table(
            ("code", "name", "again", "means", "what to do"),
            (
                (
                    str(int(each)),
                    code(each.name),
                    "yes" if each.retriable else "",
                    plain(each.message),
                    ACTIONS[each.name],
                )
                for each in ErrorCode
                if each.name in answered
            ),
        ),
        "### Codes that Ottla does not answer\n",
        "They belong to KRaft, to tiered storage, to share groups and to the group protocol of KIP-848, or have no use in Kafka's brokers of 3.9.\n",
        ", ".join(f"{int(each)} `{each.name}`" for each in ErrorCode if each.name not in answered) + "\n",
        _CONDITIONS,
        table(
            ("reason", "of", "means", "what to do"),
            (
                (code(name), ", ".join(sorted(of)), REASONS[name].meaning, REASONS[name].action)
                for name, of in sorted(_reasons().items())
            ),
        ),
        "## Exit codes\n",
        table(("command", "codes"), _EXIT),
    ]
    return {"errors.md": "\n".join(parts)}


def _require(found: set[str], texts: dict[str, str] | dict[str, Reason], what: str) -> None:
    missing, extra = found - texts.keys(), texts.keys() - found
    if missing or extra:
        raise SystemExit(
            f"references/errors.py: {what}: no text for {sorted(missing)}; not in the code: {sorted(extra)}"
        )


def _answered() -> Iterator[str]:
    for folder in _BROKER:
        for path in (_ROOT / "broker/ottla" / folder).rglob("*.py"):
            yield from re.findall(r"ErrorCode\.([A-Z_]+)\b", path.read_text(encoding="utf-8"))


_FINDINGS: Final = {"yes": "True", "no": "False", "unknown": "Unknown"}
_FAILURES: Final = {
    **dict.fromkeys(("Flaw", "_refused"), "CertificatesValid=False"),
    "Hold": "Rolling=False",
    **dict.fromkeys(
        ("StepFailed", "LaunchRefused", "_failure", "_not_ready", "_not_observed", "patch"), "Ready=False"
    ),
}
"""What makes a reason of a failure, and its condition."""
_KINDS: Final = frozenset(("PersistentVolumeClaim", "StatefulSet"))
_CAMEL: Final = re.compile(r"([A-Z][a-z]+){2,}")


def _reasons() -> dict[str, set[str]]:
    """Reason -> condition types with their status, `Ready=False` for failures of steps."""
    found: dict[str, set[str]] = {}
    for path in sorted(_OPERATOR.rglob("*.py")):
        if {"simulation", "kubectl"} & set(path.relative_to(_OPERATOR).parts):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            texts = [each.value if isinstance(each, ast.Constant) else None for each in node.args]
            if name in _FINDINGS and len(texts) > 1:
                if isinstance(texts[1], str) and re.fullmatch("[A-Z][A-Za-z]+", texts[1]):
                    condition = texts[0] if isinstance(texts[0], str) else _condition(path)
                    found.setdefault(texts[1], set()).add(f"{condition}={_FINDINGS[name]}")
            elif name in _FAILURES:
                of = "Ready=False" if path.name == "users.py" else _FAILURES[name]
                for text in texts:
                    if isinstance(text, str) and _CAMEL.fullmatch(text) and text not in _KINDS:
                        found.setdefault(text, set()).add(of)
    _require(set(found), REASONS, "reasons")
    return found


def _condition(path: Path) -> str:
    """The type that a module names by a constant."""
    match = re.search(r'^_?CONDITION(?:: Final)? = "(\w+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else "Ready"
