"""The validating webhook: tells the mistakes in a spec when it is written, and warns.

The rules are those of the reconciliation; the CRDs have those that CEL can say, so that the webhook adds the
rest, warnings, and what depends on other objects. Every replica serves it, also one that stands by.
Invariants: nothing that is wrong with the webhook itself refuses a request; an object that is being deleted,
and a change of nothing but metadata, are never refused; a mistake that the old spec had, too, is a warning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import kopf

from ottla_operator.kubernetes.api import Api, ApiError, NotFound, Object
from ottla_operator.kubernetes.handlers import settings
from ottla_operator.kubernetes.store import problems_on_kubernetes
from ottla_operator.kubernetes.webhook_certificate import WebhookCertificate
from ottla_operator.resources import (
    KINDS,
    AnyResource,
    BrokerCluster,
    ConnectCluster,
    Connector,
    Pipeline,
    Problem,
    Quota,
    Topic,
    User,
)
from ottla_operator.resources.common import GROUP, VERSION
from ottla_operator.resources.loading import parse_resource

log = logging.getLogger(__name__)

HANDLER: Final = "validate"
"""The id of the handlers, and the path of the webhook."""
_STATUS: Final = 422
# The API server gives a review 3 seconds, and gets an answer without the other objects if these take long.
_LOOK_S: Final = 1.5
# Reviews of many objects, as of a GitOps tool, share one list of the others.
_LIST_AGE_S: Final = 10.0
_WARNINGS_MAX: Final = 20
_RETRY_S: Final = 10


@dataclass(frozen=True, slots=True)
class Review:
    """What is wrong with a spec that is written, and what it does besides or instead."""

    resource: AnyResource | None = None
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def review(kind: str, new: Object, old: Object | None, *, allow_sidecars: bool) -> Review:
    """Review a creation, or an update of `old`, by the specs alone."""
    if new["metadata"].get("deletionTimestamp") is not None:
        return Review()
    if old is not None and old.get("spec") == new.get("spec"):
        return Review()
    resource, problems = _parsed(kind, new, allow_sidecars)
    before, problems_before = (None, []) if old is None else _parsed(kind, old, allow_sidecars)
    if resource is not None and before is not None:
        problems = list(resource.transition_problems(before))
    known = {str(problem) for problem in problems_before}
    texts = [str(problem) for problem in problems]
    return Review(
        resource,
        tuple(text for text in texts if text not in known),
        (
            *(f"{text} (as before; the last valid spec stays in force)" for text in texts if text in known),
            *(() if resource is None else resource.notes()),
        ),
    )


def _parsed(kind: str, item: Object, allow_sidecars: bool) -> tuple[AnyResource | None, list[Problem]]:
    metadata = dict(item["metadata"])
    if "name" not in metadata:
        # The API server has not completed it yet.
        metadata["name"] = f"{metadata.get('generateName', '')}00000"
    resource, problems = parse_resource(kind, metadata, item.get("spec"))
    if resource is not None:
        problems = list(problems_on_kubernetes(resource, allow_sidecars=allow_sidecars))
    return (None if problems else resource), problems


def claim_of(kind: str, item: Mapping[str, Any]) -> str:
    """What of a cluster an object claims to own alone; "" for nothing."""
    name, spec = item["metadata"].get("name", ""), item.get("spec") or {}
    if kind == Topic.definition.kind:
        return f"topic {spec.get('topicName') or name}"
    if kind == User.definition.kind:
        return f"user {spec.get('userName') or name}"
    if kind == Quota.definition.kind:
        entity = spec.get("entity") or {}
        return f"quotas of {', '.join(f'{n} {entity[n]}' for n in sorted(entity))}"
    return ""


def _cluster_of(item: Mapping[str, Any]) -> str:
    return str(((item.get("spec") or {}).get("clusterRef") or {}).get("name") or "")


@dataclass(slots=True)
class Reviewer:
    """Reviews with a look at the other objects of the namespace."""

    api: Api
    allow_sidecars: bool
    now_s: Callable[[], float]
    _lists: dict[tuple[str, str], tuple[float, list[Object]]] = field(default_factory=dict)
    """Objects by kind and namespace, with the time of the list."""

    async def review(self, kind: str, namespace: str, new: Object, old: Object | None) -> Review:
        """Review a creation or an update."""
        found = review(kind, new, old, allow_sidecars=self.allow_sidecars)
        if found.resource is None or found.problems:
            return found
        warnings = list(found.warnings)
        try:
            async with asyncio.timeout(_LOOK_S):
                warnings += [text async for text in self._of_others(found.resource, namespace, new)]
        except (TimeoutError, ApiError) as error:
            log.warning("a review without the other objects of %s: %s", namespace, error or "timed out")
        return Review(found.resource, (), tuple(warnings[:_WARNINGS_MAX]))

    async def _of_others(self, resource: AnyResource, namespace: str, new: Object) -> Any:
        kind = resource.kind
        for path, referred, name in _references(resource):
            if not await self._exists(referred, namespace, name):
                yield (
                    f"{path}: there is no {referred} {name} in namespace {namespace}: the {kind} waits for it"
                )
        claim = claim_of(kind, new)
        if not claim:
            return
        for other in _claimants(await self._others(kind, namespace), claim, resource):
            yield f"ResourceConflict: {kind} {other} is about {claim}, too, and the older one owns it"

    async def _exists(self, kind: str, namespace: str, name: str) -> bool:
        try:
            await self.api.get(kind, namespace, name)
        except NotFound:
            return False
        return True

    async def _others(self, kind: str, namespace: str) -> list[Object]:
        at, items = self._lists.get((kind, namespace), (0.0, []))
        if not at or self.now_s() - at > _LIST_AGE_S:
            items = await self.api.list(kind, namespace)
            self._lists[kind, namespace] = (self.now_s(), items)
        return items


def _references(resource: AnyResource) -> Iterator[tuple[str, str, str]]:
    """(path, kind, name) of the resources that this one waits for."""
    if isinstance(resource, BrokerCluster):
        return
    if isinstance(resource, Connector):
        yield "spec.connectRef.name", ConnectCluster.definition.kind, resource.spec.connect_ref.name
        return
    if resource.spec.cluster_ref is not None:
        yield "spec.clusterRef.name", BrokerCluster.definition.kind, resource.spec.cluster_ref.name
    if isinstance(resource, Pipeline | ConnectCluster) and resource.spec.user is not None:
        yield "spec.user", User.definition.kind, resource.spec.user


def _claimants(items: list[Object], claim: str, resource: AnyResource) -> Iterator[str]:
    """The names of the other objects with the claim in the same cluster, one at most."""
    assert not isinstance(resource, BrokerCluster | ConnectCluster | Connector), "they claim nothing"
    for item in items:
        name = str(item["metadata"]["name"])
        same = _cluster_of(item) == resource.spec.cluster_ref.name and claim_of(resource.kind, item) == claim
        if same and name != resource.metadata.name:
            yield name
            return


def registry_for(reviewer: Reviewer) -> kopf.OperatorRegistry:
    """kopf's registry with a validating handler for each kind."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(id="client", registry=registry, errors=kopf.ErrorsMode.PERMANENT)(kopf.login_via_client)

    async def validate(
        *, body: Any, namespace: str | None, warnings: list[str], old: Any = None, **_: Any
    ) -> None:
        # kopf refuses what a handler cannot review; the operator reports it later, as without a webhook.
        try:
            before = None if old is None else dict(old)
            found = await reviewer.review(str(body["kind"]), namespace or "", dict(body), before)
        except Exception:
            log.exception("a review failed, and its object is accepted")
            return
        warnings.extend(found.warnings)
        if found.problems:
            log.info("refused %s/%s: %s", namespace, body["kind"], "; ".join(found.problems))
            raise kopf.AdmissionError("; ".join(found.problems), code=_STATUS)

    for model in KINDS.values():
        plural = model.definition.plural
        kopf.on.validate(GROUP, VERSION, plural, id=HANDLER, registry=registry)(validate)
    return registry


async def serve(
    reviewer: Reviewer, certificate: WebhookCertificate, port: int, stopping: asyncio.Event
) -> None:
    """Serve the webhook until `stopping` is set. A failure is logged, and it starts again: the
    operator's work does not depend on it."""
    renewing = asyncio.ensure_future(certificate.keep())
    try:
        while not stopping.is_set():
            try:
                await certificate.ready.wait()
                await _run_kopf(reviewer, certificate, port, stopping)
                stopping.set()
            except Exception:
                log.exception("the webhook has ended; it starts again in %d s", _RETRY_S)
                await asyncio.sleep(_RETRY_S)
    finally:
        renewing.cancel()


async def _run_kopf(
    reviewer: Reviewer, certificate: WebhookCertificate, port: int, stopping: asyncio.Event
) -> None:
    chosen = settings()
    chosen.admission.server = kopf.WebhookServer(
        port=port, certfile=certificate.certificate_file, pkeyfile=certificate.key_file
    )
    await kopf.operator(
        registry=registry_for(reviewer),
        settings=chosen,
        standalone=True,
        clusterwide=True,
        stop_flag=stopping,
    )
