"""`kubectl ottla plan`: observes the cluster by kubectl, and rehearses what applying files would do.

Reads with the caller's permissions only. The objects around the brokers are planned by the operator's own
platform over `ReadingApi`, which answers its writes from memory: nothing is sent. The brokers are observed by
`platform.probe` in one of their pods.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode

import click

from ottla_operator.kubernetes import naming, observing
from ottla_operator.kubernetes.api import Api, ApiError, Forbidden, Invalid, NotFound, Object
from ottla_operator.kubernetes.command import images_from
from ottla_operator.kubernetes.manifests_brokers import METRICS_PORT, bootstrap_servers
from ottla_operator.kubernetes.manifests_common import Images, difference
from ottla_operator.kubernetes.platform import KubernetesPlatform
from ottla_operator.kubernetes.store import problems_on_kubernetes
from ottla_operator.kubernetes.zookeeper_client import FindRoles
from ottla_operator.kubernetes.zookeeper_planning import ServerRole
from ottla_operator.platform import probe
from ottla_operator.platform.interfaces import StepFailed
from ottla_operator.rehearsal.changes import changed_resources
from ottla_operator.rehearsal.effects import effects_of
from ottla_operator.rehearsal.model import Timing
from ottla_operator.rehearsal.rehearse import Situation, look, rehearse, rehearse_loss
from ottla_operator.rehearsal.report import Planned, clients_of, timing_of
from ottla_operator.resources import KINDS, AnyResource, BrokerCluster, Problem
from ottla_operator.resources.common import parse_quantity
from ottla_operator.resources.loading import Loaded, parse_resource

Run = Callable[..., str]
"""Runs kubectl; raises ClickException with its error."""

_READS: Final = ("list", "get")
_UNREADABLE: Final = ("Secret", "StorageClass", "Node")
"""Kinds that a caller may not be allowed to read; without them, less is known."""


class ReadingApi(Api):
    """The API server through `kubectl get --raw`. What the operator writes is kept in memory."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.denied: set[str] = set()
        """Kinds that the caller may not read."""

    def close(self) -> None:
        """There is nothing to close."""

    async def _request(
        self,
        verb: str,
        kind: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> Object:
        if verb in _READS:
            return self._read(verb, kind, path, query or {})
        if verb == "delete":
            return {}
        named = [part for part in path.split("/") if part]
        name = named[-2] if named[-1] == "status" else named[-1]
        if isinstance(body, dict) and body.get("kind"):
            if kind == "StatefulSet":
                self._check_volumes(path, body)
            made = copy.deepcopy(body)
            made["metadata"] = {"resourceVersion": "0", "uid": f"planned-{name}", **made["metadata"]}
            return made
        live = self._read("get", kind, path, {})
        return _merged(live, body) if isinstance(body, dict) else live

    def _check_volumes(self, path: str, body: Object) -> None:
        """Refuse other volumes, as the API server does. Raises Invalid."""
        try:
            live = self._read("get", "StatefulSet", path, {})
        except NotFound:
            return
        name = "volumeClaimTemplates"
        if difference({name: live["spec"].get(name, [])}, {name: body["spec"].get(name, [])}):
            raise Invalid(422, "Invalid", "spec: Forbidden: updates to statefulset spec are forbidden")

    def _read(self, verb: str, kind: str, path: str, query: Mapping[str, str]) -> Object:
        at = f"{path}?{urlencode(query)}" if query else path
        try:
            answer = json.loads(self._run("get", "--raw", at))
            assert isinstance(answer, dict)
            return answer
        except click.ClickException as error:
            text = error.message
        if "NotFound" in text or "could not find the requested resource" in text:
            raise NotFound(404, "NotFound", text)
        if "Forbidden" in text or "forbidden" in text:
            self.denied.add(kind)
            if verb == "list" and kind in _UNREADABLE:
                return {"items": []}
            raise Forbidden(403, "Forbidden", text)
        raise ApiError(0, "Unreachable", text)


def _merged(base: Any, patch: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return copy.deepcopy(patch)
    return {**base, **{key: _merged(base.get(key), value) for key, value in patch.items()}}


class Planner:
    """Plans the change of one cluster in a namespace. `run`: kubectl."""

    def __init__(
        self, run: Run, namespace: str, clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self._run = run
        self._namespace = namespace
        self._clock_ms = clock_ms
        self._api = ReadingApi(run)
        self._items: dict[str, Object] = {}
        self._notes: list[str] = []

    def plan(self, loaded: Loaded, fail: int | None = None) -> Planned:
        """Raises Refused and ClickException."""
        try:
            return self._plan(loaded, fail)
        except ApiError as error:
            raise click.ClickException(error.message) from None
        except StepFailed as failure:
            raise click.ClickException(f"the cluster cannot be observed: {failure.message}") from None

    def _plan(self, loaded: Loaded, fail: int | None) -> Planned:
        change = changed_resources(asyncio.run(self._resources()), loaded, self._problems)
        cluster, old = change.cluster, change.old_cluster
        images = self._images(cluster.key)
        seen = self._see(cluster.metadata.name)
        throttle = cluster.spec.rebalance.replication_throttle
        now = self._situation(images, seen, old or cluster, change.before or change.after, Timing())
        timing, assumptions = timing_of(
            [(b.started_at_ms, b.ready_since_ms) for b in now.observed.brokers.values() if b.ready],
            parse_quantity(throttle) if throttle is not None else None,
        )
        if fail is not None and fail not in now.observed.brokers:
            raise click.ClickException(f"--fail: broker {fail} does not exist")
        pending = tuple(rehearse(replace(now, timing=timing)).steps) if old is not None else ()
        situation = self._situation(images, seen, cluster, change.after, timing)
        rehearsal = rehearse(situation, fail)
        loss = None
        if fail is not None:
            assert rehearsal.worst is not None, "a watched rehearsal has a worst moment"
            loss = rehearse_loss(situation, fail, rehearsal.worst)
        notes = [*change.notes, *dict.fromkeys(self._notes)]
        if self._api.denied:
            notes.append(f"without permission to read: {', '.join(sorted(self._api.denied))}")
        if pending:
            notes.append(
                "steps are due without the change: the cluster is not done with its last one, or the "
                "operator is of another version than this plugin"
            )
        clients = clients_of(seen)
        effects = effects_of(change.before, change.after, bootstrap_servers)
        return Planned(
            *(situation, change.changes, rehearsal, clients, assumptions, pending, notes, loss, effects)
        )

    # ---- reading

    async def _resources(self) -> list[AnyResource]:
        found: list[AnyResource] = []
        for kind in KINDS:
            for item in await self._api.list(kind, self._namespace):
                status = {
                    name: value
                    for name, value in (item.get("status") or {}).items()
                    if name not in ("lastValidSpec", "operator")
                }
                resource, problems = parse_resource(kind, item["metadata"], item.get("spec"), status)
                if resource is None:
                    resource, problems = parse_resource(kind, item["metadata"], item.get("spec"), {})
                if resource is None:
                    self._notes.append(f"{kind}/{item['metadata']['name']} is invalid: {problems[0]}")
                    continue
                self._items[resource.key] = item
                found.append(resource)
        return found

    def _problems(self, resource: AnyResource) -> Iterator[Problem]:
        yield from problems_on_kubernetes(resource, allow_sidecars=True)

    def _images(self, cluster: str) -> Images:
        """The settings of the operator: those of its Deployment, else those that the brokers run with."""
        status = self._items.get(cluster, {}).get("status") or {}
        namespace, _, name = str(status.get("operator") or "").partition("/")
        if name:
            try:
                text = self._run("get", "deployment", name, "--namespace", namespace, "-o", "json")
                container = json.loads(text)["spec"]["template"]["spec"]["containers"][0]
            except (click.ClickException, KeyError, ValueError, IndexError):
                self._notes.append(
                    f"the Deployment {namespace}/{name} of the operator cannot be read: its images are taken "
                    "from the running pods"
                )
            else:
                given = {each["name"]: each.get("value", "") for each in container.get("env") or ()}
                images = images_from(given)
                sidecars = "--allow-sidecars" in (container.get("args") or ())
                return replace(
                    images,
                    operator=f"{namespace}/{name}",
                    operator_namespace=namespace,
                    allow_sidecars=sidecars,
                )
        images = Images(operator_namespace=namespace)
        cluster_name = cluster.partition("/")[2]
        for component, part in (("broker", "broker"), ("zookeeper", "zookeeper")):
            for pod in self._pods(cluster_name, component):
                first = pod["spec"]["containers"][0]
                images = replace(images, **{part: first["image"]}, pull_policy=first["imagePullPolicy"])
                break
        return images

    def _pods(self, cluster: str, component: str) -> list[Object]:
        selector = f"{naming.CLUSTER_LABEL}={cluster},{naming.COMPONENT_LABEL}={component}"
        text = self._run("get", "pods", "--namespace", self._namespace, "-l", selector, "-o", "json")
        return list(json.loads(text)["items"])

    def _see(self, cluster: str) -> Object:
        """The answer of the brokers."""
        ready = [pod for pod in self._pods(cluster, naming.BROKER) if observing.is_ready(pod)]
        if not ready:
            self._notes.append("no broker is ready: topics and clients are not known")
            return {"problem": "no broker is ready"}
        metrics = {
            str(naming.ordinal_of(observing.name_of(pod))): f"{pod['status'].get('podIP')}:{METRICS_PORT}"
            for pod in ready
        }
        name = observing.name_of(ready[0])
        text = self._run(
            *("exec", "-i", name, "--namespace", self._namespace, "-c", "broker", "--", "python", "-"),
            *(f"{naming.CONFIG_DIR}/{name}/{naming.PROPERTIES}", json.dumps(metrics)),
            stdin=inspect.getsource(probe),
        )
        try:
            answer: Object = json.loads(text.splitlines()[-1])
        except (IndexError, ValueError):
            raise click.ClickException(f"broker {name} gave no answer: {text[:200]!r}") from None
        if answer.get("problem"):
            self._notes.append(f"the brokers cannot be observed: {answer['problem']}")
        if answer.get("sizesProblem"):
            self._notes.append(f"sizes are not known: {answer['sizesProblem']}")
        return answer

    def _situation(
        self,
        images: Images,
        seen: Object,
        cluster: BrokerCluster,
        resources: Sequence[AnyResource],
        timing: Timing,
    ) -> Situation:
        """What a rehearsal of these resources begins with. Raises StepFailed."""
        platform = KubernetesPlatform(
            *(self._api, images, self._namespace, cluster.metadata.name, self._clock_ms),
            roles_of=_roles_of(cluster),
        )
        looked = look(platform, probe.state_of(seen), resources, self._clock_ms())
        self._notes += looked.problems
        return Situation(
            looked.observed,
            resources,
            timing,
            platform.traits,
            platform.restart_request(),
            probe.sizes_of(seen),
            platform.kept_volumes(),
            [step for step in looked.children if not self._is_left_out(step)],
        )

    def _is_left_out(self, step: str) -> bool:
        """Steps of ZooKeeper's roll, which the model has, and of Secrets that cannot be read."""
        return step.startswith("replace pod ") or ("Secret " in step and "Secret" in self._api.denied)


def _roles_of(cluster: BrokerCluster) -> FindRoles:
    """The roles that the status has: ZooKeeper is reached from inside Kubernetes only."""
    status = cluster.status.zookeeper
    known = {} if status is None else {server.id: server.role for server in status.servers}

    async def find(
        hosts: Mapping[int, str], port: int, context: ssl.SSLContext | None
    ) -> Mapping[int, ServerRole]:
        return {member: ServerRole(known.get(member, ""), len(hosts) - 1) for member in hosts}

    return find
