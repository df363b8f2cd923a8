"""The plan of a resource, and its steps: planners return them, `step_executor` executes them.

`str(step)` describes a step in log lines, Events and conditions. Each step is idempotent and may be
interrupted: the next reconciliation observes its effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ottla.security.acls import AclBinding
from ottla_operator.conditions import Finding
from ottla_operator.planning.certificates import Lifetime, Pair
from ottla_operator.planning.observed import PartitionKey, QuotaEntity
from ottla_operator.planning.pipeline_config import DriverLaunch
from ottla_operator.resources import AnyResource
from ottla_operator.resources.common import Status

Assignment = Mapping[PartitionKey, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class EnsureZooKeeper:
    def __str__(self) -> str:
        return "start ZooKeeper"


@dataclass(frozen=True, slots=True)
class StopZooKeeper:
    def __str__(self) -> str:
        return "stop ZooKeeper"


@dataclass(frozen=True, slots=True)
class StartBroker:
    """Start a stopped broker, on the target revision or on its previous one.

    A broker that crashed outside its turn in a roll starts on its previous revision, as a container in its
    pod does.
    """

    broker: int
    on_target: bool = True

    def __str__(self) -> str:
        return f"start broker {self.broker}" + ("" if self.on_target else " on its previous revision")


@dataclass(frozen=True, slots=True)
class StopBroker:
    """Shut a broker down; one that is bounced is started again on the target revision."""

    broker: int
    reason: str
    bounce: bool = False

    def __str__(self) -> str:
        return f"stop broker {self.broker}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RemoveBroker:
    """Remove the objects of a stopped broker, with its volume if `delete_volume`."""

    broker: int
    delete_volume: bool

    def __str__(self) -> str:
        return f"remove broker {self.broker}" + (" and its volume" if self.delete_volume else "")


@dataclass(frozen=True, slots=True)
class ReplaceBroker:
    """Delete a broker's volume; the broker starts with an empty one under its id and fetches its replicas
    again."""

    broker: int
    reason: str

    def __str__(self) -> str:
        return f"replace the volume of broker {self.broker} by an empty one: {self.reason}"


@dataclass(frozen=True, slots=True)
class Reassign:
    assignment: Assignment
    reason: str

    def __str__(self) -> str:
        return f"reassign {len(self.assignment)} partitions: {self.reason}"


@dataclass(frozen=True, slots=True)
class CancelReassign:
    """Take partitions back to the replicas that they had before their reassignment."""

    partitions: Sequence[PartitionKey]
    reason: str

    def __str__(self) -> str:
        return f"cancel the reassignment of {len(self.partitions)} partitions: {self.reason}"


@dataclass(frozen=True, slots=True)
class MoveReplicas:
    """Move replicas between log directories of their broker."""

    broker: int
    log_dirs: Mapping[PartitionKey, str]
    """The new log directory of each replica."""
    reason: str

    def __str__(self) -> str:
        return f"move {len(self.log_dirs)} replicas of broker {self.broker} {self.reason}"


@dataclass(frozen=True, slots=True)
class ElectPreferredLeaders:
    partitions: Sequence[PartitionKey]

    def __str__(self) -> str:
        return f"elect the preferred leaders of {len(self.partitions)} partitions"


@dataclass(frozen=True, slots=True)
class CreateTopic:
    topic: str
    partitions: int
    replicas: int
    config: Mapping[str, str] = field(default_factory=dict)
    assignment: Mapping[int, tuple[int, ...]] | None = None

    def __str__(self) -> str:
        return f"create topic {self.topic} with {self.partitions} partitions of {self.replicas} replicas"


@dataclass(frozen=True, slots=True)
class AlterTopicConfig:
    topic: str
    set_: Mapping[str, str]
    delete: Sequence[str]

    def __str__(self) -> str:
        return f"alter topic {self.topic}: {_changes(self.set_, self.delete)}"


@dataclass(frozen=True, slots=True)
class AlterBrokerSettings:
    """Alter the cluster-wide dynamic broker settings."""

    set_: Mapping[str, str]
    delete: Sequence[str]

    def __str__(self) -> str:
        return f"alter the brokers' settings: {_changes(self.set_, self.delete)}"


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    topic: str
    total: int
    assignment: Sequence[tuple[int, ...]] | None = None

    def __str__(self) -> str:
        return f"increase topic {self.topic} to {self.total} partitions"


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    topic: str

    def __str__(self) -> str:
        return f"delete topic {self.topic}"


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    group: str

    def __str__(self) -> str:
        return f"delete the offsets of group {self.group}"


@dataclass(frozen=True, slots=True)
class ResetOffsets:
    group: str
    offsets: Mapping[PartitionKey, int]
    live: bool = False
    """Reset a group with members, too; the step removes them."""

    def __str__(self) -> str:
        return f"reset the offsets of group {self.group} in {len(self.offsets)} partitions"


@dataclass(frozen=True, slots=True)
class AlterQuota:
    entity: QuotaEntity
    set_: Mapping[str, float]
    delete: Sequence[str]

    def __str__(self) -> str:
        user, client = self.entity
        named = [f"user {user}"] if user is not None else []
        named += [f"client {client}"] if client is not None else []
        changes = [f"{name}={value:g}" for name, value in self.set_.items()]
        return f"alter the quotas of {', '.join(named)}: " + ", ".join(
            changes + [f"remove {name}" for name in self.delete]
        )


@dataclass(frozen=True, slots=True)
class PutPassword:
    """Write a user's Secret for SCRAM, with this password or with a generated one."""

    secret: str
    user: str
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        what = "a new password" if self.password is None else "the password"
        return f"write {what} of {self.user} to Secret {self.secret}"


@dataclass(frozen=True, slots=True)
class PutCertificate:
    """Write a user's Secret for TLS: a new key, and a certificate that the authority signs."""

    secret: str
    user: str
    reason: str
    authority: Pair = field(repr=False)
    lifetime: Lifetime = field(default_factory=Lifetime)

    def __str__(self) -> str:
        return f"issue a certificate for {self.user} into Secret {self.secret}: {self.reason}"


@dataclass(frozen=True, slots=True)
class DeleteSecret:
    secret: str

    def __str__(self) -> str:
        return f"delete Secret {self.secret}"


@dataclass(frozen=True, slots=True)
class SetScramCredential:
    """Of mechanism SCRAM-SHA-512."""

    user: str
    iterations: int
    password: str = field(repr=False)

    def __str__(self) -> str:
        return f"set the SCRAM credential of {self.user}"


@dataclass(frozen=True, slots=True)
class DeleteScramCredential:
    """Of mechanism SCRAM-SHA-512."""

    user: str

    def __str__(self) -> str:
        return f"delete the SCRAM credential of {self.user}"


@dataclass(frozen=True, slots=True)
class CreateAcls:
    bindings: Sequence[AclBinding]

    def __str__(self) -> str:
        return f"add {_acls(self.bindings)}"


@dataclass(frozen=True, slots=True)
class DeleteAcls:
    bindings: Sequence[AclBinding]

    def __str__(self) -> str:
        return f"remove {_acls(self.bindings)}"


@dataclass(frozen=True, slots=True)
class StartDriver:
    """Start a pipeline's stopped driver."""

    pipeline: str

    def __str__(self) -> str:
        return f"start the driver of {self.pipeline}"


@dataclass(frozen=True, slots=True)
class StopDriver:
    """Stop a pipeline's driver after its batch; with `again`, it is started on the target revision."""

    pipeline: str
    reason: str
    again: bool = False

    def __str__(self) -> str:
        return f"stop the driver of {self.pipeline}: {self.reason}"


def _changes(set_: Mapping[str, str], delete: Sequence[str]) -> str:
    return ", ".join(
        [*(f"{name}={value}" for name, value in set_.items()), *(f"{name} to default" for name in delete)]
    )


def _acls(bindings: Sequence[AclBinding]) -> str:
    """`2 ACLs of User:alice`"""
    principals = ", ".join(sorted({binding.entry.principal for binding in bindings}))
    return f"{len(bindings)} ACL{'s' if len(bindings) != 1 else ''} of {principals}"


@dataclass(frozen=True, slots=True)
class PutConnector:
    """Create a connector in this state, or change its configuration."""

    connector: str
    config: Mapping[str, str]
    state: str
    is_new: bool

    def __str__(self) -> str:
        return f"{'create' if self.is_new else 'configure'} connector {self.connector}"


@dataclass(frozen=True, slots=True)
class ChangeConnectorState:
    connector: str
    state: str
    """running, paused or stopped."""

    def __str__(self) -> str:
        return f"change connector {self.connector} to {self.state}"


@dataclass(frozen=True, slots=True)
class RestartConnector:
    """Restart a connector and its tasks (KIP-745)."""

    connector: str
    reason: str
    only_failed: bool

    def __str__(self) -> str:
        what = "what has failed of connector" if self.only_failed else "connector"
        return f"restart {what} {self.connector}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RestartTask:
    connector: str
    task: int

    def __str__(self) -> str:
        return f"restart task {self.task} of connector {self.connector}"


@dataclass(frozen=True, slots=True)
class ChangeOffsets:
    """Alter offsets of a stopped connector, or remove all of them (KIP-875)."""

    connector: str
    offsets: Sequence[Mapping[str, Any]] | None
    """Pairs of partition and offset; None: all are removed."""

    def __str__(self) -> str:
        if self.offsets is None:
            return f"reset the offsets of connector {self.connector}"
        return f"alter {len(self.offsets)} offsets of connector {self.connector}"


@dataclass(frozen=True, slots=True)
class DeleteConnector:
    connector: str

    def __str__(self) -> str:
        return f"delete connector {self.connector}"


AccessStep = SetScramCredential | DeleteScramCredential | CreateAcls | DeleteAcls
SecretStep = PutPassword | PutCertificate | DeleteSecret
UserStep = SecretStep | AccessStep
DriverStep = StartDriver | StopDriver
ConnectorStep = (
    PutConnector | ChangeConnectorState | RestartConnector | RestartTask | ChangeOffsets | DeleteConnector
)
ClusterStep = (
    EnsureZooKeeper
    | StopZooKeeper
    | StartBroker
    | StopBroker
    | RemoveBroker
    | ReplaceBroker
    | Reassign
    | CancelReassign
    | MoveReplicas
    | ElectPreferredLeaders
    | AlterBrokerSettings
    | AlterQuota
)
ResourceStep = (
    CreateTopic
    | AlterTopicConfig
    | CreatePartitions
    | DeleteTopic
    | DeleteGroup
    | ResetOffsets
    | AlterQuota
    | Reassign
    | UserStep
)
Step = ClusterStep | ResourceStep | DriverStep | ConnectorStep
KafkaStep = (
    CreateTopic
    | AlterTopicConfig
    | CreatePartitions
    | DeleteTopic
    | DeleteGroup
    | ResetOffsets
    | Reassign
    | CancelReassign
    | MoveReplicas
    | ElectPreferredLeaders
    | AlterBrokerSettings
    | AlterQuota
    | AccessStep
)
"""What the Admin API does."""

StatusT_co = TypeVar("StatusT_co", bound=Status, covariant=True)


@dataclass(frozen=True, slots=True)
class ResourcePlan(Generic[StatusT_co]):
    """What one reconciliation does for a resource: its next steps, conditions and status."""

    resource: AnyResource
    findings: Sequence[Finding]
    status: StatusT_co
    steps: Sequence[Step] = ()
    deletion_complete: bool = False
    """Of a deletion: the finalizer can be removed."""
    keep_status: bool = False
    """The cluster cannot be observed: the status stays, unless the spec has changed or there is no status
    yet."""
    status_when_done: StatusT_co | None = None
    """Replaces `status` when all steps succeeded."""
    moves: Assignment = field(default_factory=dict)
    """Of a Topic: all planned reassignments, including later batches."""
    warnings: Sequence[str] = ()
    """Warnings about the spec that depend on what is observed."""
    launch: DriverLaunch | None = None
    """Of a Pipeline: the configuration to run its driver with; None when no driver should run."""
