"""BrokerCluster: brokers and their ZooKeeper, with the policies for restarts, scaling and balancing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from ottla_operator.resources.common import (
    AGE,
    APPROVE_ANNOTATION,
    LISTED_BY_NAME,
    MANAGED_SETTINGS,
    UNMANAGED_SETTINGS,
    ConfigMap,
    Definition,
    Duration,
    FreeForm,
    IntOrString,
    Model,
    Name,
    PrinterColumn,
    Problem,
    Quantity,
    Resource,
    Status,
    TransitionRule,
    UnmanagedSetting,
    condition_column,
    config_texts,
    parse_quantity,
)
from ottla_operator.resources.pods import PodTemplate, pod_problems
from ottla_operator.resources.quota import Limits
from ottla_operator.resources.settings import (
    PROTOCOL_VERSION,
    broker_settings_problems,
    is_connect_string,
    version_problem,
)

# Fields that only have an effect on Kubernetes; `ottla up` accepts and ignores them.
KUBERNETES_ONLY = ("image", "rack", "resources", "template")
# Fields that `ottla up` ignores, too, for a cluster that is not secured.
_WHEN_SECURED = ("clients_ca", "cluster_ca", "listeners")

_ZOOKEEPER_SECURITY = ("zookeeper.set.acl", "zookeeper.ssl.", "zookeeper.clientCnxnSocket")
_AUTHORIZATION_SETTINGS = ("authorizer.class.name", "super.users")


class ListenerAuthentication(Model):
    type: Literal["scram-sha-512", "tls"]


class Listener(Model):
    name: Name
    port: int = Field(ge=1, le=65535)
    type: Literal["internal", "nodeport", "loadbalancer"] = "internal"
    tls: bool = False
    authentication: ListenerAuthentication | None = Field(
        default=None,
        description="How clients authenticate. Without it, clients of the listener are User:ANONYMOUS.",
    )


class Authorization(Model):
    type: Literal["simple"] = Field(description="Kafka's ACLs.")
    super_users: list[str] = Field(
        default_factory=list, description="Names of super users: CN=NAME for a certificate, NAME for SCRAM."
    )


class CertificateAuthority(Model):
    """A certificate authority of the operator. The certificates that it signs have the same validity and
    renewal."""

    validity_days: int = Field(default=365, ge=1, le=36500)
    renewal_days: int = Field(
        default=30, ge=1, description="Days before its expiration that a certificate is renewed."
    )


class Storage(Model):
    size: Quantity | None = None
    storage_class: str | None = Field(default=None, alias="class")
    delete_claim: bool = Field(
        default=False, description="Whether to delete a broker's volume when the broker is removed."
    )


class ManagedZooKeeper(Model):
    replicas: int = Field(default=3, ge=1, le=7)
    storage: Storage = Field(default_factory=Storage)


class ZooKeeper(Model):
    """The cluster's ZooKeeper: an external one, or one that the operator runs (the default)."""

    connect: str | None = Field(default=None, min_length=1, description="host:port[,host:port…][/chroot]")
    managed: ManagedZooKeeper | None = None

    @model_validator(mode="after")
    def _one_of(self) -> ZooKeeper:
        if self.connect is not None and self.managed is not None:
            raise ValueError("connect and managed exclude each other")
        return self


def _zookeeper_servers(spec: BrokerClusterSpec) -> int | None:
    """The number of servers that the operator runs; None for an external ZooKeeper."""
    if spec.zookeeper.connect is not None:
        return None
    return (spec.zookeeper.managed or ManagedZooKeeper()).replicas


def _servers_cel(spec: str) -> str:
    default = ManagedZooKeeper().replicas
    of_others = f"has({spec}.zookeeper) && has({spec}.zookeeper.connect)"
    given = f"has({spec}.zookeeper) && has({spec}.zookeeper.managed)"
    return f"({of_others} ? 0 : ({given} ? {spec}.zookeeper.managed.replicas : {default}))"


# Of three servers, two new ones would be a quorum without the data of the first.
SERVERS_RULE = TransitionRule(
    path="spec.zookeeper.managed.replicas",
    message="zookeeper.managed.replicas is immutable: new servers without data could form a quorum",
    cel=f"{_servers_cel('self')} == {_servers_cel('oldSelf')}",
    allows=lambda old, new: _zookeeper_servers(old) == _zookeeper_servers(new),
)


def _secured_cel(spec: str) -> str:
    one = "(has(l.tls) && l.tls) || has(l.authentication)"
    return f"(has({spec}.authorization) || (has({spec}.listeners) && {spec}.listeners.exists(l, {one})))"


# In a roll between plaintext and TLS on the inter-broker listener, restarted brokers could not reach the
# others.
SECURED_RULE = TransitionRule(
    path="spec.listeners",
    message="tls, authentication and authorization cannot be added to or removed from an existing cluster: "
    "its brokers could not connect to each other during the change",
    cel=f"{_secured_cel('self')} == {_secured_cel('oldSelf')}",
    allows=lambda old, new: old.is_secured == new.is_secured,
)


class Rack(Model):
    topology_key: str = "topology.kubernetes.io/zone"


class DisruptionBudget(Model):
    min_available: IntOrString | None = None
    max_unavailable: IntOrString | None = None
    unhealthy_pod_eviction_policy: Literal["IfHealthyBudget", "AlwaysAllow"] | None = None


class Template(Model):
    pod: PodTemplate = Field(
        default_factory=PodTemplate, description="A pod template that is merged into that of the brokers."
    )
    pod_disruption_budget: DisruptionBudget = Field(default_factory=DisruptionBudget)
    topology_spread_constraints: list[FreeForm] = Field(default_factory=list)


class RollingUpdate(Model):
    strategy: Literal["Auto", "OnApproval"] = "Auto"
    max_unavailable_per_rack: int = Field(
        default=1, ge=1, description="The maximum of unavailable brokers in a rack; never in two racks."
    )
    min_ready_seconds: int = Field(default=3, ge=0, le=3600)
    timeout: Duration = Field(
        default="10m",
        description="How long a restarted broker may take to become ready; after this the roll stops.",
    )
    elect_preferred_leaders: bool = True


class ScaleDown(Model):
    policy: Literal["Drain", "Block", "Force"] = "Drain"


class Rebalance(Model):
    on_scale_up: bool = True
    replication_throttle: Quantity | None = Field(
        default=None,
        description="The throttle of reassignments, in bytes per second and broker. Default: none.",
    )


class BrokerClusterSpec(Model):
    replicas: int = Field(ge=1, le=1000)
    version: str | None = Field(
        default=None,
        pattern=r"^[0-9]+\.[0-9]+(\.[0-9]+)?(-IV[0-9]+)?$",
        description="inter.broker.protocol.version. A new image is rolled out first; when all brokers run "
        "it, a second roll raises the version. It is never lowered.",
    )
    image: str | None = None
    listeners: list[Listener] = Field(default_factory=list, max_length=32)
    authorization: Authorization | None = None
    cluster_ca: CertificateAuthority = Field(
        default_factory=CertificateAuthority, description="The authority of the brokers' certificates."
    )
    clients_ca: CertificateAuthority = Field(
        default_factory=CertificateAuthority, description="The authority of the users' certificates."
    )
    config: ConfigMap = Field(default_factory=dict, description="Kafka's broker settings.")
    storage: Storage = Field(default_factory=Storage)
    zookeeper: ZooKeeper = Field(default_factory=ZooKeeper)
    rack: Rack | None = None
    resources: FreeForm = Field(default_factory=dict)
    template: Template = Field(default_factory=Template)
    rolling_update: RollingUpdate = Field(default_factory=RollingUpdate)
    scale_down: ScaleDown = Field(default_factory=ScaleDown)
    rebalance: Rebalance = Field(default_factory=Rebalance)
    default_quotas: Limits | None = Field(
        default=None,
        description="The default quotas of client ids; removed with this field.",
    )

    @property
    def is_secured(self) -> bool:
        """Whether brokers use mutual TLS between each other."""
        return self.authorization is not None or any(
            listener.tls or listener.authentication is not None for listener in self.listeners
        )


class BrokerStatus(Model):
    id: int
    pod_name: str = ""
    ready: bool = False
    state: str = "Unknown"
    config_hash: str = ""
    version: str = ""
    restart_reasons: list[str] = Field(default_factory=list)
    waiting_for: str = ""


class RolloutStatus(Model):
    id: str
    target_hash: str
    updated: int
    total: int
    started_at: str


class ReassignmentStatus(Model):
    id: str
    reason: str
    moved: int
    total: int
    started_at: str


ReassignPhase = Literal["Waiting", "Moving", "Completed", "Refused"]


class ReassignRequestStatus(Model):
    """The progress of the request in the annotation ottla.dev/reassign."""

    id: str
    phase: ReassignPhase
    message: str = ""
    completed_at: str | None = None


class ThrottleStatus(Model):
    """The replication throttle that the operator sets during a reassignment and removes after it."""

    rate: int | None = Field(
        default=None, description="Bytes per second; none when another tool has set the rate."
    )
    topics: list[str] = Field(default_factory=list)


class UpgradeStatus(Model):
    from_version: str
    to_version: str
    phase: Literal["Binaries", "Protocol"]


class ListenerStatus(Model):
    """A listener's bootstrap servers and certificates, as in Strimzi's status."""

    name: str
    bootstrap_servers: str = ""
    certificates: list[str] = Field(
        default_factory=list, description="The certificates that clients of the listener must trust, in PEM."
    )


class BrokerClusterStatus(Status):
    replicas: int = 0
    ready_replicas: int = 0
    selector: str = ""
    cluster_id: str = ""
    controller_id: int = -1
    version: str = ""
    bootstrap_servers: str = ""
    listeners: list[ListenerStatus] = Field(default_factory=list)
    under_replicated_partitions: int = 0
    under_min_isr_partitions: int = 0
    offline_partitions: int = 0
    brokers: list[BrokerStatus] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
    )
    rollout: RolloutStatus | None = None
    handled_restarts: list[str] = Field(
        default_factory=list,
        description="Requested restarts that the operator has taken up, the latest last. Each value causes "
        "one rolling restart; removing a request, or setting it back to one of these, causes none.",
    )
    reassignment: ReassignmentStatus | None = None
    reassign_request: ReassignRequestStatus | None = None
    throttle: ThrottleStatus | None = None
    upgrade: UpgradeStatus | None = None
    default_quotas: Limits | None = Field(
        default=None, description="The default quotas that the operator has set and must remove."
    )
    managed_settings: list[str] = Field(default_factory=list, description=MANAGED_SETTINGS)
    unmanaged_settings: list[UnmanagedSetting] = Field(
        default_factory=list, description=UNMANAGED_SETTINGS, json_schema_extra=LISTED_BY_NAME
    )


class BrokerCluster(Resource[BrokerClusterSpec, BrokerClusterStatus]):
    definition: ClassVar[Definition] = Definition(
        kind="BrokerCluster",
        plural="brokerclusters",
        short_names=("bc",),
        condition_types=("Ready", "Available", "FullyReplicated", "ConfigApplied", "Rolling", "Scaling"),
        columns=(
            condition_column("Ready", "Ready"),
            PrinterColumn("Desired", "integer", ".spec.replicas"),
            PrinterColumn("Brokers", "integer", ".status.readyReplicas"),
            PrinterColumn("Controller", "integer", ".status.controllerId"),
            PrinterColumn("URP", "integer", ".status.underReplicatedPartitions"),
            PrinterColumn("Version", "string", ".status.version"),
            condition_column("Status", "Ready", "reason"),
            AGE,
            PrinterColumn("UnderMinISR", "integer", ".status.underMinIsrPartitions", 1),
            PrinterColumn("Rollout", "string", ".status.rollout.targetHash", 1),
        ),
        transition_rules=(SERVERS_RULE, SECURED_RULE),
        scale={
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    )

    kind: Literal["BrokerCluster"]
    status: BrokerClusterStatus = Field(default_factory=BrokerClusterStatus)

    def may_roll_to(self, revision: str) -> bool:
        """Whether the strategy allows a roll to this revision. An approval names one or several."""
        approved = self.metadata.annotations.get(APPROVE_ANNOTATION, "")
        return self.spec.rolling_update.strategy == "Auto" or revision in approved.split(",")

    def problems(self) -> Iterator[Problem]:
        problems, _ = broker_settings_problems(config_texts(self.spec.config))
        for name, message in problems:
            yield Problem(f"spec.config[{name}]", message)
        if self.spec.version is not None:
            problem = version_problem(self.spec.version)
            if problem:
                yield Problem("spec.version", problem)
            if PROTOCOL_VERSION in self.spec.config:
                yield Problem(
                    "spec.version", f"spec.version and {PROTOCOL_VERSION} in spec.config exclude each other"
                )
        connect = self.spec.zookeeper.connect
        if connect is not None and not is_connect_string(connect):
            yield Problem(
                "spec.zookeeper.connect",
                f"{connect!r} is not allowed: must be HOST:PORT[,HOST:PORT…][/chroot]",
            )
        for name in self.spec.config if connect is None else ():
            if name.startswith(_ZOOKEEPER_SECURITY):
                message = "is set by the operator for its own ZooKeeper; it is allowed with zookeeper.connect"
                yield Problem(f"spec.config[{name}]", message)
        yield from self._security_problems()
        yield from pod_problems(self.spec.template.pod, "spec.template.pod", "broker")
        quantities = (
            ("spec.storage.size", self.spec.storage.size),
            ("spec.rebalance.replicationThrottle", self.spec.rebalance.replication_throttle),
        )
        for path, quantity in quantities:
            if quantity is not None and parse_quantity(quantity) is None:
                yield Problem(
                    path, f"{quantity!r} is not a quantity; allowed: a number, optionally with Ki, Mi, Gi, …"
                )

    def _security_problems(self) -> Iterator[Problem]:
        for n, listener in enumerate(self.spec.listeners):
            if (
                listener.authentication is not None
                and listener.authentication.type == "tls"
                and not listener.tls
            ):
                yield Problem(
                    f"spec.listeners[{n}].authentication.type", "tls requires tls: true on the listener"
                )
        for path, authority in (
            ("spec.clusterCa", self.spec.cluster_ca),
            ("spec.clientsCa", self.spec.clients_ca),
        ):
            if authority.renewal_days >= authority.validity_days:
                yield Problem(
                    f"{path}.renewalDays",
                    f"{authority.renewal_days} is not allowed: must be below validityDays, which is "
                    f"{authority.validity_days}",
                )
        if self.spec.authorization is None:
            return
        for n, user in enumerate(self.spec.authorization.super_users):
            if not user.strip() or ";" in user:
                yield Problem(
                    f"spec.authorization.superUsers[{n}]", f"{user!r} is not allowed: a name, without ;"
                )
        for name in _AUTHORIZATION_SETTINGS:
            if name in self.spec.config:
                yield Problem(f"spec.config[{name}]", "is set by the operator: from spec.authorization")

    def notes(self) -> Iterator[str]:
        ignored = KUBERNETES_ONLY if self.spec.is_secured else sorted((*KUBERNETES_ONLY, *_WHEN_SECURED))
        for name in ignored:
            if name in self.spec.model_fields_set:
                alias = type(self.spec).model_fields[name].alias or name
                yield f"spec.{alias} has an effect on Kubernetes only and is ignored"
        _, warnings = broker_settings_problems(config_texts(self.spec.config))
        yield from (f"spec.config: {warning}" for warning in warnings)
