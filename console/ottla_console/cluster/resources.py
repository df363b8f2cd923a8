"""The custom resources of a cluster, and their Events: what the operator, or `ottla up`, says of it.

Read with the rights of the console itself, the same for all principals, by pages that show them. A `Source`
reads them: `kubernetes_api` or `up_state`. `Resources` keeps the newest state; pages never wait for more than
a moment. Objects are plain dicts in the API's form; `state_of` is pure, and accepts a missing status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from ottla_console.cluster.collecting import end
from ottla_console.cluster.jobs import Job, TopicAudit, group_of, instant_ms, windows_of, with_batch
from ottla_console.cluster.problems import Kind, Problem
from ottla_console.cluster.snapshot import Part

log = logging.getLogger(__name__)

Object: TypeAlias = Mapping[str, Any]

FRESH_S: Final = 4.0
"""A state that is younger is not read again. One whose reading took long is read again after REST times as
long, up to FRESH_S_MAX: reading takes a tenth of the time, however many resources there are."""
REST: Final = 9.0
FRESH_S_MAX: Final = 60.0
READ_S: Final = 10.0
EVENTS_MAX: Final = 20
_TRUE_IS_UNUSUAL: Final = frozenset(
    {"Rolling", "Scaling", "ReplicasChanging", "ReconciliationPaused", "Failing", "Contested"}
)


@dataclass(frozen=True, slots=True)
class Found:
    """What a source has read."""

    cluster: Object
    """The BrokerCluster."""
    others: Sequence[Object] = ()
    """Resources of the other kinds, also those of other clusters."""
    events: Sequence[Object] = ()


class ReadingFailed(Exception):
    """A source could not read the resources."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.reason)
        self.problem = problem


class Source(Protocol):
    """Where the resources of one cluster are."""

    what: str
    """What it reads, for problems: `BrokerCluster demo on Kubernetes`."""

    async def read(self) -> Found:
        """Raises ReadingFailed."""

    async def close(self) -> None:
        """Release connections and threads."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a resource."""

    type: str
    status: str
    reason: str
    message: str
    since_ms: int

    @property
    def unusual(self) -> bool:
        """Whether it differs from that of a resource in its normal state."""
        return self.status == ("True" if self.type in _TRUE_IS_UNUSUAL else "False")


@dataclass(frozen=True, slots=True)
class Progress:
    """An operation that takes a while: a roll, a reassignment."""

    title: str
    done: int
    total: int
    since_ms: int
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """A broker or a ZooKeeper server."""

    id: int
    pod: str
    pool: str
    state: str
    ready: bool
    restart_reasons: tuple[str, ...]
    waits_for: str


@dataclass(frozen=True, slots=True)
class Event:
    """An Event about the BrokerCluster, or about a resource that refers to it."""

    at_ms: int
    warning: bool
    reason: str
    message: str
    count: int
    of: str
    """Kind and name, `Topic/orders`."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that refers to the BrokerCluster."""

    kind: str
    name: str
    ready: Condition | None
    """None: it has no status yet."""
    warnings: tuple[str, ...]

    @property
    def well(self) -> bool:
        return self.ready is not None and self.ready.status == "True"


@dataclass(frozen=True, slots=True)
class State:
    """A BrokerCluster and what belongs to it."""

    namespace: str
    """Empty: the resources of `ottla up` have none."""
    name: str
    conditions: tuple[Condition, ...]
    brokers: tuple[Server, ...]
    zookeeper: tuple[Server, ...]
    progress: tuple[Progress, ...]
    events: tuple[Event, ...]
    """The newest first."""
    resources: tuple[Resource, ...]
    warnings: tuple[str, ...]
    outdated: bool
    """The operator has not seen the newest spec yet."""
    jobs: tuple[Job, ...] = ()
    """Of its Pipelines."""
    audits: Mapping[str, TopicAudit] = field(default_factory=dict)
    """By topic, of its Topics."""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def ready(self) -> Condition | None:
        return next((each for each in self.conditions if each.type == "Ready"), None)

    @property
    def unusual(self) -> tuple[Condition, ...]:
        """Besides Ready."""
        return tuple(each for each in self.conditions if each.unusual and each.type != "Ready")

    @property
    def failing(self) -> tuple[Resource, ...]:
        """The resources that are not Ready."""
        return tuple(each for each in self.resources if not each.well)


def state_of(cluster: Object, events: Sequence[Object], others: Sequence[Object]) -> State:
    """The state by these objects; `others` and `events` of the whole namespace."""
    metadata, status = cluster["metadata"], _status(cluster)
    name = str(metadata["name"])
    mine = [each for each in others if ((each.get("spec") or {}).get("clusterRef") or {}).get("name") == name]
    resources = tuple(
        sorted(
            (
                Resource(
                    str(each["kind"]),
                    str(each["metadata"]["name"]),
                    next((c for c in _conditions(each) if c.type == "Ready"), None),
                    tuple(map(str, _status(each).get("warnings") or ())),
                )
                for each in mine
            ),
            key=lambda each: (each.kind, each.name),
        )
    )
    known = {("BrokerCluster", name), *((each.kind, each.name) for each in resources)}
    about = [_event(each) for each in events if _involved(each) in known]
    about.sort(key=lambda each: each.at_ms, reverse=True)
    zookeeper = status.get("zookeeper") or {}
    return State(
        str(metadata.get("namespace") or ""),
        name,
        _conditions(cluster),
        tuple(map(_server, status.get("brokers") or ())),
        tuple(map(_server, zookeeper.get("servers") or ())),
        tuple(_progress(status)),
        tuple(about[:EVENTS_MAX]),
        resources,
        tuple(map(str, status.get("warnings") or ())),
        int(status.get("observedGeneration") or 0) < int(metadata.get("generation") or 0),
        tuple(_job(each) for each in mine if each["kind"] == "Pipeline"),
        {topic: audit for each in mine if each["kind"] == "Topic" for topic, audit in _audits(each)},
    )


def _job(pipeline: Object) -> Job:
    spec, status = pipeline["spec"], _status(pipeline)
    name, kind = str(pipeline["metadata"]["name"]), str(spec.get("job", ""))
    conditions = {each.type: each for each in _conditions(pipeline)}
    failing, ready = conditions.get("Failing"), conditions.get("Ready")
    state = ready.reason if ready is not None else "Starting"
    if (running := conditions.get("Running")) is not None and running.status == "True":
        state = "Running"
    failed = failing is not None and failing.status == "True"
    lag = status.get("lag")
    job = Job(
        name,
        kind,
        "Failing" if failed else state,
        f"Pipeline {name}",
        str((spec.get("config") or {}).get("group") or group_of(kind, name)),
        lag if isinstance(lag, int) else None,
        application=str(status.get("applicationId") or ""),
        error=failing.message if failing is not None and failed else "",
    )
    return with_batch(job, status.get("lastBatch"))


def _audits(topic: Object) -> list[tuple[str, TopicAudit]]:
    """The result of an audit of a Topic, with the topic's name in Kafka; none without an audit."""
    status = _status(topic)
    audit = status.get("audit")
    if not isinstance(audit, dict):
        return []
    complete = next((each for each in _conditions(topic) if each.type == "Complete"), None)
    unknown = complete is not None and complete.status == "Unknown" and complete.reason != "Pending"
    name = str(status.get("topicName") or topic["spec"].get("topicName") or topic["metadata"]["name"])
    found = TopicAudit(
        str(audit.get("pipeline", "")),
        instant_ms(audit.get("completeUntil")),
        complete is not None and complete.reason == "Pending",
        int(audit.get("differingWindows") or 0),
        int(audit.get("missing") or 0),
        int(audit.get("duplicated") or 0),
        windows_of(audit.get("windows")),
        (complete.message,) if complete is not None and unknown else (),
    )
    return [(name, found)]


def _status(item: Object) -> Object:
    status: Object = item.get("status") or {}
    return status


def _conditions(item: Object) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            str(each.get("type", "")),
            str(each.get("status", "Unknown")),
            str(each.get("reason", "")),
            str(each.get("message", "")),
            instant_ms(each.get("lastTransitionTime")),
        )
        for each in _status(item).get("conditions") or ()
    )


def _server(given: Object) -> Server:
    return Server(
        int(given["id"]),
        str(given.get("podName", "")),
        str(given.get("pool", "")),
        str(given.get("state") or given.get("role") or ""),
        bool(given.get("ready")),
        tuple(map(str, given.get("restartReasons") or ())),
        str(given.get("waitingFor", "")),
    )


def _progress(status: Object) -> list[Progress]:
    """What is under way, with what it waits for."""
    found = []
    roll, move = status.get("rollout"), status.get("reassignment")
    upgrade, servers = status.get("upgrade"), status.get("zookeeper") or {}
    if roll:
        title = "Rolling restart of the brokers"
        if upgrade:
            title = f"Upgrade from {upgrade['fromVersion']} to {upgrade['toVersion']}"
        found.append(
            Progress(title, int(roll["updated"]), int(roll["total"]), instant_ms(roll.get("startedAt")),
                     _first_wait("Broker", status.get("brokers") or ()))
        )  # fmt: skip
    if servers and int(servers["updated"]) < int(servers["total"]):
        waits_for = _first_wait("Server", servers.get("servers") or ())
        title = "Rolling restart of ZooKeeper"
        found.append(Progress(title, int(servers["updated"]), int(servers["total"]), -1, waits_for))
    if move:
        title = f"Reassignment ({move['reason']})"
        found.append(
            Progress(title, int(move["moved"]), int(move["total"]), instant_ms(move.get("startedAt")))
        )
    asked = status.get("reassignRequest")
    if asked and asked.get("phase") in ("Waiting", "Refused"):
        message = str(asked.get("message", ""))
        found.append(Progress(f"Requested reassignment: {asked['phase'].lower()}", 0, 0, -1, message))
    return found


def _first_wait(noun: str, servers: Sequence[Object]) -> str:
    """`Broker 2 waits for …`: the first one that waits."""
    return next(
        (f"{noun} {each['id']} waits for {each['waitingFor']}" for each in servers if each.get("waitingFor")),
        "",
    )


def _involved(event: Object) -> tuple[str, str]:
    of = event.get("involvedObject") or {}
    return str(of.get("kind", "")), str(of.get("name", ""))


def _event(event: Object) -> Event:
    at = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    return Event(
        instant_ms(at),
        event.get("type") == "Warning",
        str(event.get("reason", "")),
        str(event.get("message", "")),
        int(event.get("count") or 1),
        "/".join(_involved(event)),
    )


class Resources:
    """The state of one BrokerCluster, read again when a page asks and it is not fresh."""

    def __init__(self, source: Source, now_ms: Callable[[], int], monotonic_s: Callable[[], float]) -> None:
        self._source = source
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._next_s = float("-inf")
        """When a state is not fresh any more. Monotonic clock."""
        self._part: Part[State] = Part()
        self._task: asyncio.Task[None] | None = None

    async def state(self, wait_s: float) -> Part[State]:
        """The newest state; waits a moment for it, unless the last reading failed. The state before, with a
        problem, if the source does not respond any more."""
        if self._task is None and self._monotonic_s() >= self._next_s:
            self._task = asyncio.get_running_loop().create_task(self._read())
        if self._task is not None and not self._part.problems:
            await asyncio.wait([self._task], timeout=wait_s)
        return self._part

    async def close(self) -> None:
        await end(self._task)
        await self._source.close()

    async def _read(self) -> None:
        began_s = self._monotonic_s()
        try:
            async with asyncio.timeout(READ_S):
                found = await self._source.read()
            self._part = Part(state_of(found.cluster, found.events, found.others), (), self._now_ms())
        except ReadingFailed as error:
            self._failed(error.problem)
        except TimeoutError:
            reason = f"there has been no response within {READ_S:g} s"
            self._failed(Problem(Kind.UNREACHABLE, self._source.what, reason))
        except Exception:
            log.exception("reading %s failed", self._source.what)
            reason = "it has not the form that this console knows"
            self._failed(Problem(Kind.FAILED, self._source.what, reason))
        finally:
            now_s = self._monotonic_s()
            self._next_s = now_s + min(max(FRESH_S, REST * (now_s - began_s)), FRESH_S_MAX)
            self._task = None

    def _failed(self, problem: Problem) -> None:
        self._part = Part(self._part.value, (problem,), self._now_ms())
