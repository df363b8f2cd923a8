"""BrokerCluster: brokers and their ZooKeeper, with the policies for restarts, scaling and balancing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from pydantic import Field, PrivateAttr

from ottla.metadata.inter_broker import VERSIONS
from ottla.security.authorizer import CLASS_NAME, SUPER_USERS
from ottla_operator.conditions import find
from ottla_operator.resources.backup import RECOVERY_REFUSED, BackupSpec, Bootstrap, backup_problems
from ottla_operator.resources.cluster_status import BrokerClusterStatus
from ottla_operator.resources.common import (
    AGE,
    APPROVE_ANNOTATION,
    HIBERNATE_ANNOTATION,
    READY,
    STATUS,
    ConfigMap,
    Definition,
    Duration,
    FreeForm,
    IntOrString,
    Model,
    PrinterColumn,
    Problem,
    Resource,
    Rule,
    TransitionRule,
    cel_regex,
    config_texts,
    parse_quantity,
    rules,
)
from ottla_operator.resources.listeners import (
    INTER_BROKER_LISTENER,
    INTER_BROKER_PORT,
    METRICS_PORT_NAME,
    Listener,
    ListenerConfiguration,
    unused_brokers,
)
from ottla_operator.resources.pods import PodTemplate, pod_problems, pod_rules
from ottla_operator.resources.quota import Limits
from ottla_operator.resources.rebalance import Rebalance
from ottla_operator.resources.security import Authorization, CertificateAuthority
from ottla_operator.resources.settings import (
    PROTOCOL_VERSION,
    broker_settings_problems,
    release_of,
    version_problem,
)
from ottla_operator.resources.storage import VOLUMES_RULE, BrokerStorage
from ottla_operator.resources.topic import TopicDefaults, topic_settings_problems
from ottla_operator.resources.windows import MaintenanceWindow, window_problems
from ottla_operator.resources.zookeeper import OF_SECURED, ManagedZooKeeper, ZooKeeper

# Fields that only have an effect on Kubernetes; `ottla up` accepts and ignores them.
_KUBERNETES_ONLY = ("image", "rack", "resources", "template")
_SERVERS_ON_KUBERNETES = frozenset(("image", "resources", "template"))
# Of the configuration of listeners, what has an effect in `ottla up`, too.
_EVERYWHERE = frozenset(("broker_cert_chain_and_key", "max_connections", "max_connection_creation_rate"))
# Fields that `ottla up` ignores, too, for a cluster that is not secured.
_WHEN_SECURED = ("clients_ca", "cluster_ca", "listeners")

# Labels of the pods have the StatefulSet's name, an ordinal and a revision hash, in at most 63 characters.
CLUSTER_NAME_MAX: Final = 40
CLUSTER_NAME: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"

_RELEASES: Final = tuple(dict.fromkeys(release_of(version) for version in VERSIONS))
_VERSION_IN_USE: Final = rf"^({'|'.join(_RELEASES).replace('.', '[.]')})([.][0-9]+)?(-IV[0-9]+)?$"

_ZOOKEEPER_SECURITY = ("zookeeper.set.acl", "zookeeper.ssl.", "zookeeper.clientCnxnSocket")
_AUTHORIZATION_SETTINGS = (CLASS_NAME, SUPER_USERS)
_MIN_ISR: Final = "min.insync.replicas"
_FACTORS: Final = {
    "default.replication.factor": "no write with acks=all can succeed in topics with the default",
    "offsets.topic.replication.factor": "no consumer group can commit offsets",
}


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
    allows=lambda old, new: old.zookeeper.servers == new.zookeeper.servers,
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

RECOVERY_RULE = TransitionRule(
    path="spec.bootstrap.recovery",
    message="bootstrap.recovery is for a new cluster: it cannot be added to an existing one",
    cel="!has(self.bootstrap) || !has(self.bootstrap.recovery) || "
    "(has(oldSelf.bootstrap) && has(oldSelf.bootstrap.recovery))",
    allows=lambda old, new: new.bootstrap.recovery is None or old.bootstrap.recovery is not None,
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


class BrokerClusterSpec(Model):
    model_config = rules(
        Rule(
            f"zookeeper.tlsTrustedCertificates {OF_SECURED}",
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
    storage: BrokerStorage = Field(
        default_factory=BrokerStorage, description="The volume of each broker, or its volumes."
    )
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
    bootstrap: Bootstrap = Field(
        default_factory=Bootstrap, description="What a new cluster starts with; it has no effect later."
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
    paused: bool = False
    """An annotation of the BrokerPool pauses the operator."""


class BrokerCluster(Resource[BrokerClusterSpec, BrokerClusterStatus]):
    definition: ClassVar[Definition] = Definition(
        kind="BrokerCluster",
        plural="brokerclusters",
        short_names=("bc",),
        condition_types=("Ready", "Available", "FullyReplicated", "ConfigApplied", "Rolling", "Scaling"),
        columns=(
            READY,
            PrinterColumn("Desired", "integer", ".status.desiredBrokers"),
            PrinterColumn("Brokers", "integer", ".status.readyReplicas"),
            PrinterColumn("Controller", "integer", ".status.controllerId"),
            PrinterColumn("URP", "integer", ".status.underReplicatedPartitions"),
            PrinterColumn("Version", "string", ".status.version"),
            STATUS,
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
        transition_rules=(SERVERS_RULE, SECURED_RULE, VOLUMES_RULE, RECOVERY_RULE),
        scalable=True,
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

    def is_paused(self, broker: int) -> bool:
        """Whether the broker is in a BrokerPool that is paused or unmanaged."""
        pool = self.pool_of(broker)
        return pool is not None and pool.paused

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

    @property
    def awaits_recovery(self) -> bool:
        """Whether a backup is still to be restored: what refers to the cluster waits for it."""
        if self.spec.bootstrap.recovery is None:
            return False
        if self.status.recovery is not None and self.status.recovery.completed_at:
            return False
        known = find(self.status.conditions, "Recovered")
        return known is None or known.reason != RECOVERY_REFUSED

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
        yield from self.spec.zookeeper.problems("spec.zookeeper")
        for name in self.spec.config if self.spec.zookeeper.connect is None else ():
            if name.startswith(_ZOOKEEPER_SECURITY):
                message = "is set by the operator for its own ZooKeeper; it is allowed with zookeeper.connect"
                yield Problem(f"spec.config[{name}]", message)
        yield from self.spec.storage.problems("spec.storage")
        yield from backup_problems(self.spec.backup, "spec.backup")
        yield from topic_settings_problems("spec.topicDefaults.config", self.spec.topic_defaults.config)
        yield from self._security_problems()
        yield from window_problems(self.spec.rolling_update.windows, "spec.rollingUpdate.windows")
        yield from pod_problems(self.spec.template.pod, "spec.template.pod", "broker")
        quantities = (
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

    def _security_problems(self) -> Iterator[Problem]:
        names = {INTER_BROKER_LISTENER}
        for n, listener in enumerate(self.spec.listeners):
            path = f"spec.listeners[{n}]"
            if listener.name in names:
                message = f"names must be unique, and {INTER_BROKER_LISTENER} is the inter-broker listener"
                yield Problem(f"{path}.name", f"{listener.name!r} is not allowed: {message}")
            names.add(listener.name)
            yield from listener.problems(path, self.broker_ids)
            for name in listener.limits:
                if name in self.spec.config:
                    yield Problem(
                        f"spec.config[{name}]", f"is set by the operator: from {path}.configuration"
                    )
        yield from self.spec.cluster_ca.problems("spec.clusterCa")
        yield from self.spec.clients_ca.problems("spec.clientsCa")
        if self.spec.zookeeper.tls_trusted_certificates is not None and not self.spec.is_secured:
            yield Problem("spec.zookeeper.tlsTrustedCertificates", OF_SECURED)
        if self.spec.authorization is not None:
            yield from self.spec.authorization.problems("spec.authorization")
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
        ignored = _KUBERNETES_ONLY if self.spec.is_secured else sorted((*_KUBERNETES_ONLY, *_WHEN_SECURED))
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
            for name in sorted(listener.configuration.model_fields_set - _EVERYWHERE):
                yield f"{path}.configuration.{ListenerConfiguration.model_fields[name].alias}"
