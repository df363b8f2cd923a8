"""The pod template of a resource: a strict subset of Kubernetes' PodTemplateSpec.

Used by BrokerCluster (`spec.template.pod`, `spec.zookeeper.managed.template.pod`), Pipeline
(`spec.driver.template.pod`, and `spec.executor…`) and ConnectCluster (`spec.template.pod`). The operator
builds the pods with its own security context and volumes; a template adds to these and replaces none of them.
Fields that could give a pod more permissions (privileged containers, namespaces and paths of the host, tokens
of service accounts) are not in the model.
The CRD preserves unknown fields of a template, which the API server would otherwise drop silently, so that
the operator can reject them by name in the status.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from ottla_operator.resources.common import (
    FREE_FORM,
    GROUP,
    FreeForm,
    Model,
    Name,
    Problem,
    Quantity,
    Rule,
    cel_list,
    cel_regex,
    rules,
)

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
        *("/opt/ottla", "/opt/connect/libs", "/run/ottla", "/tmp"),
        *("/var/lib/ottla", "/var/lib/ottla-volumes"),
    )
)
_OF_ZOOKEEPER: Final = (PurePosixPath("/etc/zookeeper"), PurePosixPath("/var/lib/zookeeper"))
_OWN_VOLUMES: Final = frozenset(("certificates", "config", "data", "pod", "run", "tmp"))
_DATA_VOLUME: Final = "^data-[0-9]{1,2}$"
_OWN_VARIABLES: Final = frozenset(("POD_NAME",))
MAIN_CONTAINERS: Final = frozenset(("broker", "connect", "driver", "executor", "zookeeper"))
_WITH_ACCOUNT: Final = frozenset(("broker", "connect", "zookeeper"))
_OF_MAIN: Final = frozenset(("name", "env", "env_from", "volume_mounts"))


_VOLUME_SOURCES: Final = (
    "configMap", "secret", "emptyDir", "projected", "downwardAPI", "persistentVolumeClaim",
)  # fmt: skip
_OF_SIDECARS: Final = (
    "image", "imagePullPolicy", "command", "args", "workingDir", "ports", "resources", "startupProbe",
    "readinessProbe", "livenessProbe",
)  # fmt: skip
_IS_MAIN: Final = f"self.name in {cel_list(sorted(MAIN_CONTAINERS))}"


def _paths_regex(paths: Iterable[PurePosixPath]) -> str:
    """A regular expression of the paths, what is below them, and the folders that they are in."""
    listed = sorted(str(path).lstrip("/") for path in paths)
    above = sorted({str(folder).lstrip("/") for path in paths for folder in path.parents} - {""})
    slashes = "/+"
    return (
        f"^/+(({'|'.join(path.replace('/', slashes) for path in listed)})(/.*)?|"
        f"({'|'.join(folder.replace('/', slashes) for folder in above)})?/*)$"
    )


class PodModel(Model):
    model_config = ConfigDict(json_schema_extra={**FREE_FORM})


class PodMetadata(PodModel):
    labels: dict[str, str] = Field(
        default_factory=dict, description="Labels of the pods, besides the operator's."
    )
    annotations: dict[str, str] = Field(
        default_factory=dict, description="Annotations of the pods, besides the operator's."
    )


class Toleration(PodModel):
    key: str | None = Field(
        default=None, description="The taint's key. Default: every key, with the operator Exists."
    )
    operator: Literal["Exists", "Equal"] | None = Field(
        default=None, description="How key and value are compared. Default: Equal."
    )
    value: str | None = Field(default=None, description="The taint's value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="The taint's effect. Default: every effect."
    )
    toleration_seconds: int | None = Field(
        default=None,
        description="Seconds that the pod stays on a node with the taint NoExecute. Default: for ever.",
    )


class Affinity(PodModel):
    node_affinity: FreeForm | None = Field(default=None, description="Nodes for the pods, as in Kubernetes.")
    pod_affinity: FreeForm | None = Field(default=None, description="Pods to be near to, as in Kubernetes.")
    pod_anti_affinity: FreeForm | None = Field(
        default=None, description="Pods to be away from, as in Kubernetes."
    )


class SecretName(PodModel):
    name: str = Field(description="A Secret in the same namespace, with credentials of an image registry.")


class KeyReference(PodModel):
    name: str = Field(description="The name of the ConfigMap or Secret, in the same namespace.")
    key: str = Field(description="The key in it.")
    optional: bool | None = Field(default=None, description="Whether it may be missing. Default: false.")


class FieldReference(PodModel):
    field_path: str = Field(description="A field of the pod, such as metadata.name.")
    api_version: str | None = Field(
        default=None, description="The version of the field's schema. Default: v1."
    )


class ResourceReference(PodModel):
    resource: str = Field(description="A resource of the container, such as limits.memory.")
    container_name: str | None = Field(
        default=None, description="The container. Default: the one with the variable."
    )
    divisor: Quantity | None = Field(default=None, description="The unit of the value. Default: 1.")


class VariableSource(PodModel):
    config_map_key_ref: KeyReference | None = Field(default=None, description="A key of a ConfigMap.")
    secret_key_ref: KeyReference | None = Field(default=None, description="A key of a Secret.")
    field_ref: FieldReference | None = Field(default=None, description="A field of the pod.")
    resource_field_ref: ResourceReference | None = Field(
        default=None, description="A resource of a container."
    )


class Variable(PodModel):
    name: str = Field(description="The name of the variable.")
    value: str | None = Field(default=None, description="The value; $(NAME) refers to an earlier variable.")
    value_from: VariableSource | None = Field(
        default=None, description="The source of the value, instead of `value`."
    )


class OptionalReference(PodModel):
    name: str = Field(description="The name of the ConfigMap or Secret, in the same namespace.")
    optional: bool | None = Field(default=None, description="Whether it may be missing. Default: false.")


class VariablesSource(PodModel):
    prefix: str | None = Field(default=None, description="Text before each name. Default: none.")
    config_map_ref: OptionalReference | None = Field(
        default=None, description="A ConfigMap whose keys become variables."
    )
    secret_ref: OptionalReference | None = Field(
        default=None, description="A Secret whose keys become variables."
    )


class VolumeMount(PodModel):
    model_config = rules(
        Rule(
            "mountPath must be an absolute path without ..",
            "self.mountPath.startsWith('/') && !self.mountPath.matches('(^|/)[.][.](/|$)')",
        ),
        Rule(
            f"mountPath is used by the operator, as are {', '.join(map(str, _OWN_PATHS))}",
            f"!self.mountPath.matches({cel_regex(_paths_regex(_OWN_PATHS))})",
        ),
        free_form=True,
    )

    name: Name = Field(description="A volume of this template.")
    mount_path: str = Field(
        max_length=256, description="The absolute path in the container; not one that the operator uses."
    )
    sub_path: str | None = Field(default=None, description="The path in the volume. Default: its root.")
    read_only: bool | None = Field(
        default=None, description="Whether the container may only read. Default: false."
    )


class ProjectedSource(PodModel):
    """A source of a projected volume; tokens of service accounts are not allowed."""

    config_map: FreeForm | None = Field(default=None, description="A ConfigMap, as in Kubernetes.")
    secret: FreeForm | None = Field(default=None, description="A Secret, as in Kubernetes.")
    downward_api: Annotated[FreeForm | None, Field(alias="downwardAPI")] = Field(
        default=None, description="Fields of the pod, as in Kubernetes."
    )


class Projected(PodModel):
    sources: list[ProjectedSource] = Field(description="The sources of the files.")
    default_mode: int | None = Field(
        default=None, description="The permissions of the files, as a decimal number. Default: 420 (0644)."
    )


class Volume(PodModel):
    """A volume; only types that access nothing outside the namespace."""

    model_config = rules(
        Rule(
            f"name: {', '.join(sorted(_OWN_VOLUMES))} and data-0 to data-99 are volumes of the operator; use "
            "another name",
            f"!(self.name in {cel_list(sorted(_OWN_VOLUMES))}) && !self.name.matches('{_DATA_VOLUME}')",
        ),
        Rule(
            f"must have exactly one of {', '.join(_VOLUME_SOURCES)}",
            f"[{', '.join(f'has(self.{name})' for name in _VOLUME_SOURCES)}].exists_one(x, x)",
        ),
        free_form=True,
    )

    name: Name = Field(description="The name that volumeMounts refer to; not one of the operator's volumes.")
    config_map: FreeForm | None = Field(default=None, description="A ConfigMap, as in Kubernetes.")
    secret: FreeForm | None = Field(default=None, description="A Secret, as in Kubernetes.")
    empty_dir: FreeForm | None = Field(default=None, description="An empty directory, as in Kubernetes.")
    projected: Projected | None = Field(default=None, description="Several sources in one directory.")
    downward_api: Annotated[FreeForm | None, Field(alias="downwardAPI")] = Field(
        default=None, description="Fields of the pod, as in Kubernetes."
    )
    persistent_volume_claim: FreeForm | None = Field(
        default=None, description="An existing PersistentVolumeClaim, as in Kubernetes."
    )


class ContainerPort(PodModel):
    name: str | None = Field(default=None, description="The name of the port. Default: none.")
    container_port: int = Field(description="The port number.")
    protocol: Literal["TCP", "UDP", "SCTP"] | None = Field(
        default=None, description="The protocol. Default: TCP."
    )


class Container(PodModel):
    """Additional environment and mounts of the operator's container, which is identified by its name; or a
    sidecar."""

    model_config = rules(
        Rule("image is required for a sidecar", f"{_IS_MAIN} || has(self.image)"),
        Rule(
            "of the operator's container, env, envFrom and volumeMounts are allowed; it sets the rest itself",
            f"!({_IS_MAIN}) || !({' || '.join(f'has(self.{name})' for name in _OF_SIDECARS)})",
        ),
        Rule(
            f"env: {', '.join(sorted(_OWN_VARIABLES))} is set by the operator",
            f"!({_IS_MAIN}) || !has(self.env) || "
            f"self.env.all(e, !(e.name in {cel_list(sorted(_OWN_VARIABLES))}))",
        ),
        free_form=True,
    )

    name: Name = Field(description="The operator's container, or a name of a sidecar.")
    image: str | None = Field(default=None, description="The image of a sidecar.")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None,
        description="When a sidecar's image is pulled. Default: Always for the tag latest, else "
        "IfNotPresent.",
    )
    command: list[str] = Field(
        default_factory=list, description="The command of a sidecar. Default: that of its image."
    )
    args: list[str] = Field(
        default_factory=list, description="The arguments of a sidecar. Default: those of its image."
    )
    working_dir: str | None = Field(
        default=None, description="The working directory of a sidecar. Default: that of its image."
    )
    env: list[Variable] = Field(default_factory=list, max_length=500, description="Environment variables.")
    env_from: list[VariablesSource] = Field(
        default_factory=list, description="Sources of further environment variables."
    )
    ports: list[ContainerPort] = Field(default_factory=list, description="Ports of a sidecar.")
    resources: FreeForm = Field(
        default_factory=dict, description="Requests and limits of a sidecar, as in Kubernetes. Default: none."
    )
    volume_mounts: list[VolumeMount] = Field(
        default_factory=list, max_length=64, description="Volumes of this template in the container."
    )
    startup_probe: FreeForm | None = Field(
        default=None, description="The startup probe of a sidecar, as in Kubernetes. Default: none."
    )
    readiness_probe: FreeForm | None = Field(
        default=None, description="The readiness probe of a sidecar, as in Kubernetes. Default: none."
    )
    liveness_probe: FreeForm | None = Field(
        default=None, description="The liveness probe of a sidecar, as in Kubernetes. Default: none."
    )


class InitContainer(Container):
    """A container that ends before the others start, or a sidecar that starts before them."""

    restart_policy: Literal["Always"] | None = Field(
        default=None,
        description="Always: the container runs beside the others. Default: it ends before they start.",
    )


_MOUNTED: Final = (
    "!has(c.volumeMounts) || "
    "c.volumeMounts.all(m, has(self.volumes) && self.volumes.exists(v, v.name == m.name))"
)


class PodSpec(PodModel):
    model_config = rules(
        *(
            Rule(
                f"volumeMounts of {of}: name must be a volume of this template",
                f"!has(self.{of}) || self.{of}.all(c, {_MOUNTED})",
            )
            for of in ("containers", "initContainers")
        ),
        Rule(
            "containers: a name is used twice",
            "!has(self.containers) || "
            "self.containers.all(c, self.containers.exists_one(d, d.name == c.name))",
        ),
        Rule(
            "initContainers: a name is used twice",
            "!has(self.initContainers) || self.initContainers.all(c, "
            f"!(c.name in {cel_list(sorted(MAIN_CONTAINERS))}) && "
            "self.initContainers.exists_one(d, d.name == c.name) && "
            "(!has(self.containers) || !self.containers.exists(d, d.name == c.name)))",
        ),
        free_form=True,
    )

    node_selector: dict[str, str] = Field(
        default_factory=dict, description="Labels of nodes for the pods. Default: all nodes."
    )
    tolerations: list[Toleration] = Field(default_factory=list, description="Taints that the pods tolerate.")
    affinity: Affinity | None = Field(
        default=None, description="Rules for nodes and pods to be near to or away from."
    )
    topology_spread_constraints: list[FreeForm] = Field(
        default_factory=list,
        description="Constraints for the spread of pods, as in Kubernetes. Default: balanced over racks "
        "and nodes where possible.",
    )
    priority_class_name: str | None = Field(
        default=None, description="The PriorityClass of the pods. Default: that of the Kubernetes cluster."
    )
    service_account_name: str | None = Field(
        default=None,
        min_length=1,
        description="The ServiceAccount of the pods of brokers or ZooKeeper servers, which get no token of "
        "it. Default: one of the operator's.",
    )
    scheduler_name: str | None = Field(
        default=None, description="The scheduler of the pods. Default: default-scheduler."
    )
    image_pull_secrets: list[SecretName] = Field(
        default_factory=list, description="Secrets with credentials of image registries."
    )
    termination_grace_period_seconds: int | None = Field(
        default=None, ge=1, description="Seconds from SIGTERM to SIGKILL. Default: 30 for brokers."
    )
    volumes: list[Volume] = Field(default_factory=list, max_length=64, description="Additional volumes.")
    containers: list[Container] = Field(
        default_factory=list,
        max_length=16,
        description="The operator's container by its name, with additions; and sidecars, if the operator "
        "allows them.",
    )
    init_containers: list[InitContainer] = Field(
        default_factory=list, max_length=16, description="Init containers, if the operator allows sidecars."
    )


class PodTemplate(PodModel):
    metadata: PodMetadata = Field(
        default_factory=PodMetadata, description="Additional labels and annotations."
    )
    spec: PodSpec = Field(default_factory=PodSpec, description="Additions to the pod's spec.")

    def sidecars(self) -> Iterator[tuple[str, Container]]:
        """(path in the template, container) of all containers but the operator's own."""
        for n, container in enumerate(self.spec.containers):
            if container.name not in MAIN_CONTAINERS:
                yield f"spec.containers[{n}]", container
        for n, container in enumerate(self.spec.init_containers):
            yield f"spec.initContainers[{n}]", container


def pod_rules(main: str) -> Iterator[Rule]:
    """The rules of a model with a field `pod` whose operator's container is `main`."""
    of_spec = "!has(self.pod) || !has(self.pod.spec)"
    others = cel_list(sorted(MAIN_CONTAINERS - {main}))
    yield Rule(
        f"{', '.join(sorted(MAIN_CONTAINERS - {main}))} are not allowed here; the container is {main}",
        f"{of_spec} || !has(self.pod.spec.containers) || "
        f"self.pod.spec.containers.all(c, !(c.name in {others}))",
    )
    if main not in _WITH_ACCOUNT:
        yield Rule(
            "serviceAccountName is set by the operator: it needs permissions",
            f"{of_spec} || !has(self.pod.spec.serviceAccountName)",
        )


def pod_problems(template: PodTemplate, path: str, main: str) -> Iterator[Problem]:
    """Errors that the schema cannot express. `main`: the name of the operator's container in these pods."""
    yield from _metadata_problems(template.metadata, f"{path}.metadata")
    spec = template.spec
    if spec.service_account_name is not None and main not in _WITH_ACCOUNT:
        yield Problem(f"{path}.spec.serviceAccountName", "is set by the operator: it needs permissions")
    for n, volume in enumerate(spec.volumes):
        where = f"{path}.spec.volumes[{n}]"
        if volume.name in _OWN_VOLUMES or re.match(_DATA_VOLUME, volume.name):
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
        own = (*_OWN_PATHS, *_OF_ZOOKEEPER) if main == "zookeeper" else _OWN_PATHS
        yield from _path_problems(mount, f"{path}.volumeMounts[{n}].mountPath", own)


def _path_problems(mount: VolumeMount, path: str, paths: Collection[PurePosixPath]) -> Iterator[Problem]:
    # Two slashes at the beginning are one on Linux, and a root of its own for PurePosixPath.
    given = PurePosixPath(re.sub("^/+", "/", mount.mount_path))
    if not given.is_absolute() or ".." in given.parts:
        yield Problem(path, f"{mount.mount_path!r} is not allowed: must be an absolute path without ..")
        return
    for own in paths:
        if given.is_relative_to(own) or own.is_relative_to(given):
            yield Problem(path, f"{mount.mount_path!r} is not allowed: {own} is used by the operator")
            return


def sidecar_problems(templates: Mapping[str, PodTemplate]) -> Iterator[Problem]:
    """The sidecars in templates, for an operator that does not allow them. `templates`: by path."""
    for path, template in templates.items():
        for where, _ in template.sidecars():
            yield Problem(
                f"{path}.{where}",
                "this operator does not allow sidecars; --allow-sidecars of the operator (the chart's "
                "allowSidecars) allows them",
            )
