"""BrokerCluster: brokers and their ZooKeeper, with the policies for restarts, scaling and balancing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, get_args

from pydantic import Field, PrivateAttr, model_validator

from ottla.metadata.inter_broker import VERSIONS
from ottla.security.authorizer import CLASS_NAME, SUPER_USERS
from ottla_operator.resources.authentication import ListenerAuthentication, TrustedCertificates
from ottla_operator.resources.backup import BackupSpec, BackupStatus, backup_problems
from ottla_operator.resources.common import (
    AGE,
    APPROVE_ANNOTATION,
    HIBERNATE_ANNOTATION,
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
    Rule,
    Status,
    TransitionRule,
    UnmanagedSetting,
    cel_regex,
    condition_column,
    config_texts,
    parse_quantity,
    rules,
)
from ottla_operator.resources.listeners import (
    ACCESS_RULES,
    IssuerRef,
    ListenerConfiguration,
    ListenerType,
    NetworkPolicyPeer,
    access_problems,
    peer_problems,
    unused_brokers,
)
from ottla_operator.resources.pods import PodTemplate, pod_problems, pod_rules
from ottla_operator.resources.quota import Limits
from ottla_operator.resources.settings import (
    PROTOCOL_VERSION,
    broker_settings_problems,
    is_connect_string,
    release_of,
    version_problem,
)
from ottla_operator.resources.topic import TopicDefaults, topic_settings_problems
from ottla_operator.resources.windows import MaintenanceWindow, window_problems

# Fields that only have an effect on Kubernetes; `ottla up` accepts and ignores them.
KUBERNETES_ONLY = ("image", "rack", "resources", "template")
_SERVERS_ON_KUBERNETES = frozenset(("image", "resources", "template"))
# Fields that `ottla up` ignores, too, for a cluster that is not secured.
_WHEN_SECURED = ("clients_ca", "cluster_ca", "listeners")

# The listener of brokers and the operator, beside those of the spec, and its port on Kubernetes.
INTER_BROKER_LISTENER: Final = "replication"
INTER_BROKER_PORT: Final = 9091
METRICS_PORT_NAME: Final = "tcp-prometheus"

# Labels of the pods have the StatefulSet's name, an ordinal and a revision hash, in at most 63 characters.
CLUSTER_NAME_MAX: Final = 40
CLUSTER_NAME: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"

_RELEASES: Final = tuple(dict.fromkeys(release_of(version) for version in VERSIONS))
_VERSION_IN_USE: Final = rf"^({'|'.join(_RELEASES).replace('.', '[.]')})([.][0-9]+)?(-IV[0-9]+)?$"
_SERVER: Final = r"\s*([[][0-9A-Fa-f:.%a-z]+[]]|[^\s:/,\[\]]+)(:[1-9][0-9]{0,4})?\s*"
_CONNECT_STRING: Final = rf"^{_SERVER}(,{_SERVER})*(/([^/\s](.*[^/\s])?)?)?$"

_ZOOKEEPER_SECURITY = ("zookeeper.set.acl", "zookeeper.ssl.", "zookeeper.clientCnxnSocket")
_AUTHORIZATION_SETTINGS = (CLASS_NAME, SUPER_USERS)
_MIN_ISR: Final = "min.insync.replicas"
_FACTORS: Final = {
    "default.replication.factor": "no write with acks=all can succeed in topics with the default",
    "offsets.topic.replication.factor": "no consumer group can commit offsets",
}


class Listener(Model):
    model_config = rules(
        Rule(
            "authentication of type tls requires tls: true on the listener",
            "!has(self.authentication) || self.authentication.type != 'tls' || (has(self.tls) && self.tls)",
        ),
        Rule(
            "brokerCertChainAndKey requires tls: true on the listener",
            "!has(self.configuration) || !has(self.configuration.brokerCertChainAndKey) || "
            "(has(self.tls) && self.tls)",
        ),
        Rule(
            "issuerRef requires tls: true on the listener and excludes brokerCertChainAndKey",
            "!has(self.configuration) || !has(self.configuration.issuerRef) || (has(self.tls) && self.tls && "
            "!has(self.configuration.brokerCertChainAndKey))",
        ),
        *ACCESS_RULES,
    )

    name: Name = Field(
        description="The listener's name, unique in the cluster. In Kafka's settings it has capitals, and "
        "_ for -."
    )
    port: int = Field(
        ge=1,
        le=65535,
        description="The listener's port on each broker and on the bootstrap Service, unique in the cluster.",
    )
    type: ListenerType = Field(
        default="internal",
        description="internal: clients in the Kubernetes cluster, at the bootstrap Service and the pods; "
        "cluster-ip: the same, at a Service of each broker; nodeport and loadbalancer: others, at a Service "
        "of each broker; ingress and tlsroute: others, by host names in TLS, at an Ingress or a TLSRoute of "
        "the Gateway API of each broker.",
    )
    tls: bool = Field(
        default=False, description="Whether connections are encrypted, with certificates of clusterCa."
    )
    authentication: ListenerAuthentication | None = Field(
        default=None,
        description="How clients authenticate. Without it, clients of the listener are User:ANONYMOUS.",
    )
    configuration: ListenerConfiguration = Field(
        default_factory=ListenerConfiguration, description="How clients reach and verify the listener."
    )
    network_policy_peers: list[NetworkPolicyPeer] = Field(
        default_factory=list,
        max_length=100,
        description="Who may connect to the listener, as in Kubernetes' NetworkPolicies, which the network "
        "plug-in of the Kubernetes cluster must enforce. Default: everybody.",
    )

    @property
    def kafka_name(self) -> str:
        """The listener's name in Kafka's settings."""
        return self.name.upper().replace("-", "_")

    @property
    def has_own_certificate(self) -> bool:
        """Whether its certificate is not of the cluster's authority."""
        return self.configuration.broker_cert_chain_and_key is not None or (
            self.configuration.issuer_ref is not None
        )


_CLASS_OF_CUSTOM: Final = "type custom requires authorizerClass; no other type has it"


class Authorization(Model):
    model_config = rules(
        Rule(
            "superUsers must be names, without ;",
            "!has(self.superUsers) || self.superUsers.all(u, u.matches('^[^;]*[^; ][^;]*$'))",
        ),
        Rule(
            _CLASS_OF_CUSTOM,
            "(self.type == 'custom') == has(self.authorizerClass)",
        ),
    )

    type: Literal["simple", "custom"] = Field(
        description="simple: Kafka's ACLs. custom: a class of your own, without ACLs."
    )
    authorizer_class: str | None = Field(
        default=None,
        max_length=253,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
        description="The Python class of type custom, as module:Class. Brokers import the module from the "
        "image, or from a volume of template.pod that PYTHONPATH names. The class gets the settings of "
        "config; those that start with authorizer. are its own.",
    )
    super_users: list[Annotated[str, Field(max_length=512)]] = Field(
        default_factory=list,
        max_length=1000,
        description="Names of super users, who may do everything: CN=NAME for a certificate, NAME for SCRAM.",
    )


class CertificateAuthority(Model):
    """A certificate authority. The certificates that it signs have the same validity and renewal."""

    model_config = rules(
        Rule("renewalDays must be below validityDays", "self.renewalDays < self.validityDays"),
        Rule(
            "issuerRef excludes generateCertificateAuthority: false",
            "!has(self.issuerRef) || self.generateCertificateAuthority",
        ),
    )

    generate_certificate_authority: bool = Field(
        default=True,
        description="Whether the operator makes and renews the authority. false: its key and certificate are "
        "those that others put into its two Secrets (ca.key and ca.crt).",
    )
    issuer_ref: IssuerRef | None = Field(
        default=None,
        description="The issuer of cert-manager that issues the authority's certificate, with a key in a "
        "Secret. Default: the operator makes the authority.",
    )
    validity_days: int = Field(default=365, ge=1, le=36500, description="Days that certificates are valid.")
    renewal_days: int = Field(
        default=30, ge=1, description="Days before its expiration that a certificate is renewed."
    )

    @property
    def is_generated(self) -> bool:
        """Whether the operator makes and renews it."""
        return self.generate_certificate_authority and self.issuer_ref is None


class Storage(Model):
    size: Quantity | None = Field(
        default=None,
        description="The size of each volume, in bytes or with a suffix such as Gi. Volumes can grow, if "
        "their StorageClass allows it. Default: 10Gi for a broker, 2Gi for a ZooKeeper server.",
    )
    storage_class: str | None = Field(
        default=None,
        alias="class",
        description="The StorageClass of the volumes. Default: that of the Kubernetes cluster.",
    )
    delete_claim: bool = Field(
        default=False, description="Whether to delete a broker's volume when the broker is removed."
    )


class ZooKeeperTemplate(Model):
    model_config = rules(*pod_rules("zookeeper"))

    pod: PodTemplate = Field(
        default_factory=PodTemplate,
        description="A pod template that is merged into that of the servers; their container is zookeeper.",
    )


class ManagedZooKeeper(Model):
    replicas: int = Field(
        default=3, ge=1, le=7, description="The number of servers, which cannot be changed."
    )
    storage: Storage = Field(default_factory=Storage, description="The volume of each server.")
    image: str | None = Field(
        default=None, min_length=1, description="The image of the servers. Default: that of the operator."
    )
    resources: FreeForm = Field(
        default_factory=dict,
        description="Requests and limits of each server, as in Kubernetes. Memory must have room for the "
        "heap and about 128Mi besides. Default: requests of 50m CPU and 256Mi memory, no limits.",
    )
    heap: str | None = Field(
        default=None,
        pattern=r"^[1-9][0-9]*[kKmMgG]$",
        description="The maximum heap of each server's JVM (-Xmx), with the unit k, m or g. Default: 256m.",
    )
    template: ZooKeeperTemplate = Field(
        default_factory=ZooKeeperTemplate, description="Additions to the pods of the servers."
    )


_OF_SECURED: Final = "requires a cluster with tls or authentication of a listener, or authorization"


class ZooKeeper(Model):
    """The cluster's ZooKeeper: an external one, or one that the operator runs (the default)."""

    model_config = rules(
        Rule("connect and managed exclude each other", "!has(self.connect) || !has(self.managed)"),
        Rule(
            "connect must be HOST:PORT[,HOST:PORT…][/chroot]",
            f"!has(self.connect) || (self.connect.matches({cel_regex(_CONNECT_STRING)}) && "
            "!self.connect.contains('//'))",
        ),
        Rule(
            "tlsTrustedCertificates requires connect",
            "!has(self.tlsTrustedCertificates) || has(self.connect)",
        ),
    )

    connect: str | None = Field(
        default=None, min_length=1, max_length=4096, description="host:port[,host:port…][/chroot]"
    )
    managed: ManagedZooKeeper | None = Field(
        default=None, description="A ZooKeeper that the operator runs. Default: three servers."
    )
    tls_trusted_certificates: list[TrustedCertificates] | None = Field(
        default=None,
        min_length=1,
        max_length=32,
        description="The authorities of the servers' certificates: brokers connect by TLS. Needs connect, "
        "and a cluster with tls, authentication or authorization. Default: connections without TLS, unless "
        "config has zookeeper.ssl settings.",
    )

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
    topology_key: str = Field(
        default="topology.kubernetes.io/zone",
        description="The label of nodes whose value is the rack of their brokers.",
    )


class DisruptionBudget(Model):
    min_available: IntOrString | None = Field(
        default=None,
        description="The number or percentage of brokers that evictions must leave, as in Kubernetes. "
        "Default: see maxUnavailable.",
    )
    max_unavailable: IntOrString | None = Field(
        default=None,
        description="The number or percentage of brokers that evictions may stop, as in Kubernetes; 0 "
        "while a partition is under-replicated. Default: 1.",
    )
    unhealthy_pod_eviction_policy: Literal["IfHealthyBudget", "AlwaysAllow"] | None = Field(
        default=None,
        description="Whether pods that are not ready may be evicted, as in Kubernetes. Default: "
        "IfHealthyBudget.",
    )


class Template(Model):
    model_config = rules(*pod_rules("broker"))

    pod: PodTemplate = Field(
        default_factory=PodTemplate, description="A pod template that is merged into that of the brokers."
    )
    pod_disruption_budget: DisruptionBudget = Field(
        default_factory=DisruptionBudget, description="The PodDisruptionBudget of the brokers."
    )
    topology_spread_constraints: list[FreeForm] = Field(
        default_factory=list,
        description="Constraints for the spread of the brokers, as in Kubernetes. Default: balanced over "
        "racks and nodes where possible.",
    )


class RollingUpdate(Model):
    strategy: Literal["Auto", "OnApproval"] = Field(
        default="Auto",
        description="Auto: brokers and ZooKeeper servers restart when a change needs it; OnApproval: they "
        "wait for `kubectl ottla roll`. Default: Auto.",
    )
    max_unavailable_per_rack: int = Field(
        default=1, ge=1, description="The maximum of unavailable brokers in a rack; never in two racks."
    )
    min_ready_seconds: int = Field(
        default=3,
        ge=0,
        le=3600,
        description="Seconds that a restarted broker must have been ready before the next one restarts.",
    )
    timeout: Duration = Field(
        default="10m",
        description="How long a restarted broker may take to become ready; after this the roll stops.",
    )
    elect_preferred_leaders: bool = Field(
        default=True, description="Whether the operator elects preferred leaders when all brokers run."
    )
    windows: list[MaintenanceWindow] = Field(
        default_factory=list,
        max_length=32,
        description="When restarts of brokers and ZooKeeper servers may begin; one that has begun is "
        "completed. Restarts on request do not wait. Default: at any time.",
    )


class ScaleDown(Model):
    policy: Literal["Drain", "Block", "Force"] = Field(
        default="Drain",
        description="Drain: a broker is removed when its replicas have moved to others; Block: it stays as "
        "long as it has replicas; Force: it is removed with its replicas.",
    )


SoftGoal = Literal[
    "ReplicaDistribution",
    "PotentialNetworkOutbound",
    "DiskUsageDistribution",
    "NetworkInboundUsageDistribution",
    "NetworkOutboundUsageDistribution",
    "TopicReplicaDistribution",
    "LeaderReplicaDistribution",
    "LeaderBytesInDistribution",
]
RebalanceTrigger = Literal["ScaleUp", "NewRacks", "DiskFull", "ScaleDown", "HotSpot"]


class RebalanceThresholds(Model):
    """When the goals of a rebalance are met. Names and defaults are those of Cruise Control."""

    disk_capacity: float = Field(default=0.8, gt=0, le=1, description="The share of a disk that may be used.")
    network_capacity: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="The share of capacity.networkIn and networkOut that may be used.",
    )
    replicas_max: int = Field(default=10_000, ge=1, description="The maximum of replicas on a broker.")
    replicas: float = Field(
        default=1.1,
        ge=1.01,
        le=100,
        description="Replicas of a broker, as a multiple of the mean: 1.1 is 10 % more or less.",
    )
    disk: float = Field(default=1.1, ge=1.01, le=100, description="Used disk, as a multiple of the mean.")
    network_in: float = Field(
        default=1.1, ge=1.01, le=100, description="Bytes in per second, as a multiple of the mean."
    )
    network_out: float = Field(
        default=1.1, ge=1.01, le=100, description="Bytes out per second, as a multiple of the mean."
    )
    leaders: float = Field(
        default=1.1, ge=1.01, le=100, description="Partitions that a broker leads, as a multiple of the mean."
    )
    topic_replicas: float = Field(
        default=3.0,
        ge=1.01,
        le=100,
        description="Replicas of one topic on a broker, as a multiple of the mean.",
    )
    disk_gap: Quantity = Field(
        default="64Mi",
        description="A difference from the mean disk usage below this is left alone, in bytes.",
    )
    network_gap: Quantity = Field(
        default="64Ki",
        description="A difference from the mean traffic below this is left alone, in bytes per second.",
    )


class BrokerCapacities(Model):
    """What a broker can take. A goal of a capacity that is not known does not apply."""

    disk: Quantity | None = Field(
        default=None, description="Bytes. Default: the size of the brokers' log directories."
    )
    network_in: Quantity | None = Field(default=None, description="Bytes per second. Default: unlimited.")
    network_out: Quantity | None = Field(default=None, description="Bytes per second. Default: unlimited.")


class Rebalance(Model):
    on_scale_up: bool = Field(
        default=True,
        description="Whether replicas move to brokers that were added, by their number; in mode Auto with "
        "the trigger ScaleUp they move by load instead.",
    )
    replication_throttle: Quantity | None = Field(
        default=None,
        description="The throttle of reassignments, in bytes per second and broker. Default: none.",
    )
    mode: Literal["Off", "OnApproval", "Auto"] = Field(
        default="Off",
        description="Rebalancing by load. Off: only on request; OnApproval: the operator proposes one when a "
        "trigger applies, and executes it when it is approved; Auto: it executes it at once.",
    )
    triggers: list[RebalanceTrigger] = Field(
        default_factory=lambda: list(get_args(RebalanceTrigger)),
        description="When to propose a rebalance: brokers without replicas (ScaleUp), partitions that could "
        "use more racks (NewRacks), a disk beyond its capacity threshold (DiskFull), an imbalance after "
        "brokers have left (ScaleDown), any other goal that is not met (HotSpot).",
    )
    goals: list[SoftGoal] = Field(
        default_factory=lambda: list(get_args(SoftGoal)),
        description="The soft goals. The hard ones, racks and capacities, always apply. Their order of "
        "priority is fixed.",
    )
    thresholds: RebalanceThresholds = Field(
        default_factory=RebalanceThresholds, description="When the goals are met."
    )
    capacity: BrokerCapacities = Field(
        default_factory=BrokerCapacities, description="What each broker can take."
    )
    window: Duration = Field(
        default="5m",
        description="The time over which loads are averaged. Nothing is proposed before it has passed, after "
        "a start of the operator and after a rebalance.",
    )
    concurrent_partitions: int = Field(
        default=20, ge=1, le=1000, description="Partitions that move at a time in the cluster."
    )
    concurrent_partitions_per_broker: int = Field(
        default=10, ge=1, le=1000, description="Partitions that move to one broker at a time."
    )


class BrokerClusterSpec(Model):
    model_config = rules(
        Rule(
            f"zookeeper.tlsTrustedCertificates {_OF_SECURED}",
            f"!has(self.zookeeper) || !has(self.zookeeper.tlsTrustedCertificates) || {_secured_cel('self')}",
        ),
        Rule(
            f"version must be one of {', '.join(_RELEASES)}",
            f"!has(self.version) || self.version.matches({cel_regex(_VERSION_IN_USE)})",
        ),
        Rule(
            f"listeners: names must be unique, and {INTER_BROKER_LISTENER} is the inter-broker listener",
            f"!has(self.listeners) || self.listeners.all(l, l.name != '{INTER_BROKER_LISTENER}' && "
            "self.listeners.exists_one(m, m.name == l.name))",
        ),
        Rule(
            f"listeners: ports must be unique, and {INTER_BROKER_PORT} is the inter-broker listener's",
            f"!has(self.listeners) || self.listeners.all(l, l.port != {INTER_BROKER_PORT} && "
            "self.listeners.exists_one(m, m.port == l.port))",
        ),
        Rule(
            f"listeners: the port of /metrics has the name {METRICS_PORT_NAME}",
            f"!has(self.listeners) || self.listeners.all(l, l.name != '{METRICS_PORT_NAME}')",
        ),
    )

    replicas: int = Field(
        ge=0,
        le=1000,
        description="The number of brokers of the cluster's own pool. Their ids are 0 to replicas - 1. 0 is "
        "allowed when BrokerPools have the brokers.",
    )
    version: str | None = Field(
        default=None,
        pattern=r"^[0-9]+\.[0-9]+(\.[0-9]+)?(-IV[0-9]+)?$",
        description="inter.broker.protocol.version. A new image is rolled out first; when all brokers run "
        "it, a second roll raises the version. It is never lowered.",
    )
    image: str | None = Field(
        default=None, description="The image of the brokers. Default: that of the operator."
    )
    listeners: list[Listener] = Field(
        default_factory=list,
        max_length=32,
        description="The listeners for clients. Default: one, named plain, on port 9092 without TLS. "
        "Brokers and the operator use a listener of their own.",
    )
    authorization: Authorization | None = Field(
        default=None, description="Who may do what. Default: everybody may do everything."
    )
    cluster_ca: CertificateAuthority = Field(
        default_factory=CertificateAuthority, description="The authority of the brokers' certificates."
    )
    clients_ca: CertificateAuthority = Field(
        default_factory=CertificateAuthority, description="The authority of the users' certificates."
    )
    config: ConfigMap = Field(default_factory=dict, description="Kafka's broker settings.")
    storage: Storage = Field(default_factory=Storage, description="The volume of each broker.")
    zookeeper: ZooKeeper = Field(
        default_factory=ZooKeeper,
        description="The ZooKeeper of the cluster. Default: three servers that the operator runs.",
    )
    rack: Rack | None = Field(
        default=None, description="Where broker.rack comes from. Default: brokers have no rack."
    )
    resources: FreeForm = Field(
        default_factory=dict,
        description="Requests and limits of the broker's container, as in Kubernetes. Default: requests of "
        "100m CPU and 256Mi memory.",
    )
    template: Template = Field(
        default_factory=Template, description="Additions to the objects that the operator creates."
    )
    rolling_update: RollingUpdate = Field(
        default_factory=RollingUpdate, description="How brokers are restarted."
    )
    scale_down: ScaleDown = Field(default_factory=ScaleDown, description="How brokers are removed.")
    rebalance: Rebalance = Field(default_factory=Rebalance, description="When and how fast replicas move.")
    default_quotas: Limits | None = Field(
        default=None,
        description="The default quotas of client ids; removed with this field.",
    )
    backup: BackupSpec | None = Field(
        default=None,
        description="Backups of the metadata: topics, settings, ACLs, quotas and offsets, without records "
        "and passwords. Default: none.",
    )
    topic_defaults: TopicDefaults = Field(
        default_factory=TopicDefaults, description="What holds for Topics that do not say it themselves."
    )

    @property
    def is_secured(self) -> bool:
        """Whether brokers use mutual TLS between each other."""
        return self.authorization is not None or any(
            listener.tls or listener.authentication is not None for listener in self.listeners
        )


@dataclass(frozen=True, slots=True)
class PoolBrokers:
    """The brokers of a BrokerPool, beside those of the cluster's own pool."""

    name: str
    brokers: tuple[int, ...]
    """The ids of those that are to stay or to come."""
    leaving: tuple[int, ...]
    """The ids of those that exist and are to leave."""
    spec: BrokerClusterSpec
    """The spec of the cluster, with the pool's values in it."""
    rack: str | None = None
    is_changed: bool = False
    """The operator has not reconciled the newest BrokerPool yet."""


class BrokerStatus(Model):
    id: int = Field(description="The broker's id.")
    pod_name: str = Field(default="", description="The broker's pod or process.")
    ready: bool = Field(default=False, description="Whether the broker is ready.")
    state: str = Field(
        default="Unknown",
        description="Running, NotReady, Draining, Starting, Stopping, Stopped, Crashed, Missing or Unknown.",
    )
    config_hash: str = Field(default="", description="The revision that the broker runs.")
    version: str = Field(
        default="", description="The inter.broker.protocol.version that the broker runs with."
    )
    pool: str = Field(
        default="", description="The BrokerPool of the broker; empty for one of the cluster's own pool."
    )
    restart_reasons: list[str] = Field(
        default_factory=list, description="Why the broker must restart; empty when it need not."
    )
    waiting_for: str = Field(default="", description="What the restart waits for; empty when it does not.")


RollCause = Literal["Spec", "Operator"]
ROLL_CAUSE: Final = (
    "Spec: the resource was changed, or a restart requested; Operator: the operator was upgraded or set up "
    "anew."
)


class RolloutStatus(Model):
    id: str = Field(description="The id of the roll.")
    target_hash: str = Field(description="The revision that brokers restart with.")
    updated: int = Field(description="The number of brokers that run it.")
    total: int = Field(description="The number of brokers.")
    started_at: str = Field(description="When the roll began.")
    cause: RollCause = Field(default="Spec", description=ROLL_CAUSE)


class ReassignmentStatus(Model):
    id: str = Field(description="The id of the reassignment.")
    reason: str = Field(description="Why replicas move.")
    moved: int = Field(description="The number of partitions whose replicas have moved.")
    total: int = Field(description="The number of partitions whose replicas move.")
    started_at: str = Field(description="When the reassignment began.")


ReassignPhase = Literal["Waiting", "Moving", "Completed", "Refused"]


class ReassignRequestStatus(Model):
    """The progress of the request in the annotation ottla.dev/reassign."""

    id: str = Field(description="The id of the request.")
    phase: ReassignPhase = Field(description="Waiting, Moving, Completed or Refused.")
    message: str = Field(default="", description="What the request waits for, or why it is refused.")
    completed_at: str | None = Field(default=None, description="When it was completed.")


class GoalStatus(Model):
    name: str = Field(description="The goal.")
    hard: bool = Field(default=False, description="Whether it must be met.")
    met_before: bool = Field(description="Whether the cluster meets it now.")
    met_after: bool = Field(description="Whether it will meet it.")
    before: str = Field(default="", description="The least and the most loaded broker now.")
    after: str = Field(default="", description="The same after the rebalance.")


class TopicMoves(Model):
    topic: str = Field(description="The topic.")
    partitions: list[str] = Field(
        description="Partitions with their new replicas, the preferred leader first: 3=4,2,1."
    )


class RebalanceProposal(Model):
    id: str = Field(description="The id, for the approval.")
    reason: str = Field(description="The trigger, or Requested.")
    created_at: str = Field(description="When it was computed.")
    partitions: int = Field(description="The number of partitions that change.")
    replicas: int = Field(description="The number of replicas that move.")
    leaders: int = Field(description="The number of partitions with another preferred leader.")
    bytes: int = Field(description="Bytes that move.")
    seconds: int | None = Field(
        default=None, description="The estimated time in seconds under the throttle; none without a throttle."
    )
    score_before: int = Field(description="The balancedness now, 0 to 100.")
    score_after: int = Field(description="The balancedness after the rebalance.")
    goals: list[GoalStatus] = Field(default_factory=list, description="The goals, by priority.")
    moves: list[TopicMoves] = Field(default_factory=list, description="What moves, by topic, in this order.")


class RebalanceProgress(Model):
    """The rebalance in progress. Its moves are those of the proposal."""

    moved: int = Field(default=0, description="The number of partitions that have moved.")
    total: int = Field(description="The number of partitions that move.")
    bytes_left: int = Field(default=0, description="Bytes that are still to be moved.")
    started_at: str = Field(description="When it began.")
    cancelled: bool = Field(default=False, description="Whether it is being cancelled.")


class RebalanceResult(Model):
    id: str = Field(description="The id of the proposal.")
    result: Literal["Completed", "Cancelled", "Failed"] = Field(description="Completed, Cancelled or Failed.")
    message: str = Field(default="", description="What was moved, or why it ended.")
    ended_at: str = Field(description="When it ended.")


class RebalanceStatus(Model):
    """Rebalancing by load."""

    phase: Literal["Measuring", "Balanced", "Proposed", "Moving"] = Field(
        description="Measuring: the loads are not known yet; Balanced: nothing is to be moved; Proposed: a "
        "proposal waits for its approval; Moving: a rebalance is in progress."
    )
    message: str = Field(default="", description="What it waits for, or the imbalance.")
    brokers: int = Field(default=0, description="The number of brokers at the last balance.")
    handled_request: str = Field(default="", description="The last request for a proposal that was answered.")
    proposal: RebalanceProposal | None = Field(default=None, description="The current proposal.")
    progress: RebalanceProgress | None = Field(default=None, description="The rebalance in progress.")
    last: RebalanceResult | None = Field(default=None, description="The result of the last rebalance.")


class ThrottleStatus(Model):
    """The replication throttle that the operator sets during a reassignment and removes after it."""

    rate: int | None = Field(
        default=None, description="Bytes per second; none when another tool has set the rate."
    )
    topics: list[str] = Field(
        default_factory=list, description="Topics whose throttled replicas the operator has set."
    )


class UpgradeStatus(Model):
    from_version: str = Field(description="The version before the upgrade.")
    to_version: str = Field(description="The version after the upgrade.")
    phase: Literal["Binaries", "Protocol"] = Field(
        description="Binaries: brokers restart with the new image; Protocol: they restart with the new "
        "inter.broker.protocol.version."
    )


class ListenerStatus(Model):
    """A listener's bootstrap servers and certificates, as in Strimzi's status."""

    name: str = Field(description="The listener's name.")
    bootstrap_servers: str = Field(
        default="", description="Bootstrap servers for clients of the listener: host:port[,host:port…]."
    )
    certificates: list[str] = Field(
        default_factory=list, description="The certificates that clients of the listener must trust, in PEM."
    )


class ZooKeeperServerStatus(Model):
    id: int = Field(description="The server's ordinal; its id in ZooKeeper is one more.")
    pod_name: str = Field(default="", description="The name of its pod.")
    ready: bool = Field(default=False, description="Whether it serves.")
    role: str = Field(default="", description="leader or follower; empty when it does not answer.")
    config_hash: str = Field(default="", description="The revision that it runs.")
    waiting_for: str = Field(default="", description="What its restart waits for; empty when none is due.")


class ZooKeeperStatus(Model):
    target_hash: str = Field(description="The revision of the spec; ottla.dev/approve-rollout approves it.")
    updated: int = Field(description="The number of servers that run it.")
    total: int = Field(description="The number of servers.")
    cause: RollCause = Field(default="Spec", description=ROLL_CAUSE)
    servers: list[ZooKeeperServerStatus] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
        description="The servers.",
    )


class BrokerClusterStatus(Status):
    replicas: int = Field(default=0, description="The number of brokers of the cluster's own pool.")
    desired_brokers: int = Field(
        default=0, description="The number of brokers that the cluster's own pool and BrokerPools ask for."
    )
    ready_replicas: int = Field(
        default=0, description="The number of brokers that are ready, with those of BrokerPools."
    )
    selector: str = Field(default="", description="The label selector of the pods of the cluster's own pool.")
    cluster_id: str = Field(default="", description="Kafka's id of the cluster.")
    controller_id: int = Field(default=-1, description="The broker that is the controller; -1: none.")
    version: str = Field(default="", description="The inter.broker.protocol.version of the brokers.")
    bootstrap_servers: str = Field(
        default="", description="Bootstrap servers for clients of the first listener: host:port[,host:port…]."
    )
    listeners: list[ListenerStatus] = Field(
        default_factory=list, description="The listeners with their bootstrap servers."
    )
    under_replicated_partitions: int = Field(
        default=0, description="The number of partitions with replicas that are not in sync."
    )
    under_min_isr_partitions: int = Field(
        default=0,
        description="The number of partitions with fewer replicas in sync than min.insync.replicas.",
    )
    offline_partitions: int = Field(default=0, description="The number of partitions without a leader.")
    brokers: list[BrokerStatus] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
        description="The brokers.",
    )
    zookeeper: ZooKeeperStatus | None = Field(
        default=None, description="The ZooKeeper that the operator runs; none for an external one."
    )
    rollout: RolloutStatus | None = Field(default=None, description="The rolling restart in progress.")
    handled_restarts: list[str] = Field(
        default_factory=list,
        description="Requested restarts that the operator has taken up, the latest last. Each value causes "
        "one rolling restart; removing a request, or setting it back to one of these, causes none.",
    )
    reassignment: ReassignmentStatus | None = Field(default=None, description="The reassignment in progress.")
    reassign_request: ReassignRequestStatus | None = Field(
        default=None, description="The requested reassignment."
    )
    rebalance: RebalanceStatus | None = Field(
        default=None, description="Rebalancing by load: the proposal, its progress, the last result."
    )
    throttle: ThrottleStatus | None = Field(
        default=None, description="The replication throttle that the operator has set."
    )
    upgrade: UpgradeStatus | None = Field(default=None, description="The upgrade in progress.")
    default_quotas: Limits | None = Field(
        default=None, description="The default quotas that the operator has set and must remove."
    )
    backup: BackupStatus | None = Field(default=None, description="The backups of the metadata.")
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
            PrinterColumn("Desired", "integer", ".status.desiredBrokers"),
            PrinterColumn("Brokers", "integer", ".status.readyReplicas"),
            PrinterColumn("Controller", "integer", ".status.controllerId"),
            PrinterColumn("URP", "integer", ".status.underReplicatedPartitions"),
            PrinterColumn("Version", "string", ".status.version"),
            condition_column("Status", "Ready", "reason"),
            AGE,
            PrinterColumn("UnderMinISR", "integer", ".status.underMinIsrPartitions", 1),
            PrinterColumn("Rollout", "string", ".status.rollout.targetHash", 1),
        ),
        rules=(
            Rule(
                f"metadata.name must have at most {CLUSTER_NAME_MAX} lower-case letters, digits and -, with "
                "a letter first",
                f"self.metadata.name.size() <= {CLUSTER_NAME_MAX} && "
                f"self.metadata.name.matches({cel_regex(CLUSTER_NAME)})",
            ),
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

    _pools: tuple[PoolBrokers, ...] = PrivateAttr(default=())

    @property
    def pools(self) -> tuple[PoolBrokers, ...]:
        """The BrokerPools, once it is known which brokers they have (`planning.pools`)."""
        return self._pools

    def with_pools(self, pools: Sequence[PoolBrokers]) -> BrokerCluster:
        """This cluster with the brokers of these pools."""
        cluster = self.model_copy()
        cluster._pools = tuple(pools)
        return cluster

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The ids of all brokers that the cluster is to have."""
        return (*range(self.spec.replicas), *sorted(b for pool in self._pools for b in pool.brokers))

    def pool_of(self, broker: int) -> PoolBrokers | None:
        """The BrokerPool of a broker; None for one of the cluster's own pool, or of a deleted BrokerPool."""
        return next((pool for pool in self._pools if broker in (*pool.brokers, *pool.leaving)), None)

    def of_broker(self, broker: int) -> BrokerCluster:
        """This cluster, with the values of the broker's pool in its spec."""
        pool = self.pool_of(broker)
        return self if pool is None else self.model_copy(update={"spec": pool.spec})

    def may_roll_to(self, revision: str) -> bool:
        """Whether the strategy allows a roll to this revision. An approval names one or several."""
        approved = self.metadata.annotations.get(APPROVE_ANNOTATION, "")
        return self.spec.rolling_update.strategy == "Auto" or revision in approved.split(",")

    @property
    def hibernates(self) -> bool:
        """Whether an annotation asks that no broker and no ZooKeeper server runs. All data is kept."""
        return self.metadata.annotations.get(HIBERNATE_ANNOTATION, "").lower() == "true"

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
        yield from backup_problems(self.spec.backup, "spec.backup")
        yield from topic_settings_problems("spec.topicDefaults.config", self.spec.topic_defaults.config)
        yield from self._listener_problems()
        yield from self._security_problems()
        yield from window_problems(self.spec.rolling_update.windows, "spec.rollingUpdate.windows")
        yield from pod_problems(self.spec.template.pod, "spec.template.pod", "broker")
        if self.spec.zookeeper.managed is not None:
            of_servers = self.spec.zookeeper.managed.template.pod
            yield from pod_problems(of_servers, "spec.zookeeper.managed.template.pod", "zookeeper")
        quantities = (
            ("spec.storage.size", self.spec.storage.size),
            ("spec.rebalance.replicationThrottle", self.spec.rebalance.replication_throttle),
            ("spec.rebalance.thresholds.diskGap", self.spec.rebalance.thresholds.disk_gap),
            ("spec.rebalance.thresholds.networkGap", self.spec.rebalance.thresholds.network_gap),
            ("spec.rebalance.capacity.disk", self.spec.rebalance.capacity.disk),
            ("spec.rebalance.capacity.networkIn", self.spec.rebalance.capacity.network_in),
            ("spec.rebalance.capacity.networkOut", self.spec.rebalance.capacity.network_out),
        )
        for path, quantity in quantities:
            if quantity is not None and parse_quantity(quantity) is None:
                yield Problem(
                    path, f"{quantity!r} is not a quantity; allowed: a number, optionally with Ki, Mi, Gi, …"
                )

    def _listener_problems(self) -> Iterator[Problem]:
        names = {INTER_BROKER_LISTENER}
        for n, listener in enumerate(self.spec.listeners):
            if listener.name in names:
                message = f"names must be unique, and {INTER_BROKER_LISTENER} is the inter-broker listener"
                yield Problem(f"spec.listeners[{n}].name", f"{listener.name!r} is not allowed: {message}")
            names.add(listener.name)
            found = access_problems(
                listener.type,
                tls=listener.tls,
                configuration=listener.configuration,
                brokers=self.broker_ids,
            )
            for path, message in (*found, *peer_problems(listener.network_policy_peers)):
                yield Problem(f"spec.listeners[{n}].{path}", message)

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
            if listener.authentication is not None:
                path = f"spec.listeners[{n}].authentication"
                yield from listener.authentication.problems(path, listener.kafka_name)
            configuration, path = listener.configuration, f"spec.listeners[{n}].configuration"
            if configuration.broker_cert_chain_and_key is not None and not listener.tls:
                yield Problem(f"{path}.brokerCertChainAndKey", "requires tls: true on the listener")
            if configuration.issuer_ref is not None and not listener.tls:
                yield Problem(f"{path}.issuerRef", "requires tls: true on the listener")
            if configuration.issuer_ref is not None and configuration.broker_cert_chain_and_key is not None:
                yield Problem(f"{path}.issuerRef", "excludes brokerCertChainAndKey")
        for path, authority in (
            ("spec.clusterCa", self.spec.cluster_ca),
            ("spec.clientsCa", self.spec.clients_ca),
        ):
            if authority.issuer_ref is not None and not authority.generate_certificate_authority:
                yield Problem(f"{path}.issuerRef", "excludes generateCertificateAuthority: false")
            if authority.renewal_days >= authority.validity_days:
                yield Problem(
                    f"{path}.renewalDays",
                    f"{authority.renewal_days} is not allowed: must be below validityDays, which is "
                    f"{authority.validity_days}",
                )
        trusted = self.spec.zookeeper.tls_trusted_certificates
        path = "spec.zookeeper.tlsTrustedCertificates"
        for n, source in enumerate(trusted or ()):
            yield from source.problems(f"{path}[{n}]")
        if trusted is not None and self.spec.zookeeper.connect is None:
            yield Problem(path, "requires connect")
        if trusted is not None and not self.spec.is_secured:
            yield Problem(path, _OF_SECURED)
        if self.spec.authorization is None:
            return
        if (self.spec.authorization.type == "custom") != (
            self.spec.authorization.authorizer_class is not None
        ):
            yield Problem("spec.authorization.authorizerClass", _CLASS_OF_CUSTOM)
        for n, user in enumerate(self.spec.authorization.super_users):
            if not user.strip() or ";" in user:
                yield Problem(
                    f"spec.authorization.superUsers[{n}]", f"{user!r} is not allowed: a name, without ;"
                )
        for name in _AUTHORIZATION_SETTINGS:
            if name in self.spec.config:
                yield Problem(f"spec.config[{name}]", "is set by the operator: from spec.authorization")

    def notes(self) -> Iterator[str]:
        settings = config_texts(self.spec.config)
        authorization = self.spec.authorization
        if authorization is not None and authorization.authorizer_class is not None:
            settings |= {CLASS_NAME: authorization.authorizer_class}
        _, warnings = broker_settings_problems(settings)
        yield from (f"spec.config: {warning}" for warning in warnings)
        for n, listener in enumerate(self.spec.listeners):
            if listener.authentication is not None:
                for note in listener.authentication.notes():
                    yield f"spec.listeners[{n}].authentication: {note}"
            for broker in unused_brokers(listener.configuration, self.broker_ids):
                yield f"spec.listeners[{n}].configuration.brokers: there is no broker {broker}"
        if not self.broker_ids:
            return  # It has pools, which are not known here, or is not Ready in any case.
        least = int(settings.get(_MIN_ISR, "1"))
        brokers = len(self.broker_ids)
        of_all = "the number of brokers" if self._pools else "spec.replicas"
        if least > brokers:
            yield (
                f"spec.config[{_MIN_ISR}]: {least} is more than {of_all}, which is {brokers}: no write "
                "with acks=all can succeed"
            )
        wanted = self.spec.topic_defaults.replicas
        if wanted is not None and wanted > brokers:
            yield f"spec.topicDefaults.replicas: {wanted} is more than {of_all}, which is {brokers}"
        for name, effect in _FACTORS.items():
            factor = int(settings.get(name, str(brokers)))
            if factor > brokers:
                yield f"spec.config[{name}]: {factor} is more than {of_all}, which is {brokers}"
            elif 0 < factor < least <= brokers:
                yield f"spec.config[{name}]: {factor} is less than {_MIN_ISR}, which is {least}: {effect}"

    def ignored_by_up(self) -> Iterator[str]:
        ignored = KUBERNETES_ONLY if self.spec.is_secured else sorted((*KUBERNETES_ONLY, *_WHEN_SECURED))
        for name in ignored:
            if name in self.spec.model_fields_set:
                alias = type(self.spec).model_fields[name].alias or name
                yield f"spec.{alias} has an effect on Kubernetes only and is ignored"
        for path in self._access_fields() if self.spec.is_secured else ():
            yield f"{path} has an effect on Kubernetes only and is ignored"
        for path, authority in (("clusterCa", self.spec.cluster_ca), ("clientsCa", self.spec.clients_ca)):
            if authority.issuer_ref is not None and self.spec.is_secured:
                yield f"spec.{path}.issuerRef has an effect on Kubernetes only and is ignored"
        managed = self.spec.zookeeper.managed or ManagedZooKeeper()
        for name in sorted(managed.model_fields_set.intersection(_SERVERS_ON_KUBERNETES)):
            yield f"spec.zookeeper.managed.{name} has an effect on Kubernetes only and is ignored"

    def _access_fields(self) -> Iterator[str]:
        """The paths of what is set of listeners for clients outside of a Kubernetes cluster."""
        for n, listener in enumerate(self.spec.listeners):
            path = f"spec.listeners[{n}]"
            if listener.type != "internal":
                yield f"{path}.type"
            if listener.network_policy_peers:
                yield f"{path}.networkPolicyPeers"
            for name in sorted(listener.configuration.model_fields_set - {"broker_cert_chain_and_key"}):
                yield f"{path}.configuration.{ListenerConfiguration.model_fields[name].alias}"
