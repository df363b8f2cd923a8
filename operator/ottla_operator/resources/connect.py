"""ConnectCluster and Connector: workers of Apache Kafka Connect, and the connectors that run on them.

A Connector refers to its ConnectCluster, which refers to a BrokerCluster or names bootstrap servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from ottla_operator.resources.common import (
    AGE,
    CLUSTER,
    DESIRED,
    LISTED_BY_NAME,
    READY,
    RESTART_TASK_ANNOTATION,
    STATUS,
    ClusterRef,
    ConfigMap,
    Definition,
    FreeForm,
    Model,
    Name,
    PrinterColumn,
    Problem,
    Resource,
    Rule,
    Status,
    immutable,
    name_rule,
    rules,
)
from ottla_operator.resources.pods import PodTemplate, pod_problems, pod_rules

NAME_MAX: Final = 40
"""Names of pods and their labels have a suffix and a hash."""

# Settings of workers that the operator makes from other fields.
_RESERVED: Final = {
    "bootstrap.servers": "from spec.clusterRef or spec.bootstrapServers",
    "security.protocol": "from spec.user, spec.tls and spec.authentication",
}
_RESERVED_PREFIXES: Final = ("listeners", "rest.", "sasl.", "ssl.", "admin.listeners")
_OF_CLIENTS: Final = ("admin.", "consumer.", "producer.")
_OF_CONNECTOR: Final = {
    "connector.class": "from spec.class",
    "name": "the resource's name",
    "tasks.max": "from spec.tasksMax",
}


class TrustedCertificate(Model):
    secret_name: str = Field(description="A Secret in the same namespace.")
    certificate: str = Field(default="ca.crt", description="Its entry with certificates in PEM.")


class ClientTls(Model):
    trusted_certificates: list[TrustedCertificate] = Field(
        default_factory=list, description="The authorities of the brokers' certificates. Default: Java's."
    )


class CertificateAndKey(Model):
    secret_name: str = Field(description="A Secret in the same namespace.")
    certificate: str = Field(default="tls.crt", description="Its entry with the certificate, in PEM.")
    key: str = Field(default="tls.key", description="Its entry with the private key, in PEM (PKCS #8).")


class PasswordSecret(Model):
    secret_name: str = Field(description="A Secret in the same namespace.")
    password: str = Field(default="password", description="Its entry with the password.")


class ClientAuthentication(Model):
    model_config = rules(
        Rule(
            "type tls requires certificateAndKey, without username and passwordSecret",
            "self.type != 'tls' || "
            "(has(self.certificateAndKey) && !has(self.username) && !has(self.passwordSecret))",
        ),
        Rule(
            "a type with a password requires username and passwordSecret, without certificateAndKey",
            "self.type == 'tls' || "
            "(!has(self.certificateAndKey) && has(self.username) && has(self.passwordSecret))",
        ),
    )

    type: Literal["plain", "scram-sha-256", "scram-sha-512", "tls"] = Field(
        description="plain, scram-sha-256, scram-sha-512: user name and password; tls: a certificate."
    )
    username: str | None = Field(default=None, min_length=1, description="The user name.")
    password_secret: PasswordSecret | None = Field(default=None, description="The password.")
    certificate_and_key: CertificateAndKey | None = Field(default=None, description="The certificate.")


class PluginArtifact(Model):
    type: Literal["image"] = Field(default="image", description="A container image with jars.")
    reference: str = Field(min_length=1, description="The image.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None, description="When the image is pulled, as in Kubernetes."
    )


class ConnectPlugin(Model):
    name: Name = Field(description="The name of the folder in the workers' plugin path.")
    artifacts: list[PluginArtifact] = Field(
        min_length=1,
        description="Images, which Kubernetes mounts as volumes; needs Kubernetes 1.33 or later.",
    )


class ConnectTemplate(Model):
    model_config = rules(*pod_rules("connect"))

    pod: PodTemplate = Field(
        default_factory=PodTemplate,
        description="A pod template that is merged into that of the workers; their container is connect.",
    )


class ConnectClusterSpec(Model):
    model_config = rules(
        Rule(
            "either clusterRef or bootstrapServers is required",
            "has(self.clusterRef) != has(self.bootstrapServers)",
        ),
        Rule(
            "user is allowed with clusterRef only; use authentication",
            "!has(self.user) || has(self.clusterRef)",
        ),
        Rule(
            "tls and authentication are allowed with bootstrapServers only; use user",
            "!has(self.clusterRef) || (!has(self.tls) && !has(self.authentication))",
        ),
    )

    cluster_ref: ClusterRef | None = Field(
        default=None, description="The BrokerCluster of the workers, instead of bootstrapServers."
    )
    bootstrap_servers: str | None = Field(
        default=None,
        min_length=1,
        description="host:port[,host:port…] of another cluster, instead of clusterRef.",
    )
    user: Name | None = Field(
        default=None,
        description="With clusterRef: the User whose credentials the workers use, for a listener with "
        "authentication.",
    )
    tls: ClientTls | None = Field(
        default=None, description="With bootstrapServers: connections are encrypted. Default: they are not."
    )
    authentication: ClientAuthentication | None = Field(
        default=None, description="With bootstrapServers: how workers authenticate. Default: they do not."
    )
    replicas: int = Field(default=1, ge=0, le=100, description="The number of workers.")
    image: str | None = Field(
        default=None, min_length=1, description="The image of the workers. Default: that of the operator."
    )
    config: ConfigMap = Field(
        default_factory=dict,
        description="Kafka's worker settings. group.id is the resource's name by default, and the internal "
        "topics are NAME-configs, NAME-offsets, NAME-status, with the cluster's default replication factor. "
        "plugin.path and config.providers are additions to the operator's.",
    )
    plugins: list[ConnectPlugin] = Field(
        default_factory=list,
        json_schema_extra=LISTED_BY_NAME,
        description="Plugins besides those of the image.",
    )
    resources: FreeForm = Field(
        default_factory=dict,
        description="Requests and limits of each worker, as in Kubernetes. Memory must have room for the "
        "heap and about 256Mi besides. Default: requests of 100m CPU and 768Mi memory, no limits.",
    )
    heap: str = Field(
        default="512m",
        pattern=r"^[1-9][0-9]*[kKmMgG]$",
        description="The maximum heap of each worker's JVM (-Xmx), with the unit k, m or g.",
    )
    template: ConnectTemplate = Field(
        default_factory=ConnectTemplate, description="Additions to the workers' pods."
    )


class WorkerPlugin(Model):
    class_name: str = Field(alias="class", description="The class of the plugin.")
    type: str = Field(description="source or sink.")
    version: str = Field(default="", description="The version of the plugin.")


class ConnectClusterStatus(Status):
    replicas: int = Field(default=0, description="The number of workers.")
    ready_replicas: int = Field(default=0, description="The number of workers that are ready.")
    selector: str = Field(default="", description="The label selector of the workers' pods.")
    url: str = Field(default="", description="The URL of the workers' REST API.")
    version: str = Field(default="", description="The version of Kafka Connect.")
    revision: str = Field(default="", description="The revision of settings, image and credentials.")
    connector_plugins: list[WorkerPlugin] = Field(
        default_factory=list, description="The connectors that the workers have in their plugin path."
    )


class ConnectCluster(Resource[ConnectClusterSpec, ConnectClusterStatus]):
    definition: ClassVar[Definition] = Definition(
        kind="ConnectCluster",
        plural="connectclusters",
        short_names=("occ",),
        condition_types=("Ready",),
        columns=(
            READY,
            DESIRED,
            PrinterColumn("Workers", "integer", ".status.readyReplicas"),
            CLUSTER,
            PrinterColumn("Version", "string", ".status.version"),
            STATUS,
            AGE,
            PrinterColumn("URL", "string", ".status.url", 1),
        ),
        rules=(name_rule(NAME_MAX),),
        transition_rules=(immutable("spec.clusterRef", "cluster_ref", optional=True),),
        scalable=True,
    )

    kind: Literal["ConnectCluster"]
    status: ConnectClusterStatus = Field(default_factory=ConnectClusterStatus)

    def problems(self) -> Iterator[Problem]:
        spec = self.spec
        if len(self.metadata.name) > NAME_MAX or "." in self.metadata.name:
            message = (
                f"{self.metadata.name!r} is not allowed: must have at most {NAME_MAX} characters and no dot"
            )
            yield Problem("metadata.name", message)
        if (spec.cluster_ref is None) == (spec.bootstrap_servers is None):
            yield Problem("spec", "either clusterRef or bootstrapServers is required")
        if spec.cluster_ref is None and spec.user is not None:
            yield Problem("spec.user", "is allowed with clusterRef only; use authentication")
        if spec.cluster_ref is not None:
            for name in ("tls", "authentication"):
                if getattr(spec, name) is not None:
                    yield Problem(f"spec.{name}", "is allowed with bootstrapServers only; use user")
        yield from _authentication_problems(spec.authentication)
        for setting in spec.config:
            reason = reserved_setting(setting)
            if reason:
                yield Problem(f"spec.config[{setting}]", f"is set by the operator: {reason}")
        yield from pod_problems(spec.template.pod, "spec.template.pod", "connect")


def reserved_setting(setting: str) -> str:
    """Why a worker's setting is not allowed, or ""."""
    for prefix in _OF_CLIENTS:
        setting = setting.removeprefix(prefix)
    if setting in _RESERVED:
        return _RESERVED[setting]
    return "from other fields of the spec" if setting.startswith(_RESERVED_PREFIXES) else ""


def _authentication_problems(given: ClientAuthentication | None) -> Iterator[Problem]:
    if given is None:
        return
    path = "spec.authentication"
    by_password, by_certificate = ["username", "password_secret"], ["certificate_and_key"]
    needed, others = by_password, by_certificate
    if given.type == "tls":
        needed, others = others, needed
    for name in needed:
        if getattr(given, name) is None:
            yield Problem(f"{path}.{_alias(name)}", f"is required for type {given.type}")
    for name in others:
        if getattr(given, name) is not None:
            yield Problem(f"{path}.{_alias(name)}", f"is not allowed for type {given.type}")


def _alias(name: str) -> str:
    return ClientAuthentication.model_fields[name].alias or name


class ConnectRef(Model):
    name: Name = Field(description="The ConnectCluster in the same namespace.")


class AutoRestart(Model):
    enabled: bool = Field(default=True, description="Whether what has failed is restarted.")
    max_restarts: int | None = Field(
        default=None, ge=1, description="Restarts in a row, after which it stays failed. Default: no limit."
    )


class ConnectorOffset(Model):
    """A pair of a partition and an offset, in the form of the connector (KIP-875)."""

    partition: FreeForm = Field(
        description="A source's own form, such as {filename: /a}; of a sink, kafka_topic and kafka_partition."
    )
    offset: FreeForm | None = Field(
        default=None,
        description="A source's own form, such as {position: 12}; of a sink, kafka_offset. Default: the "
        "offset of the partition is removed.",
    )


class AlterOffsets(Model):
    """A change of a stopped connector's offsets, done once per `requestId`."""

    model_config = rules(
        Rule(
            "either offsets or reset: true is required",
            "has(self.offsets) != (has(self.reset) && self.reset)",
        )
    )

    request_id: str = Field(
        min_length=1, max_length=253, description="Any text; a new one requests a new change."
    )
    offsets: Annotated[list[ConnectorOffset], Field(min_length=1)] | None = Field(
        default=None, description="The new offsets; those of other partitions stay."
    )
    reset: bool = Field(
        default=False, description="All offsets are removed: the connector starts from the beginning."
    )


class ConnectorSpec(Model):
    connect_ref: ConnectRef = Field(description="The ConnectCluster of the connector.")
    class_name: Annotated[str, Field(min_length=1)] = Field(
        alias="class", description="The class, or the alias of a plugin of the workers."
    )
    tasks_max: int = Field(default=1, ge=1, le=10_000, description="The maximum number of tasks.")
    config: ConfigMap = Field(
        default_factory=dict, description="The connector's settings, without connector.class and tasks.max."
    )
    state: Literal["running", "paused", "stopped"] = Field(
        default="running",
        description="paused: tasks stay and process nothing; stopped: tasks are removed (KIP-875).",
    )
    auto_restart: AutoRestart | None = Field(
        default=None,
        description="Restarts of a failed connector and its failed tasks, after 0, 2, 6, 12, 20, … up to 60 "
        "minutes. Default: none.",
    )
    list_offsets: bool = Field(
        default=False,
        description="Whether status.offsets has the offsets also while the connector is not stopped.",
    )
    alter_offsets: AlterOffsets | None = Field(
        default=None,
        description="A change of the offsets, when the connector is stopped. Default: none.",
    )


class TaskStatus(Model):
    id: int = Field(description="The number of the task.")
    state: str = Field(description="RUNNING, FAILED, PAUSED, UNASSIGNED, RESTARTING or DESTROYED.")
    worker_id: str = Field(default="", description="The worker that runs it.")
    trace: str = Field(default="", description="The beginning of the stack trace of its failure.")


class AutoRestartStatus(Model):
    count: int = Field(description="Restarts in a row.")
    last_restart: str = Field(description="When it was restarted last.")


class ConnectorStatus(Status):
    type: str = Field(default="", description="source or sink.")
    state: str = Field(
        default="", description="RUNNING, PAUSED, STOPPED, FAILED, UNASSIGNED or RESTARTING, of Connect."
    )
    worker_id: str = Field(default="", description="The worker that runs the connector.")
    trace: str = Field(default="", description="The beginning of the stack trace of its failure.")
    tasks: list[TaskStatus] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
        description="The tasks.",
    )
    tasks_running: int = Field(default=0, description="The number of tasks that run.")
    topics: list[str] = Field(default_factory=list, description="Topics that the connector has used.")
    handled_restart: str = Field(default="", description="The requested restart that was executed last.")
    handled_task_restart: str = Field(
        default="", description="The requested restart of a task that was executed last."
    )
    offsets: list[ConnectorOffset] = Field(
        default_factory=list,
        description="The offsets of a stopped connector, or with spec.listOffsets; at most 500.",
    )
    handled_offsets: str = Field(
        default="", description="The requestId of the change of offsets that was made last."
    )
    auto_restart: AutoRestartStatus | None = Field(default=None, description="Automatic restarts.")


class Connector(Resource[ConnectorSpec, ConnectorStatus]):
    definition: ClassVar[Definition] = Definition(
        kind="Connector",
        plural="connectors",
        short_names=("ocn",),
        condition_types=("Ready",),
        columns=(
            READY,
            PrinterColumn("State", "string", ".status.state"),
            PrinterColumn("Tasks", "integer", ".status.tasksRunning"),
            PrinterColumn("Connect", "string", ".spec.connectRef.name"),
            STATUS,
            AGE,
            PrinterColumn("Class", "string", ".spec.class", 1),
        ),
        transition_rules=(immutable("spec.connectRef", "connect_ref"),),
    )

    kind: Literal["Connector"]
    status: ConnectorStatus = Field(default_factory=ConnectorStatus)

    @property
    def deletes_in_kafka(self) -> bool:
        return True

    def problems(self) -> Iterator[Problem]:
        for name, reason in _OF_CONNECTOR.items():
            if name in self.spec.config:
                yield Problem(f"spec.config[{name}]", f"is set by the operator: {reason}")
        alter = self.spec.alter_offsets
        if alter is not None and (alter.offsets is not None) == alter.reset:
            yield Problem("spec.alterOffsets", "either offsets or reset: true is required")

    def notes(self) -> Iterator[str]:
        alter = self.spec.alter_offsets
        done = alter is None or alter.request_id == self.status.handled_offsets
        if not done and self.spec.state != "stopped":
            yield "spec.alterOffsets waits for state: stopped"
        requested = self.metadata.annotations.get(RESTART_TASK_ANNOTATION, "")
        if requested and task_of(requested) is None:
            effect = f"{requested!r} has no effect: must be TASK@TIME, such as 0@12:30"
            yield f"{RESTART_TASK_ANNOTATION}: {effect}"


def task_of(requested: str) -> int | None:
    """The task in the annotation: 0 of `0@2026-11-27T12:30:00Z`; None when it names none."""
    number, _, when = requested.partition("@")
    return int(number) if number.isdecimal() and when else None
