"""The base of all custom resources: strict model, metadata, names, quantities, transition rules.

Used by the resource modules, by `loading` (YAML files) and by `crds` (the generated
CustomResourceDefinitions). Field names are snake_case in Python and camelCase in YAML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from pydantic.alias_generators import to_camel

from ottla_operator.conditions import Condition

GROUP = "ottla.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

PAUSE_ANNOTATION = f"{GROUP}/pause-reconciliation"
MANAGED_ANNOTATION = f"{GROUP}/managed"
APPROVE_ANNOTATION = f"{GROUP}/approve-rollout"
RESTART_ANNOTATION = f"{GROUP}/restart-requested-at"

REASSIGN_ANNOTATION = f"{GROUP}/reassign"
REBALANCE_ANNOTATION = f"{GROUP}/rebalance"
REPLACE_KEY_ANNOTATION = f"{GROUP}/force-replace"
RENEW_ANNOTATION = f"{GROUP}/force-renew"
HIBERNATE_ANNOTATION = f"{GROUP}/hibernate"
FENCE_ANNOTATION = f"{GROUP}/fenced"
FENCE_NOW_ANNOTATION = f"{GROUP}/fence-now"
BACKUP_ANNOTATION = f"{GROUP}/backup-requested-at"
RESTART_TASK_ANNOTATION = f"{GROUP}/restart-task-requested-at"
RESTART_POD_ANNOTATION = f"{GROUP}/restart"
NEXT_IDS_ANNOTATION = f"{GROUP}/next-broker-ids"
REMOVE_IDS_ANNOTATION = f"{GROUP}/remove-broker-ids"
DELETE_VOLUME_ANNOTATION = f"{GROUP}/delete-pod-and-pvc"

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

FREE_FORM: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}


class Model(BaseModel):
    """A strict model: an unknown field or a value of the wrong type is an error."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        frozen=True,
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in a resource: the field's path, and what is allowed there."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


@dataclass(frozen=True, slots=True)
class TransitionRule:
    """A rule about how a spec may change: CEL for the API server, `allows` for `ottla up`."""

    path: str
    message: str
    cel: str
    allows: Callable[[Any, Any], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule about the fields of one object, in CEL for the API server; the resource's `problems` have it,
    too."""

    message: str
    cel: str


def rules(*of_model: Rule, free_form: bool = False) -> ConfigDict:
    """The configuration of a model with rules. `free_form`: the API server keeps unknown fields."""
    validations: list[Any] = [{"rule": rule.cel, "message": rule.message} for rule in of_model]
    return ConfigDict(
        json_schema_extra={**(FREE_FORM if free_form else {}), "x-kubernetes-validations": validations}
    )


def cel_list(items: Iterable[str]) -> str:
    """Texts as a list in CEL, in their order."""
    return "[" + ", ".join(f"'{item}'" for item in items) + "]"


def cel_regex(pattern: str) -> str:
    """A regular expression as a text in CEL."""
    return "'" + pattern.replace("\\", "\\\\") + "'"


def immutable(path: str, attribute: str, *, optional: bool = False) -> TransitionRule:
    """A field of the spec that may not change once set (nor be set or unset later)."""
    name = path.removeprefix("spec.")
    cel = f"self.{name} == oldSelf.{name}"
    if optional:
        cel = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || {cel})"
    return TransitionRule(
        path=path,
        message=f"{name} is immutable",
        cel=cel,
        allows=lambda old, new: bool(getattr(old, attribute) == getattr(new, attribute)),
    )


Name = Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)]
SecretEntry = Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]

_INT_OR_STRING: dict[str, Any] = {"x-kubernetes-int-or-string": True, "anyOf": None, "type": None}
IntOrString = Annotated[str | int, Field(json_schema_extra=_INT_OR_STRING)]
_QUANTITY = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P|)$")
# As in Kubernetes: a number, or a number with a suffix.
Quantity = Annotated[
    str | int, Field(json_schema_extra={**_INT_OR_STRING, "pattern": _QUANTITY.pattern, "minimum": 0})
]

Duration = Annotated[str, Field(pattern=r"^([0-9]+(ms|s|m|h))+$")]

# Kafka's settings are strings; in YAML they may be written without quotes.
ConfigValue = str | int | float | bool
ConfigMap = Annotated[dict[str, ConfigValue], Field(json_schema_extra={**FREE_FORM})]
FreeForm = Annotated[dict[str, Any], Field(json_schema_extra={**FREE_FORM})]

_FACTORS = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip
_DURATION_PART = re.compile(r"([0-9]+)(ms|s|m|h)")
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def parse_quantity(value: str | int) -> int | None:
    """The bytes (or count) of a Kubernetes quantity; None when it is invalid."""
    match = _QUANTITY.match(str(value))
    return int(float(match[1]) * _FACTORS[match[2]]) if match else None


def parse_duration_ms(value: str) -> int:
    """Milliseconds of a duration such as `90s`, `10m` or `1h30m`."""
    return sum(int(number) * _DURATION_MS[unit] for number, unit in _DURATION_PART.findall(value))


def config_text(value: ConfigValue) -> str:
    """A setting as Kafka writes it: `true`, not `True`; `1`, not `1.0`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def config_texts(config: Mapping[str, ConfigValue]) -> dict[str, str]:
    """All settings as Kafka writes them."""
    return {name: config_text(value) for name, value in config.items()}


class ClusterRef(Model):
    name: Name = Field(description="The BrokerCluster in the same namespace.")


class Metadata(Model):
    """The fields of Kubernetes' ObjectMeta that the operator uses; others are ignored."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)]
    namespace: str | None = None
    uid: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)

    @property
    def paused(self) -> bool:
        return self.annotations.get(PAUSE_ANNOTATION, "").lower() == "true"

    @property
    def managed(self) -> bool:
        return self.annotations.get(MANAGED_ANNOTATION, "").lower() != "false"

    @property
    def acted_upon(self) -> bool:
        """Whether the operator executes steps for the resource: it is neither paused nor unmanaged."""
        return self.managed and not self.paused

    @property
    def deleting(self) -> bool:
        return self.deletion_timestamp is not None

    @property
    def age_key(self) -> tuple[str, str, str]:
        """A sort key by age, the oldest first, with a deterministic order of equal ages."""
        return (self.creation_timestamp, self.name, self.uid)


class Status(Model):
    """The fields of every status. Only the store on Kubernetes reads and writes `last_valid_spec` and
    `operator`; the reconciler sees statuses without them."""

    observed_generation: int = Field(
        default=0, description="The generation of the resource that the operator has reconciled last."
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        description="The state of the resource.",
    )
    warnings: list[str] = Field(
        default_factory=list,
        description="What the spec says and has no effect, or an unwanted one; the resource may be Ready.",
    )
    last_valid_spec: FreeForm | None = Field(
        default=None,
        description="The last spec that was valid, which stays in force when a newer one is invalid.",
    )
    operator: str | None = Field(
        default=None,
        description="The operator that reconciles the resource: NAMESPACE/NAME of its Deployment.",
    )


class UnmanagedSetting(Model):
    """A setting that another tool has set."""

    name: str = Field(description="The name of the setting.")
    value: str | None = Field(
        default=None, description="None for a sensitive value, which brokers do not describe."
    )


MANAGED_SETTINGS: Final = (
    "Settings that the resource sets: those that the spec names, and those that it named before, until they "
    "are reset."
)
UNMANAGED_SETTINGS: Final = "Settings that other tools have set, and that the operator does not change."
LISTED_BY_NAME: Final[dict[str, Any]] = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}


SpecT = TypeVar("SpecT", bound=Model)
StatusT = TypeVar("StatusT", bound=Status)


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    name: str
    type: str
    json_path: str
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Definition:
    """The parts of a CustomResourceDefinition besides its schema."""

    kind: str
    plural: str
    short_names: tuple[str, ...]
    condition_types: tuple[str, ...]
    columns: tuple[PrinterColumn, ...]
    transition_rules: tuple[TransitionRule, ...] = ()
    rules: tuple[Rule, ...] = ()
    """Rules of the whole resource, which read metadata.name and the spec."""
    scalable: bool = False
    """It has the scale subresource: spec.replicas, status.replicas and status.selector."""

    @property
    def singular(self) -> str:
        return self.kind.lower()


class Resource(Model, Generic[SpecT, StatusT]):
    """A custom resource; the concrete classes set `definition` and the two type arguments."""

    definition: ClassVar[Definition]

    api_version: str = API_VERSION
    kind: str
    metadata: Metadata
    spec: SpecT
    status: StatusT

    _refused: tuple[str, ...] = PrivateAttr(default=())

    @property
    def refused(self) -> tuple[str, ...]:
        """Problems of the newest spec, when `spec` is the last valid one instead of it."""
        return self._refused

    def in_force_despite(self, problems: Sequence[str]) -> Self:
        """This resource, with the last valid spec, as the one in force: the newest spec has `problems`."""
        kept = self.model_copy()
        kept._refused = tuple(problems)
        return kept

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.metadata.name}"

    @property
    def deletes_in_kafka(self) -> bool:
        """Whether a deletion of the resource deletes something in Kafka, too: it waits for the operator."""
        return False

    def problems(self) -> Iterator[Problem]:
        """Errors in the spec that the schema cannot express; none by default."""
        return iter(())

    def notes(self) -> Iterator[str]:
        """Warnings about the spec; none by default. Planners add those that depend on what they observe."""
        return iter(())

    def ignored_by_up(self) -> Iterator[str]:
        """Notes about what `ottla up` ignores; nothing by default."""
        return iter(())

    def transition_problems(self, old: Resource[Any, Any]) -> Iterator[Problem]:
        for rule in self.definition.transition_rules:
            if not rule.allows(old.spec, self.spec):
                yield Problem(rule.path, rule.message)


def condition_column(name: str, condition: str, field: str = "status", priority: int = 0) -> PrinterColumn:
    """A column with a field of a condition."""
    return PrinterColumn(name, "string", f'.status.conditions[?(@.type=="{condition}")].{field}', priority)


# Columns of several kinds.
READY: Final = condition_column("Ready", "Ready")
STATUS: Final = condition_column("Status", "Ready", "reason")
AGE: Final = PrinterColumn("Age", "date", ".metadata.creationTimestamp")
CLUSTER: Final = PrinterColumn("Cluster", "string", ".spec.clusterRef.name")
DESIRED: Final = PrinterColumn("Desired", "integer", ".spec.replicas")


def name_rule(length_max: int, allowed: str = "characters and no dot") -> Rule:
    """The rule for names of resources that become parts of names of pods and labels."""
    return Rule(
        f"metadata.name must have at most {length_max} {allowed}",
        f"self.metadata.name.size() <= {length_max} && !self.metadata.name.contains('.')",
    )


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
