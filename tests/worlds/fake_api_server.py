"""`InMemoryApi` over HTTP with watches: the part of an API server that kopf and the official client need.

It runs in a thread with its own event loop; only that thread accesses the objects (`edit`, `get`). With
`suppresses_events`, watches stay open and send no events, like a stalled watch.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import web

from ottla_operator.kubernetes.api import _PLURALS, ApiError, NotFound
from tests.worlds.kubernetes_simulation import NAMESPACE, InMemoryApi, Item, matches_selector

T = TypeVar("T")

_POLL_S = 0.02
_START_S = 60
# kopf discovers these, too; there is one namespace and no CustomResourceDefinition.
_SERVED = {
    **_PLURALS,
    "Namespace": ("v1", "namespaces"),
    "CustomResourceDefinition": ("apiextensions.k8s.io/v1", "customresourcedefinitions"),
}
_NOT_NAMESPACED = ("Node", "Namespace", "CustomResourceDefinition")
_KIND_OF = {(version, plural): kind for kind, (version, plural) in _SERVED.items()}
_PATH = re.compile(
    r"^/(?:api|apis)/(?P<version>v1|[^/]+/[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?P<status>/status)?$"
)
_VERBS = ["create", "delete", "get", "list", "patch", "watch"]


@dataclass(frozen=True)
class Change:
    """A watch event."""

    number: int
    type: str
    kind: str
    item: Item


class FakeApiServer:
    """The server; a context manager starts and stops it. `url`: its address."""

    def __init__(self) -> None:
        self.api = InMemoryApi()
        self.url = ""
        self.suppresses_events = False
        self.watches = 0
        """The number of open watches."""
        self._changes: list[Change] = []
        self._seen: dict[tuple[str, str], tuple[object, Item]] = {}
        self._cuts = 0
        self._loop = asyncio.new_event_loop()
        self._started, self._stopping = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))

    def __enter__(self) -> FakeApiServer:
        self._thread.start()
        assert self._started.wait(_START_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_START_S)
        assert not self._thread.is_alive()
        self._loop.close()

    # ---- for tests, from their thread

    def edit(self, change: Callable[[InMemoryApi], T]) -> T:
        """Run `change` in the server's thread, as another client."""

        async def run() -> T:
            return change(self.api)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_START_S)

    def get(self, kind: str, name: str) -> Item | None:
        return self.edit(lambda api: copy.deepcopy(api.items.get((kind, name))))

    def close_watches(self) -> None:
        """End all watches, as a proxy does."""
        self._cuts += 1

    # ---- HTTP

    async def _serve(self) -> None:
        application = web.Application()
        application.router.add_get("/version", self._version)
        application.router.add_get("/api", self._old_versions)
        application.router.add_get("/apis", self._groups)
        application.router.add_get("/api/v1", self._resources)
        application.router.add_get("/apis/{group}/{version}", self._resources)
        application.router.add_route("*", "/{path:.*}", self._objects)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        self._started.set()
        await self._stopping.wait()
        await runner.cleanup()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"major": "1", "minor": "34", "gitVersion": "v1.34.0"})

    async def _old_versions(self, _: web.Request) -> web.Response:
        return web.json_response({"versions": ["v1"]})

    async def _groups(self, _: web.Request) -> web.Response:
        names = sorted({version for version, _ in _SERVED.values() if "/" in version})
        groups = [
            {
                "name": group,
                "versions": [{"version": version, "groupVersion": name}],
                "preferredVersion": {"version": version, "groupVersion": name},
            }
            for name in names
            for group, _, version in (name.partition("/"),)
        ]
        return web.json_response({"groups": groups})

    async def _resources(self, request: web.Request) -> web.Response:
        version = request.path.removeprefix("/apis/").removeprefix("/api/")
        resources = [
            {
                "name": plural,
                "singularName": kind.lower(),
                "kind": kind,
                "namespaced": kind not in _NOT_NAMESPACED,
                "verbs": _VERBS,
            }
            for kind, (of, plural) in _SERVED.items()
            if of == version
        ]
        return web.json_response({"groupVersion": version, "resources": resources})

    async def _objects(self, request: web.Request) -> web.StreamResponse:
        found = _PATH.match(request.path)
        kind = _KIND_OF.get((found["version"], found["plural"])) if found else None
        if found is None or kind is None:
            return _error_response(NotFound(404, "NotFound", f"no resource at {request.path}"))
        query = dict(request.query)
        if request.method == "GET" and query.get("watch") == "true":
            return await self._watch(request, kind, query)
        try:
            return web.json_response(await self._answer(request, kind, found["name"], query))
        except ApiError as error:
            return _error_response(error)

    async def _answer(self, request: web.Request, kind: str, name: str | None, query: dict[str, str]) -> Item:
        if request.method == "GET" and name is not None:
            if (kind, name) not in self.api.items:
                raise NotFound(404, "NotFound", f"{kind} {name} not found")
            return self.api.items[kind, name]
        patched = "apply" if "apply-patch" in request.content_type else "patch"
        verbs = {"GET": "list", "POST": "create", "DELETE": "delete", "PATCH": patched}
        body = json.loads(await request.text() or "null")
        answer = await self.api._request(
            verbs[request.method],
            kind,
            request.path,
            query=query,
            body=body,
            content_type=request.content_type,
        )
        if request.method == "GET":
            self._record_changes()
            version = _SERVED[kind][0]
            metadata = {"resourceVersion": str(next(self.api._ids))}
            return {"kind": f"{kind}List", "apiVersion": version, "metadata": metadata, **answer}
        return answer

    # ---- watches

    def _record_changes(self) -> None:
        """Record a change for each object that differs from the last call."""
        for key, item in self.api.items.items():
            metadata = item["metadata"]
            state = (metadata["uid"], metadata["resourceVersion"], metadata.get("deletionTimestamp"))
            before = self._seen.get(key)
            if before is None or before[0] != state:
                self._record_change("ADDED" if before is None else "MODIFIED", key[0], item)
                self._seen[key] = (state, item)
        for key in [key for key in self._seen if key not in self.api.items]:
            self._record_change("DELETED", key[0], self._seen.pop(key)[1])

    def _record_change(self, type_: str, kind: str, item: Item) -> None:
        number = next(self.api._ids)
        changed = copy.deepcopy(item)
        changed |= {"apiVersion": _SERVED[kind][0], "kind": kind}
        changed["metadata"]["resourceVersion"] = str(number)
        self._changes.append(Change(number, type_, kind, changed))

    async def _watch(self, request: web.Request, kind: str, query: dict[str, str]) -> web.StreamResponse:
        since, cuts = int(query.get("resourceVersion") or 0), self._cuts
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self.watches += 1
        try:
            while not self._stopping.is_set() and cuts == self._cuts:
                self._record_changes()
                new = [
                    c
                    for c in self._changes
                    if c.kind == kind and c.number > since and not self.suppresses_events
                ]
                for change in new:
                    since = change.number
                    if matches_selector(change.item, query.get("labelSelector", "")):
                        line = json.dumps({"type": change.type, "object": change.item})
                        await response.write(line.encode() + b"\n")
                await asyncio.sleep(_POLL_S)
        except ConnectionError:
            pass
        finally:
            self.watches -= 1
        return response


def _error_response(error: ApiError) -> web.Response:
    status: dict[str, Any] = {
        "kind": "Status",
        "status": "Failure",
        "code": error.status,
        "reason": error.reason,
        "message": error.message,
    }
    return web.json_response(status, status=error.status)


def kubeconfig(url: str) -> str:
    """A kubeconfig for the server."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": url}}],
            "users": [{"name": "fake", "user": {"token": "none"}}],
            "contexts": [
                {"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": NAMESPACE}}
            ],
        }
    )
