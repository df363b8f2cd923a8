"""Pipeline: a Spark job that reads a cluster's topics, and runs until it is suspended.

The job validates its configuration itself, and its errors become the condition Failing. The operator adds the
brokers of `clusterRef`, the credentials of `user`, the job's name and, with `storage`, the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ottla_operator.resources.common import (
    AGE,
    CLUSTER,
    READY,
    STATUS,
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
    name_rule,
    parse_quantity,
    rules,
)
from ottla_operator.resources.pods import PodTemplate, pod_problems, pod_rules

JOB = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_MAX = 40  # "NAME-driver-0" and a revision's hash are labels of 63 characters at most
MEMORY_MIN = 1 << 30

# Fields of the configuration that the operator sets, with the fields of the spec that they come from.
_FILLED_IN = {"bootstrap": "clusterRef", "sasl": "user", "tls": "user"}

# The rate of Spark's executor allocation, which a job may set.
_OF_ALLOCATION = "spark.kubernetes.allocation."


class DriverTemplate(Model):
    model_config = rules(*pod_rules("driver"))

    pod: PodTemplate = Field(
        default_factory=PodTemplate, description="A pod template that is merged into the operator's."
    )


class Driver(Model):
    resources: FreeForm = Field(
        default_factory=dict, description="The container's resources. Spark's heap is a part of the memory."
    )
    template: DriverTemplate = Field(default_factory=DriverTemplate, description="Additions to the pods.")


class ExecutorTemplate(Model):
    model_config = rules(*pod_rules("executor"))

    pod: PodTemplate = Field(
        default_factory=PodTemplate, description="A pod template that is merged into the operator's."
    )


class Executor(Model):
    resources: FreeForm = Field(
        default_factory=dict, description="The container's resources. Spark's heap is a part of the memory."
    )
    template: ExecutorTemplate = Field(default_factory=ExecutorTemplate, description="Additions to the pods.")
    instances: int = Field(
        default=1, ge=0, le=10_000, description="0: the driver runs the tasks, on all its cores."
    )
    cores: int = Field(default=1, ge=1, le=256, description="Concurrent tasks of each executor.")


class PipelineStorage(Model):
    """A volume for the checkpoint and for files that the configuration names by a relative path."""

    size: Quantity = Field(description="The size of the volume, in bytes or with a suffix such as Gi.")
    storage_class: str | None = Field(
        default=None,
        alias="class",
        description="The StorageClass of the volumes. Default: that of the Kubernetes cluster.",
    )
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = Field(
        default="ReadWriteOnce", description="ReadWriteOnce keeps the executors on the driver's node."
    )
    delete_claim: bool = Field(default=False, description="Delete the volume with the Pipeline.")


class PipelineSpec(Model):
    cluster_ref: ClusterRef = Field(description="The cluster whose topics the job reads.")
    user: Name | None = Field(
        default=None,
        description="The User whose credentials the job uses, for a listener with authentication.",
    )
    job: Annotated[str, Field(pattern=JOB, max_length=63)] = Field(
        description="A job of `ottla-pipeline`: lake, audit, mirror, windows, python …"
    )
    config: FreeForm = Field(default_factory=dict, description="The job's configuration, as in its file.")
    suspend: bool = Field(
        default=False,
        description="Stop the job after its current batch; without suspend it continues from there.",
    )
    image: str | None = Field(
        default=None,
        description="The image of driver and executors. Default: that of the operator for pipelines.",
    )
    driver: Driver = Field(default_factory=Driver, description="The driver of the Spark application.")
    executor: Executor = Field(
        default_factory=Executor, description="The executors of the Spark application."
    )
    storage: PipelineStorage | None = Field(
        default=None,
        description="The volume of the pipeline. Default: none; the configuration names the checkpoint.",
    )


class LastBatch(Model):
    """The last committed batch of the job."""

    id: int = Field(description="The number of the batch.")
    records: int = Field(description="The number of records.")
    duration_ms: int = Field(description="The duration in milliseconds.")
    ended_at: str = Field(description="When the batch was committed.")


class PipelineStatus(Status):
    application_id: str = Field(default="", description="The id of the Spark application.")
    lag: int | None = Field(default=None, description="Records that the job has not read yet.")
    last_batch: LastBatch | None = Field(default=None, description="The last committed batch.")
    driver: str = Field(default="", description="The driver's pod or process.")
    revision: str = Field(
        default="", description="The revision of job, configuration and image that the driver runs."
    )
    completed_revision: str = Field(default="", description="The revision whose job has completed.")
    restarts: int = Field(default=0, description="How often the driver was started again after a crash.")


class Pipeline(Resource[PipelineSpec, PipelineStatus]):
    definition: ClassVar[Definition] = Definition(
        kind="Pipeline",
        plural="pipelines",
        short_names=("pl",),
        condition_types=("Ready", "Running", "CaughtUp", "Failing"),
        columns=(
            READY,
            PrinterColumn("Job", "string", ".spec.job"),
            PrinterColumn("Lag", "integer", ".status.lag"),
            condition_column("CaughtUp", "CaughtUp"),
            PrinterColumn("Suspended", "boolean", ".spec.suspend"),
            CLUSTER,
            STATUS,
            AGE,
            PrinterColumn("Application", "string", ".status.applicationId", 1),
            PrinterColumn("Batch", "integer", ".status.lastBatch.id", 1),
            PrinterColumn("Restarts", "integer", ".status.restarts", 1),
        ),
        rules=(name_rule(NAME_MAX),),
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
            message = (
                f"{self.metadata.name!r} is not allowed: must have at most {NAME_MAX} characters and no dot"
            )
            yield Problem("metadata.name", message)
        kafka = self.spec.config.get("kafka")
        if isinstance(kafka, Mapping):
            for key, source in _FILLED_IN.items():
                if key in kafka:
                    message = f"is set by the operator from spec.{source}; remove it"
                    yield Problem(f"spec.config.kafka.{key}", message)
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
                "spec.storage.size", f"{self.spec.storage.size!r} is not a quantity; an example is 10Gi"
            )


def _spark_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Settings with which Spark could create pods that the templates forbid, with other accounts or host
    paths."""
    spark = config.get("spark")
    settings = spark.get("settings") if isinstance(spark, Mapping) else None
    for name in settings if isinstance(settings, Mapping) else ():
        of_pods = str(name).startswith("spark.kubernetes.") and not str(name).startswith(_OF_ALLOCATION)
        if of_pods or name == "spark.master":
            message = "is set by the operator; spec.executor configures the executors' pods"
            yield Problem(f"spec.config.spark.settings[{name}]", message)


def memory_of(resources: Mapping[str, Any], default: int) -> int:
    """The memory of a container in bytes: its limit, else its request, else `default`."""
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
        yield Problem(f"{path}.memory", "is too small for Spark and Python; must be at least 1Gi")
