"""The interfaces through which the reconciler observes and changes its environment.

The platforms implement them; tests implement them in memory. Every method is idempotent, and returns without
waiting for a long operation: it starts the operation, and the next reconciliation observes the result.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol, TypeVar

from ottla_operator.conditions import Finding
from ottla_operator.planning.backups import BackupOutcome
from ottla_operator.planning.certificates import RandomBytes
from ottla_operator.planning.holds import Due, Hold
from ottla_operator.planning.observed import (
    BrokerInstance,
    ClusterLoad,
    DriverInstance,
    GroupQuery,
    KafkaState,
    Secret,
    ZooKeeperState,
)
from ottla_operator.planning.pipeline_config import DriverLaunch
from ottla_operator.planning.recovery import RecoveryOutcome
from ottla_operator.planning.revision import PerBroker
from ottla_operator.planning.steps import KafkaStep
from ottla_operator.resources import AnyResource, BrokerCluster, Pipeline
from ottla_operator.resources.cluster_status import ListenerStatus
from ottla_operator.resources.common import Metadata, Status

Address = tuple[str, int]

T = TypeVar("T")


class StepFailed(Exception):
    """A step failed; the next reconciliation tries it again. `reason` is CamelCase. `unreachable`: the API
    server did not respond, so that other requests would fail, too."""

    def __init__(self, reason: str, message: str, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.unreachable = unreachable


@dataclass(slots=True)
class Ensured:
    """What was done to the objects around brokers or a driver, and what failed."""

    steps: list[str] = field(default_factory=list)
    """Descriptions of the changes."""
    failures: list[StepFailed] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """Conditions about these objects, besides Ready."""

    async def attempt(self, work: Coroutine[None, None, str]) -> bool:
        """Do one object's work, which returns a description or "". Returns whether it succeeded; a failure
        does not stop what follows, unless the API server does not respond."""
        if any(failure.unreachable for failure in self.failures):
            work.close()
            return False
        try:
            done = await work
        except StepFailed as failure:
            if failure.message not in [known.message for known in self.failures]:
                self.failures.append(failure)
            return False
        if done:
            self.steps.append(done)
        return True


@dataclass(frozen=True, slots=True)
class BrokerLaunch:
    """The configuration to start a broker with."""

    config_hash: str
    static: Mapping[str, str] = field(default_factory=dict)
    """The settings and traits that the hash covers."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """All settings that are the same for all brokers: without id, listeners, log directories and
    ZooKeeper."""


class Platform(Protocol):
    """Runs brokers and ZooKeeper. Methods raise StepFailed."""

    async def observe(self, cluster: BrokerCluster) -> tuple[ZooKeeperState, dict[int, BrokerInstance]]: ...

    def kept_volumes(self) -> Mapping[int, str]:
        """The volumes of removed brokers of BrokerPools, as `observe` found them: the pool of each by broker
        id; "" when it is not known."""
        ...

    def addresses(self, cluster: BrokerCluster, brokers: Collection[int]) -> Sequence[Address]:
        """The addresses at which the operator reaches these brokers."""
        ...

    def bootstrap(self, cluster: BrokerCluster) -> str:
        """The bootstrap servers for clients: host:port[,host:port…]."""
        ...

    def listeners(self, cluster: BrokerCluster) -> Sequence[ListenerStatus]:
        """The bootstrap servers and trusted certificates of each listener, as far as they are known."""
        ...

    def traits(self, cluster: BrokerCluster) -> Mapping[str, str]:
        """What brokers consist of on this platform besides their settings, such as the image; a change
        needs a restart."""
        ...

    def restart_request(self) -> str:
        """A restart of all brokers that a tool of the platform requests, by a value of its own; "" for
        none."""
        ...

    async def ensure_children(
        self,
        cluster: BrokerCluster,
        launches: PerBroker[BrokerLaunch],
        *,
        under_replicated: bool,
        hold_servers: bool = False,
    ) -> Ensured:
        """Create and repair the objects around the brokers, without stopping any. ZooKeeper servers are
        restarted where it is due; with `hold_servers`, only urgent restarts begin. Raises StepFailed when
        none of the objects can be created or repaired."""
        ...

    async def ensure_zookeeper(self, cluster: BrokerCluster) -> None: ...

    async def stop_zookeeper(self, cluster: BrokerCluster) -> None: ...

    async def start_broker(self, cluster: BrokerCluster, broker: int, launch: BrokerLaunch | None) -> None:
        """Start a stopped broker; None: with its previous launch configuration. One that keeps crashing is
        started with exponential back-off."""
        ...

    async def stop_broker(
        self, cluster: BrokerCluster, broker: int, after: BrokerLaunch | None = None
    ) -> None:
        """Begin a controlled shutdown. `after`: the next launch configuration, for a platform that
        restarts brokers by itself; None when the broker must stay down."""
        ...

    async def remove_broker(self, cluster: BrokerCluster, broker: int, *, delete_volume: bool) -> None: ...

    async def replace_broker(self, cluster: BrokerCluster, broker: int) -> None:
        """Restart a running or stopped broker with an empty volume. Called only for a broker that
        `observe` returned with a VolumeLoss."""
        ...


class Drivers(Protocol):
    """Runs the drivers of pipelines, as pods or processes. Methods raise StepFailed.

    There are never two drivers of one pipeline, since they would share a checkpoint.
    """

    def traits(self, pipeline: Pipeline) -> Mapping[str, str]:
        """What a driver consists of on this platform besides its resource; a change needs a restart."""
        ...

    async def observe(self, pipelines: Iterable[Pipeline]) -> Mapping[str, DriverInstance]:
        """The drivers by pipeline key; pipelines that never had one may be left out."""
        ...

    async def ensure_children(self, pipeline: Pipeline, launch: DriverLaunch) -> Ensured:
        """Create and repair the objects around the driver, without stopping it. Raises StepFailed when none
        of them can be."""
        ...

    async def start(self, pipeline: Pipeline, launch: DriverLaunch) -> None: ...

    async def stop(self, pipeline: Pipeline, after: DriverLaunch | None) -> None:
        """Begin a graceful stop. `after`: the next launch configuration, for a platform that restarts
        drivers by itself; None when the driver must stay down."""
        ...

    async def remove(self, pipeline: Pipeline) -> None:
        """Remove what belongs to a deleted Pipeline, with its volume if `deleteClaim`. A running driver is
        killed."""
        ...


class Kafka(Protocol):
    """The Admin API of the cluster."""

    async def observe(
        self,
        brokers: Sequence[Address],
        groups: Mapping[str, GroupQuery],
        *,
        access: bool = False,
        log_dirs: bool = False,
    ) -> KafkaState:
        """Describe the cluster through its controller; `access`: with credentials and ACLs; `log_dirs`: with
        the log directories. An unreachable cluster is a KafkaState, not an error."""
        ...

    async def execute(self, step: KafkaStep) -> None:
        """Raises StepFailed."""
        ...


class Loads(Protocol):
    """Measures the loads of brokers and partitions."""

    async def observe(
        self, brokers: Collection[int], kafka: KafkaState, now_ms: int, window_ms: int
    ) -> ClusterLoad:
        """The loads, averaged over the window; they are measured again when an interval has passed."""
        ...


async def in_thread(work: Callable[[], T]) -> T:
    """The result of work that takes seconds; the event loop goes on meanwhile."""
    return await asyncio.to_thread(work)


class RollGate(Protocol):
    """Limits the clusters that roll at the same time because the operator is the cause."""

    def ask(self, due: Due | None) -> Hold | None:
        """What the cluster's rolls that the operator causes wait for; None when they may go on. `due`: the
        rolls, None while none may begin or go on. Called in each reconciliation."""
        ...


class Backups(Protocol):
    """Takes backups of a cluster's metadata, one at a time, beside the reconciliations."""

    @property
    def running(self) -> bool: ...

    def outcome(self) -> BackupOutcome | None:
        """The outcome of a backup that has ended, once."""
        ...

    def begin(self, cluster: BrokerCluster, request: str) -> None:
        """Begin a backup for this request; "" for the schedule."""
        ...


class Recoveries(Protocol):
    """Restores a backup into a new cluster, beside the reconciliations."""

    @property
    def running(self) -> bool: ...

    def outcome(self) -> RecoveryOutcome | None:
        """The outcome of an attempt that has ended, once."""
        ...

    def begin(self, cluster: BrokerCluster, source: str) -> None:
        """Begin to restore the backup at this URL; "": find the one that the spec names, and read it."""
        ...


class Compute(Protocol):
    """Runs work that takes seconds."""

    async def __call__(self, work: Callable[[], T], /) -> T: ...


class Store(Protocol):
    """Stores the custom resources: the API server, or the folder of `ottla up`."""

    async def resources(self) -> Sequence[AnyResource]:
        """The resources with a valid spec, with their statuses."""
        ...

    def withheld(self) -> Collection[str]:
        """The keys of resources that exist, are not being deleted, and were not among those that
        `resources` returned last: they have no valid spec, or have just changed."""
        ...

    async def update_status(self, resource: AnyResource, status: Status) -> None: ...

    async def release(self, resource: AnyResource) -> None:
        """Remove the finalizer of a resource whose deletion is complete."""
        ...


class Secrets(Protocol):
    """Stores passwords and keys: Kubernetes Secrets, or files."""

    async def read(self, names: Collection[str]) -> Mapping[str, Secret]:
        """The existing Secrets among `names`."""
        ...

    async def put(self, owner: AnyResource, name: str, data: Mapping[str, bytes]) -> None:
        """Create a Secret, or replace its whole content. Raises StepFailed, also when `owner` does not own
        it."""
        ...

    async def delete(self, owner: AnyResource, name: str) -> None:
        """Delete a Secret if it exists and `owner` owns it. Raises StepFailed."""
        ...

    async def release(self, owner: AnyResource) -> None:
        """Delete all Secrets of a resource that is being deleted. Raises StepFailed."""
        ...


class InvolvedObject(Protocol):
    """The object of an Event: a resource, also one with an invalid spec."""

    @property
    def api_version(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def metadata(self) -> Metadata: ...

    @property
    def key(self) -> str: ...


class Recorder(Protocol):
    """Records Events about resources. Never raises, and drops an Event that it recorded recently."""

    def record(
        self, resource: InvolvedObject, reason: str, message: str, *, warning: bool = False
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything outside of the reconciler that it reaches. A simulation replaces each of these."""

    platform: Platform
    kafka: Kafka
    store: Store
    secrets: Secrets
    drivers: Drivers
    clock_ms: Callable[[], int]
    """The wall clock, in milliseconds since the epoch."""
    recorder: Recorder | None = None
    random_bytes: RandomBytes = os.urandom
    """For passwords and keys."""
    loads: Loads | None = None
    """None: loads are not measured."""
    compute: Compute = in_thread
    backups: Backups | None = None
    """None: backups are not taken."""
    recoveries: Recoveries | None = None
    """None: clusters start empty."""
    gate: RollGate | None = None
    """None: no other clusters are waited for."""


class NoSecrets:
    """The interface `Secrets` for resources that have none."""

    async def read(self, names: Collection[str]) -> Mapping[str, Secret]:
        return {}

    async def put(self, owner: AnyResource, name: str, data: Mapping[str, bytes]) -> None:
        _unused()

    async def delete(self, owner: AnyResource, name: str) -> None:
        _unused()

    async def release(self, owner: AnyResource) -> None:
        """There is nothing to delete."""


class NoDrivers:
    """The interface `Drivers` without pipelines."""

    def traits(self, pipeline: Pipeline) -> Mapping[str, str]:
        _unused()

    async def observe(self, pipelines: Iterable[Pipeline]) -> Mapping[str, DriverInstance]:
        return {}

    async def ensure_children(self, pipeline: Pipeline, launch: DriverLaunch) -> Ensured:
        _unused()

    async def start(self, pipeline: Pipeline, launch: DriverLaunch) -> None:
        _unused()

    async def stop(self, pipeline: Pipeline, after: DriverLaunch | None) -> None:
        _unused()

    async def remove(self, pipeline: Pipeline) -> None:
        _unused()


def _unused() -> NoReturn:
    raise AssertionError("neither simulations nor rehearsals have Secrets and pipelines")
