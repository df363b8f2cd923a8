"""The ports that the reconciler drives. Adapters implement them; tests implement them in memory.

Every method may be called again after an interruption, and returns soon: what takes time is begun, and
seen in the next observation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ottla_operator.planning.observed import (
    BrokerInstance,
    DriverInstance,
    GroupQuery,
    KafkaState,
    Secret,
    ZooKeeperState,
)
from ottla_operator.planning.pipeline_config import DriverLaunch
from ottla_operator.planning.steps import (
    AlterBrokerSettings,
    AlterQuota,
    AlterTopicConfig,
    CreateAcls,
    CreatePartitions,
    CreateTopic,
    DeleteAcls,
    DeleteGroup,
    DeleteScramCredential,
    DeleteTopic,
    ElectPreferredLeaders,
    Reassign,
    ResetOffsets,
    SetScramCredential,
)
from ottla_operator.resources import AnyResource, BrokerCluster, Pipeline
from ottla_operator.resources.cluster import ListenerStatus
from ottla_operator.resources.common import Metadata, Status

KafkaStep = (
    CreateTopic
    | AlterTopicConfig
    | CreatePartitions
    | DeleteTopic
    | DeleteGroup
    | ResetOffsets
    | Reassign
    | ElectPreferredLeaders
    | AlterBrokerSettings
    | AlterQuota
    | SetScramCredential
    | DeleteScramCredential
    | CreateAcls
    | DeleteAcls
)

Address = tuple[str, int]


class StepFailed(Exception):
    """A step that could not be taken; it is tried again on the next pass. `reason` is CamelCase."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class BrokerLaunch:
    """What a broker is to be started with."""

    config_hash: str
    static: Mapping[str, str] = field(default_factory=dict)
    """What the hash is of."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """All settings but those that make a broker this one: id, listeners, folders, ZooKeeper."""


class Platform(Protocol):
    """Where brokers run. Methods raise StepFailed."""

    async def observe(self, cluster: BrokerCluster) -> tuple[ZooKeeperState, dict[int, BrokerInstance]]: ...

    def addresses(self, cluster: BrokerCluster, brokers: Collection[int]) -> Sequence[Address]:
        """Where clients and the operator reach these brokers."""
        ...

    def bootstrap(self, cluster: BrokerCluster) -> str:
        """Where clients begin: host:port[,host:port…]."""
        ...

    def listeners(self, cluster: BrokerCluster) -> Sequence[ListenerStatus]:
        """Where clients begin at each listener, and by what they know the brokers; none where that is not
        known."""
        ...

    def traits(self, cluster: BrokerCluster) -> Mapping[str, str]:
        """What brokers here are made of beside their settings, in words: a change of it needs a bounce."""
        ...

    async def ensure_children(
        self, cluster: BrokerCluster, launch: BrokerLaunch, *, under_replicated: bool
    ) -> Sequence[str]:
        """Put right what surrounds the brokers; stops no broker. What was done, in words."""
        ...

    async def ensure_zookeeper(self, cluster: BrokerCluster) -> None: ...

    async def stop_zookeeper(self, cluster: BrokerCluster) -> None: ...

    async def start_broker(self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch | None) -> None:
        """Start a broker that does not run; None: with what it ran with last. One that keeps crashing is
        started with growing pauses in between."""
        ...

    async def stop_broker(
        self, cluster: BrokerCluster, broker: int, after: BrokerLaunch | None = None
    ) -> None:
        """Begin a controlled shutdown. `after`: what it is started with next, for a platform that starts
        it by itself; None when it is to stay down."""
        ...

    async def remove_broker(self, cluster: BrokerCluster, broker: int, *, delete_volume: bool) -> None: ...

    async def replace_broker(self, cluster: BrokerCluster, broker: int) -> None:
        """Let a broker that runs or not come back with an empty volume. Asked for only where `observe` told
        of a VolumeLoss."""
        ...


class Drivers(Protocol):
    """Where the drivers of pipelines run: pods, or processes. Methods raise StepFailed.

    Never are there two of one pipeline, which would work on one checkpoint.
    """

    def traits(self, pipeline: Pipeline) -> Mapping[str, str]:
        """What a driver here is made of beside its resource: a change of it needs a new start."""
        ...

    async def observe(self, pipelines: Iterable[Pipeline]) -> Mapping[str, DriverInstance]:
        """By the pipeline's key; of those that have, or had, a driver."""
        ...

    async def ensure_children(self, pipeline: Pipeline, launch: DriverLaunch) -> Sequence[str]:
        """Put right what surrounds the driver; stops none. What was done, in words."""
        ...

    async def start(self, pipeline: Pipeline, launch: DriverLaunch) -> None: ...

    async def stop(self, pipeline: Pipeline, after: DriverLaunch | None) -> None:
        """Begin an orderly end. `after`: what it is started with next, for a platform that does so by
        itself; None when it is to stay down."""
        ...

    async def remove(self, pipeline: Pipeline) -> None:
        """The resource goes, and with it what was asked to go. A driver that still runs is ended."""
        ...


class Kafka(Protocol):
    """The Admin API of the cluster."""

    async def observe(
        self, brokers: Sequence[Address], groups: Mapping[str, GroupQuery], *, access: bool = False
    ) -> KafkaState:
        """Ask the controller, found through any of the brokers; for credentials and ACLs only with `access`.
        Never raises for an unreachable cluster."""
        ...

    async def execute(self, step: KafkaStep) -> None:
        """Raises StepFailed."""
        ...


class Store(Protocol):
    """Where resources are kept: the API server, or the folder of `ottla up`."""

    async def resources(self) -> Sequence[AnyResource]:
        """Those with a valid spec, with their statuses."""
        ...

    async def update_status(self, resource: AnyResource, status: Status) -> None: ...

    async def release(self, resource: AnyResource) -> None:
        """A deletion is complete: let the resource go."""
        ...


class Secrets(Protocol):
    """Where passwords and keys are kept: Secrets of Kubernetes, or files."""

    async def read(self, names: Collection[str]) -> Mapping[str, Secret]:
        """Those that are there."""
        ...

    async def put(self, owner: AnyResource, name: str, data: Mapping[str, bytes]) -> None:
        """Make it, or replace all that it holds. Raises StepFailed, also where it is somebody else's."""
        ...

    async def delete(self, owner: AnyResource, name: str) -> None:
        """One that is gone, or somebody else's, is none to delete. Raises StepFailed."""
        ...

    async def release(self, owner: AnyResource) -> None:
        """The resource goes, and its Secrets with it. Raises StepFailed."""
        ...


class InvolvedObject(Protocol):
    """What an Event is about: a resource, also one whose spec cannot be understood."""

    @property
    def api_version(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def metadata(self) -> Metadata: ...

    @property
    def key(self) -> str: ...


class Recorder(Protocol):
    """Who tells people what was done: Events on Kubernetes. Never raises, and drops what was just said."""

    def record(
        self, resource: InvolvedObject, reason: str, message: str, *, warning: bool = False
    ) -> None: ...
