"""BrokerPool: brokers of a BrokerCluster with storage, resources, rack and template of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Literal

from pydantic import Field

from ottla_operator.resources.cluster import BrokerCluster, BrokerClusterSpec, PoolBrokers
from ottla_operator.resources.common import (
    AGE,
    CLUSTER,
    DESIRED,
    NEXT_IDS_ANNOTATION,
    READY,
    REMOVE_IDS_ANNOTATION,
    STATUS,
    ClusterRef,
    Definition,
    FreeForm,
    Model,
    PrinterColumn,
    Problem,
    Resource,
    Status,
    immutable,
    name_rule,
)
from ottla_operator.resources.pods import PodTemplate, pod_problems
from ottla_operator.resources.storage import POOL_VOLUMES_RULE, BrokerStorage

# The cluster's own pool has the ids below. Names of pods and their labels have room for four digits.
FIRST_ID: Final = 1000
LAST_ID: Final = 9999

_NAME_MAX: Final = 63
_RANGE = re.compile(r"^([0-9]{1,10})(?:-([0-9]{1,10}))?$")


class PoolTemplate(Model):
    pod: PodTemplate | None = Field(
        default=None,
        description="A pod template that is merged into that of the pool's brokers. Default: the cluster's.",
    )
    topology_spread_constraints: list[FreeForm] | None = Field(
        default=None,
        description="Constraints for the spread of the pool's brokers, as in Kubernetes. Default: the "
        "cluster's.",
    )


class BrokerPoolSpec(Model):
    cluster_ref: ClusterRef = Field(description="The cluster of the brokers.")
    replicas: int = Field(
        ge=0,
        le=1000,
        description="The number of brokers. Each has an id of 1000 to 9999, the lowest free one, which it "
        "keeps. With fewer, the brokers of the highest ids leave; annotations of the pool choose others.",
    )
    storage: BrokerStorage | None = Field(
        default=None,
        description="The volume of each broker, or its volumes. Default: as in the cluster's spec.storage.",
    )
    resources: FreeForm | None = Field(
        default=None,
        description="Requests and limits of the broker's container, as in Kubernetes. Default: the "
        "cluster's spec.resources.",
    )
    rack: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        description="The rack (broker.rack) of all brokers of the pool. Default: from the cluster's "
        "spec.rack.",
    )
    template: PoolTemplate = Field(
        default_factory=PoolTemplate, description="Additions to the pods of the pool's brokers."
    )


class BrokerPoolStatus(Status):
    replicas: int = Field(default=0, description="The number of brokers, with those that leave.")
    ready_replicas: int = Field(default=0, description="The number of brokers that are ready and stay.")
    broker_ids: list[int] = Field(default_factory=list, description="The ids of the brokers that stay.")
    leaving_broker_ids: list[int] = Field(
        default_factory=list, description="The ids of the brokers that leave, and are not removed yet."
    )
    selector: str = Field(default="", description="The label selector of the brokers' pods.")


class BrokerPool(Resource[BrokerPoolSpec, BrokerPoolStatus]):
    definition: ClassVar[Definition] = Definition(
        kind="BrokerPool",
        plural="brokerpools",
        short_names=("bp",),
        condition_types=("Ready",),
        columns=(
            READY,
            CLUSTER,
            DESIRED,
            PrinterColumn("Brokers", "integer", ".status.readyReplicas"),
            PrinterColumn("Ids", "string", ".status.brokerIds"),
            STATUS,
            AGE,
            PrinterColumn("Rack", "string", ".spec.rack", 1),
            PrinterColumn("Leaving", "string", ".status.leavingBrokerIds", 1),
        ),
        rules=(name_rule(_NAME_MAX, "lower-case letters, digits and -"),),
        transition_rules=(immutable("spec.clusterRef", "cluster_ref"), POOL_VOLUMES_RULE),
        scalable=True,
    )

    kind: Literal["BrokerPool"]
    status: BrokerPoolStatus = Field(default_factory=BrokerPoolStatus)

    def problems(self) -> Iterator[Problem]:
        if len(self.metadata.name) > _NAME_MAX or "." in self.metadata.name:
            message = f"use at most {_NAME_MAX} lower-case letters, digits and -"
            yield Problem("metadata.name", f"{self.metadata.name!r} is not allowed: {message}")
        if self.spec.storage is not None:
            yield from self.spec.storage.problems("spec.storage")
        if self.spec.template.pod is not None:
            yield from pod_problems(self.spec.template.pod, "spec.template.pod", "broker")

    def notes(self) -> Iterator[str]:
        for annotation in (NEXT_IDS_ANNOTATION, REMOVE_IDS_ANNOTATION):
            _, problem = listed_ids(self.metadata.annotations.get(annotation, ""))
            if problem:
                yield f"metadata.annotations[{annotation}]: {problem}"

    def ignored_by_up(self) -> Iterator[str]:
        for name in ("resources", "template"):
            if name in self.spec.model_fields_set:
                yield f"spec.{name} has an effect on Kubernetes only and is ignored"

    def brokers_in(
        self, cluster: BrokerCluster, brokers: Sequence[int], leaving: Sequence[int]
    ) -> PoolBrokers:
        """The pool's brokers in this cluster. What the pool does not set is as in the cluster."""
        return PoolBrokers(
            self.metadata.name,
            tuple(brokers),
            tuple(leaving),
            self._spec_in(cluster.spec),
            self.spec.rack,
            is_changed=self.status.observed_generation != self.metadata.generation,
            paused=not self.metadata.acted_upon,
        )

    def _spec_in(self, spec: BrokerClusterSpec) -> BrokerClusterSpec:
        own, template = self.spec, self.spec.template
        of_template = {
            name: value
            for name, value in (
                ("pod", template.pod),
                ("topology_spread_constraints", template.topology_spread_constraints),
            )
            if value is not None
        }
        changes: dict[str, object] = {"template": spec.template.model_copy(update=of_template)}
        if own.storage is not None:
            changes["storage"] = own.storage
        if own.resources is not None:
            changes["resources"] = own.resources
        if own.rack is not None:
            changes["rack"] = None
        return spec.model_copy(update=changes)


def listed_ids(text: str) -> tuple[list[int], str]:
    """The ids in an annotation such as `[1000-1002,1010]`, in their order, and what is wrong with it or "".
    A wrong list has no ids."""
    stripped = text.strip().removeprefix("[").removesuffix("]").strip()
    found: list[int] = []
    for part in stripped.split(",") if stripped else ():
        match = _RANGE.match(part.strip())
        if match is None:
            return [], f"{text!r} is not a list of broker ids, such as [1000-1002,1010]"
        first, last = int(match[1]), int(match[2] or match[1])
        if not FIRST_ID <= first <= last <= LAST_ID:
            return [], f"{part.strip()} is not allowed: ids of pools are {FIRST_ID} to {LAST_ID}"
        found += range(first, last + 1)
    return found, ""
