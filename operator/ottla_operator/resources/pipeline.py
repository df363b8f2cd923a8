"""Pipeline: a job of the pipeline on Spark that reads a cluster's topics, kept running until it is suspended.

The job's configuration is not looked into here: the job itself checks it, and what it complains of becomes
the condition Failing. Filled in are the brokers of `clusterRef`, the login of `user`, the job's name and,
with `storage`, the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ottla_operator.resources.common import (
    AGE,
    ClusterRef,
    Definition,
    FreeForm,
    Model,
    Name,
    PrinterColumn,
    Problem,
    Quantity,
    Resource,
    Status,
    condition_column,
    immutable,
    parse_quantity,
)
from ottla_operator.resources.pods import PodTemplate, pod_problems

JOB = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_MAX = 40  # "NAME-driver-0" and a revision's hash are labels of 63 characters at most
MEMORY_MIN = 1 << 30

# What comes from elsewhere in the resource.
_FILLED_IN = {"bootstrap": "clusterRef", "sasl": "user", "tls": "user"}

# How fast Spark asks for executors, which is a job's own affair.
_OF_ALLOCATION = "spark.kubernetes.allocation."


class DriverTemplate(Model):
    pod: PodTemplate = Field(default_factory=PodTemplate, description="Added to the pod, as in Kubernetes.")


class Driver(Model):
    resources: FreeForm = Field(
        default_factory=dict, description="Of the container; Spark's heap is a part of its memory."
    )
    template: DriverTemplate = Field(default_factory=DriverTemplate)


class Executor(Driver):
    instances: int = Field(
        default=1, ge=0, le=10_000, description="None: the driver does the work itself, on all its cores."
    )
    cores: int = Field(default=1, ge=1, le=256, description="Tasks at a time, of each executor.")


class PipelineStorage(Model):
    """A volume for the checkpoint and whatever else the configuration names by a relative path."""

    size: Quantity
    storage_class: str | None = Field(default=None, alias="class")
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = Field(
        default="ReadWriteOnce", description="ReadWriteOnce keeps the executors on the driver's node."
    )
    delete_claim: bool = Field(default=False, description="Delete the volume with the Pipeline.")


class PipelineSpec(Model):
    cluster_ref: ClusterRef
    user: Name | None = Field(
        default=None, description="The User by whom the job logs in, where the cluster asks for one."
    )
    job: Annotated[str, Field(pattern=JOB, max_length=63)] = Field(
        description="As `ottla-pipeline` names it: lake, audit, mirror, windows, python …"
    )
    config: FreeForm = Field(default_factory=dict, description="The job's own, as in its configuration file.")
    suspend: bool = Field(
        default=False, description="Stop after the batch that is under way; resumed, it goes on from there."
    )
    image: str | None = None
    driver: Driver = Field(default_factory=Driver)
    executor: Executor = Field(default_factory=Executor)
    storage: PipelineStorage | None = None


class LastBatch(Model):
    """Unknown fields of a newer job are left out by whom they are read."""

    id: int
    records: int
    duration_ms: int
    ended_at: str


class PipelineStatus(Status):
    application_id: str = Field(default="", description="Spark's.")
    lag: int | None = Field(default=None, description="Records that are there and not yet read.")
    last_batch: LastBatch | None = None
    driver: str = Field(default="", description="The pod or process.")
    revision: str = Field(default="", description="Of the job, configuration and image that the driver runs.")
    completed_revision: str = Field(default="", description="The one whose job came to its end.")
    restarts: int = 0


class Pipeline(Resource[PipelineSpec, PipelineStatus]):
    definition: ClassVar[Definition] = Definition(
        kind="Pipeline",
        plural="pipelines",
        short_names=("pl",),
        condition_types=("Ready", "Running", "CaughtUp", "Failing"),
        columns=(
            condition_column("Ready", "Ready"),
            PrinterColumn("Job", "string", ".spec.job"),
            PrinterColumn("Lag", "integer", ".status.lag"),
            condition_column("CaughtUp", "CaughtUp"),
            PrinterColumn("Suspended", "boolean", ".spec.suspend"),
            PrinterColumn("Cluster", "string", ".spec.clusterRef.name"),
            condition_column("Status", "Ready", "reason"),
            AGE,
            PrinterColumn("Application", "string", ".status.applicationId", 1),
            PrinterColumn("Batch", "integer", ".status.lastBatch.id", 1),
            PrinterColumn("Restarts", "integer", ".status.restarts", 1),
        ),
        transition_rules=(
            immutable("spec.clusterRef", "cluster_ref"),
            immutable("spec.job", "job"),
            immutable("spec.storage", "storage", optional=True),
        ),
    )

    kind: Literal["Pipeline"]
    status: PipelineStatus = Field(default_factory=PipelineStatus)

    def problems(self) -> Iterator[Problem]:
        if len(self.metadata.name) > NAME_MAX or "." in self.metadata.name:
            words = f"allowed: up to {NAME_MAX} characters, and no dot"
            yield Problem("metadata.name", f"{self.metadata.name!r} names no driver; {words}")
        kafka = self.spec.config.get("kafka")
        if isinstance(kafka, Mapping):
            for key, source in _FILLED_IN.items():
                if key in kafka:
                    words = f"comes from spec.{source}: leave it out"
                    yield Problem(f"spec.config.kafka.{key}", words)
        yield from _spark_problems(self.spec.config)
        for part, template in (
            ("driver", self.spec.driver.template.pod),
            ("executor", self.spec.executor.template.pod),
        ):
            yield from pod_problems(template, f"spec.{part}.template.pod", part)
        for part, resources in (
            ("driver", self.spec.driver.resources),
            ("executor", self.spec.executor.resources),
        ):
            yield from _memory_problems(resources, f"spec.{part}.resources")
        if self.spec.storage is not None and parse_quantity(self.spec.storage.size) is None:
            yield Problem(
                "spec.storage.size", f"{self.spec.storage.size!r} is no quantity; allowed: 10Gi, say"
            )


def _spark_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Spark could make other pods than the templates allow: of other accounts, with paths of the host."""
    spark = config.get("spark")
    settings = spark.get("settings") if isinstance(spark, Mapping) else None
    for name in settings if isinstance(settings, Mapping) else ():
        of_pods = str(name).startswith("spark.kubernetes.") and not str(name).startswith(_OF_ALLOCATION)
        if of_pods or name == "spark.master":
            words = "is set by the operator; spec.executor says what executors' pods are like"
            yield Problem(f"spec.config.spark.settings[{name}]", words)


def memory_of(resources: Mapping[str, Any], default: int) -> int:
    """Bytes that a container has: its limit, else what it asks for."""
    for kind in ("limits", "requests"):
        given = (resources.get(kind) or {}).get("memory")
        found = None if given is None else parse_quantity(given)
        if found is not None:
            return found
    return default


def _memory_problems(resources: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for kind in ("requests", "limits"):
        part = resources.get(kind)
        if part is not None and not isinstance(part, Mapping):
            yield Problem(f"{path}.{kind}", "must be a mapping")
            return
    if memory_of(resources, MEMORY_MIN) < MEMORY_MIN:
        yield Problem(f"{path}.memory", "is too little for Spark and Python; allowed: 1Gi and more")
