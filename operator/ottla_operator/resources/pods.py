"""The pod template of a resource: a strict subset of Kubernetes' PodTemplateSpec.

Used by BrokerCluster (`spec.template.pod`) and Pipeline (`spec.driver.template.pod`, and `spec.executor…`).
The operator builds the pods with its own security context, service account and volumes; a template adds to
these and replaces none of them. Fields that could give a pod more permissions (privileged containers,
namespaces and paths of the host, service accounts and their tokens) are not in the model. The CRD preserves
unknown fields of a template, which the API server would otherwise drop silently, so that the operator can
reject them by name in the status.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from ottla_operator.resources.common import FREE_FORM, GROUP, FreeForm, Model, Name, Problem, Quantity

# Labels that selectors of NetworkPolicies, Services and StatefulSets use.
_OWN_LABELS: Final = frozenset(
    f"app.kubernetes.io/{name}" for name in ("name", "instance", "component", "part-of", "managed-by")
)
RESTARTED_ANNOTATION: Final = f"{GROUP}/restarted-at"
"""Annotation of a pod template by which earlier versions of `kubectl ottla roll` requested a restart."""
# Deprecated annotations that can relax the security context.
_SECURITY_ANNOTATIONS: Final = (
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)
# Paths that the operator's images and pods use.
_OWN_PATHS: Final = tuple(
    PurePosixPath(path)
    for path in (
        *("/etc/ottla", "/etc/ottla-certificates", "/etc/ottla-secrets", "/etc/pod"),
        *("/opt/ottla", "/run/ottla", "/tmp", "/var/lib/ottla"),
    )
)
_OWN_VOLUMES: Final = frozenset(("certificates", "config", "data", "pod", "run", "tmp"))
_OWN_VARIABLES: Final = frozenset(("POD_NAME",))
MAIN_CONTAINERS: Final = frozenset(("broker", "driver", "executor"))
_OF_MAIN: Final = frozenset(("name", "env", "env_from", "volume_mounts"))


class PodModel(Model):
    model_config = ConfigDict(json_schema_extra={**FREE_FORM})


class PodMetadata(PodModel):
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class Toleration(PodModel):
    key: str | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class Affinity(PodModel):
    node_affinity: FreeForm | None = None
    pod_affinity: FreeForm | None = None
    pod_anti_affinity: FreeForm | None = None


class SecretName(PodModel):
    name: str


class KeyReference(PodModel):
    name: str
    key: str
    optional: bool | None = None


class FieldReference(PodModel):
    field_path: str
    api_version: str | None = None


class ResourceReference(PodModel):
    resource: str
    container_name: str | None = None
    divisor: Quantity | None = None


class VariableSource(PodModel):
    config_map_key_ref: KeyReference | None = None
    secret_key_ref: KeyReference | None = None
    field_ref: FieldReference | None = None
    resource_field_ref: ResourceReference | None = None


class Variable(PodModel):
    name: str
    value: str | None = None
    value_from: VariableSource | None = None


class OptionalReference(PodModel):
    name: str
    optional: bool | None = None


class VariablesSource(PodModel):
    prefix: str | None = None
    config_map_ref: OptionalReference | None = None
    secret_ref: OptionalReference | None = None


class VolumeMount(PodModel):
    name: Name
    mount_path: str
    sub_path: str | None = None
    read_only: bool | None = None


class ProjectedSource(PodModel):
    """A source of a projected volume; tokens of service accounts are not allowed."""

    config_map: FreeForm | None = None
    secret: FreeForm | None = None
    downward_api: Annotated[FreeForm | None, Field(alias="downwardAPI")] = None


class Projected(PodModel):
    sources: list[ProjectedSource]
    default_mode: int | None = None


class Volume(PodModel):
    """A volume; only types that access nothing outside the namespace."""

    name: Name
    config_map: FreeForm | None = None
    secret: FreeForm | None = None
    empty_dir: FreeForm | None = None
    projected: Projected | None = None
    downward_api: Annotated[FreeForm | None, Field(alias="downwardAPI")] = None
    persistent_volume_claim: FreeForm | None = None


class ContainerPort(PodModel):
    name: str | None = None
    container_port: int
    protocol: Literal["TCP", "UDP", "SCTP"] | None = None


class Container(PodModel):
    """Additional environment and mounts of the operator's container, which is identified by its name; or a
    sidecar."""

    name: Name
    image: str | None = None
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    command: list[str] = Field(default_factory=list)
    args: list[str] = Field(default_factory=list)
    working_dir: str | None = None
    env: list[Variable] = Field(default_factory=list)
    env_from: list[VariablesSource] = Field(default_factory=list)
    ports: list[ContainerPort] = Field(default_factory=list)
    resources: FreeForm = Field(default_factory=dict)
    volume_mounts: list[VolumeMount] = Field(default_factory=list)
    startup_probe: FreeForm | None = None
    readiness_probe: FreeForm | None = None
    liveness_probe: FreeForm | None = None


class InitContainer(Container):
    restart_policy: Literal["Always"] | None = None


class PodSpec(PodModel):
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: list[Toleration] = Field(default_factory=list)
    affinity: Affinity | None = None
    topology_spread_constraints: list[FreeForm] = Field(default_factory=list)
    priority_class_name: str | None = None
    scheduler_name: str | None = None
    image_pull_secrets: list[SecretName] = Field(default_factory=list)
    termination_grace_period_seconds: int | None = Field(default=None, ge=1)
    volumes: list[Volume] = Field(default_factory=list)
    containers: list[Container] = Field(default_factory=list)
    init_containers: list[InitContainer] = Field(default_factory=list)


class PodTemplate(PodModel):
    metadata: PodMetadata = Field(default_factory=PodMetadata)
    spec: PodSpec = Field(default_factory=PodSpec)

    def sidecars(self) -> Iterator[tuple[str, Container]]:
        """(path in the template, container) of all containers but the operator's own."""
        for n, container in enumerate(self.spec.containers):
            if container.name not in MAIN_CONTAINERS:
                yield f"spec.containers[{n}]", container
        for n, container in enumerate(self.spec.init_containers):
            yield f"spec.initContainers[{n}]", container


def pod_problems(template: PodTemplate, path: str, main: str) -> Iterator[Problem]:
    """Errors that the schema cannot express. `main`: the name of the operator's container in these pods."""
    yield from _metadata_problems(template.metadata, f"{path}.metadata")
    spec = template.spec
    for n, volume in enumerate(spec.volumes):
        where = f"{path}.spec.volumes[{n}]"
        if volume.name in _OWN_VOLUMES:
            yield Problem(f"{where}.name", f"{volume.name!r} is a volume of the operator; use another name")
        kinds = [name for name in Volume.model_fields if name != "name" and getattr(volume, name) is not None]
        if len(kinds) != 1:
            allowed = ", ".join(
                field.alias or name for name, field in Volume.model_fields.items() if name != "name"
            )
            yield Problem(where, f"must have exactly one of {allowed}")
    volumes = {volume.name for volume in spec.volumes}
    names: set[str] = set()
    for of, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for n, container in enumerate(containers):
            where = f"{path}.spec.{of}[{n}]"
            if container.name in names or (container.name == main and of != "containers"):
                yield Problem(f"{where}.name", f"{container.name!r} is used twice")
            names.add(container.name)
            yield from _container_problems(container, where, main, volumes)


def _metadata_problems(metadata: PodMetadata, path: str) -> Iterator[Problem]:
    for name in metadata.labels:
        if name in _OWN_LABELS or _is_ours(name):
            yield Problem(f"{path}.labels[{name}]", "is set by the operator; any other label is allowed")
    for name in metadata.annotations:
        if (_is_ours(name) and name != RESTARTED_ANNOTATION) or name.startswith(_SECURITY_ANNOTATIONS):
            yield Problem(
                f"{path}.annotations[{name}]", "is set by the operator; any other annotation is allowed"
            )


def _is_ours(name: str) -> bool:
    domain = name.partition("/")[0]
    return domain == GROUP or domain.endswith(f".{GROUP}")


def _container_problems(
    container: Container, path: str, main: str, volumes: Collection[str]
) -> Iterator[Problem]:
    if container.name in MAIN_CONTAINERS:
        if container.name != main:
            yield Problem(
                f"{path}.name", f"{container.name!r} is not allowed here; the container is {main!r}"
            )
        for name in sorted(container.model_fields_set - _OF_MAIN):
            alias = Container.model_fields[name].alias or name
            message = f"is set by the operator in the container {main}; allowed: env, envFrom, volumeMounts"
            yield Problem(f"{path}.{alias}", message)
    elif container.image is None:
        yield Problem(f"{path}.image", "is required")
    for n, variable in enumerate(container.env):
        if container.name == main and variable.name in _OWN_VARIABLES:
            yield Problem(f"{path}.env[{n}].name", f"{variable.name} is set by the operator")
    for n, mount in enumerate(container.volume_mounts):
        if mount.name not in volumes:
            message = f"{mount.name!r} is not allowed: must be a volume of this template"
            yield Problem(f"{path}.volumeMounts[{n}].name", message)
        yield from _path_problems(mount, f"{path}.volumeMounts[{n}].mountPath")


def _path_problems(mount: VolumeMount, path: str) -> Iterator[Problem]:
    given = PurePosixPath(mount.mount_path)
    if not given.is_absolute() or ".." in given.parts:
        yield Problem(path, f"{mount.mount_path!r} is not allowed: must be an absolute path without ..")
        return
    for own in _OWN_PATHS:
        if given.is_relative_to(own) or own.is_relative_to(given):
            yield Problem(path, f"{mount.mount_path!r} is not allowed: {own} is used by the operator")
            return


def sidecar_problem(templates: Mapping[str, PodTemplate]) -> str:
    """The error for templates with sidecars when the operator does not allow them, or "". `templates`: by
    path."""
    found = [f"{path}.{where}" for path, template in templates.items() for where, _ in template.sidecars()]
    if not found:
        return ""
    return (
        f"{found[0]}: this operator does not allow sidecars; "
        "--allow-sidecars of the operator (the chart's allowSidecars) allows them"
    )
