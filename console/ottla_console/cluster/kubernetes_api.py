"""The resources of a cluster on Kubernetes, for `resources`: reads objects as dicts from an API server.

The official client is synchronous, and runs in a small thread pool here. Its library is part of the extra
operator: it is imported when a cluster names a BrokerCluster.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

from ottla_console.cluster.problems import Kind, Problem
from ottla_console.cluster.resources import Found, Object, ReadingFailed
from ottla_console.settings import BrokerClusterName

API_VERSION: Final = "ottla.dev/v1alpha1"
OBJECTS_MAX: Final = 2_000
"""Of each kind; more are not read."""
OTHERS: Final = (
    *("brokerpools", "topics", "users", "quotas", "consumergroups", "pipelines"),
    *("connectclusters", "connectors"),
)
"""The kinds that refer to a BrokerCluster."""
TIMEOUT_S: Final = 5.0
_THREADS: Final = 4
_PAGE: Final = 500


class KubernetesError(Exception):
    """The API server refused a request, or did not respond (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class KubernetesApi(Protocol):
    """What the console reads from an API server. Raises KubernetesError."""

    async def get(self, path: str) -> Object:
        """An object, by the path of its URL."""

    async def list(self, path: str, selector: str = "", most: int = OBJECTS_MAX) -> Sequence[Object]:
        """Objects, by the path of their URL; `selector`: of fields."""

    async def close(self) -> None:
        """Release connections and threads."""


class OnKubernetes:
    """The source of a BrokerCluster on Kubernetes."""

    def __init__(self, api: KubernetesApi, of: BrokerClusterName) -> None:
        self._api = api
        self._of = of
        self.what = f"BrokerCluster {of.name} on Kubernetes"

    async def close(self) -> None:
        await self._api.close()

    async def read(self) -> Found:
        namespace = f"namespaces/{self._of.namespace}"
        root = f"/apis/{API_VERSION}/{namespace}"
        try:
            cluster = await self._api.get(f"{root}/brokerclusters/{self._of.name}")
            events, *others = await asyncio.gather(
                self._api.list(f"/api/v1/{namespace}/events", f"involvedObject.apiVersion={API_VERSION}"),
                *(self._known(f"{root}/{plural}") for plural in OTHERS),
            )
        except KubernetesError as error:
            raise ReadingFailed(self._problem(error)) from None
        return Found(cluster, [each for some in others for each in some], events)

    async def _known(self, path: str) -> Sequence[Object]:
        """Objects of a kind; none if the CRD is not installed."""
        try:
            return await self._api.list(path)
        except KubernetesError as error:
            if error.status == 404:
                return ()
            raise

    def _problem(self, error: KubernetesError) -> Problem:
        what = self.what
        if error.status == 404:
            return Problem(Kind.MISSING, what, f"the namespace {self._of.namespace} has none of this name")
        if error.status in (401, 403):
            return Problem(
                Kind.FORBIDDEN, what, str(error),
                "The console's service account needs get of brokerclusters, and list of events and the other "
                "resources of ottla.dev: the chart ottla-cluster has a Role with them.",
            )  # fmt: skip
        return Problem(
            Kind.UNREACHABLE, what, str(error),
            "The page shows what the brokers say, and tries again by itself.",
        )  # fmt: skip


class ApiServer:
    """Connections to the API server: of the pod's service account, else of the kubeconfig."""

    def __init__(self) -> None:
        """Raises ImportError without the library. A missing or invalid configuration is reported by the
        first request."""
        from kubernetes import client, config  # part of the extra operator

        self._problem = ""
        settings = client.Configuration()
        try:
            try:
                config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
            except config.ConfigException:
                config.load_kube_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as error:
            self._problem = f"there is neither a service account nor a kubeconfig: {error}"
        settings.connection_pool_maxsize = _THREADS
        self._client = client.ApiClient(settings)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="kubernetes")

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.rest_client.pool_manager.clear()

    async def get(self, path: str) -> Object:
        return await self._request(path, [])

    async def list(self, path: str, selector: str = "", most: int = OBJECTS_MAX) -> Sequence[Object]:
        found: list[Object] = []
        token = ""
        while len(found) < most:
            query = [("limit", str(_PAGE))]
            query += [("fieldSelector", selector)] if selector else []
            query += [("continue", token)] if token else []
            page = await self._request(path, query)
            # The items of a list have no kind; the list has it.
            kind = str(page.get("kind", "")).removesuffix("List")
            found += [{"kind": kind, **item} for item in page.get("items") or ()]
            token = str((page.get("metadata") or {}).get("continue") or "")
            if not token:
                break
        return found

    async def _request(self, path: str, query: Sequence[tuple[str, str]]) -> Object:
        if self._problem:
            raise KubernetesError(0, self._problem)
        loop = asyncio.get_running_loop()
        status, body = await loop.run_in_executor(self._threads, self._send, path, query)
        try:
            content: dict[str, Any] = json.loads(body)
        except ValueError:
            content = {}
        if status != 200 or not isinstance(content, dict):
            shown = content.get("message") if isinstance(content, dict) else None
            raise KubernetesError(status, str(shown or body[:300].decode(errors="replace")))
        return content

    def _send(self, path: str, query: Sequence[tuple[str, str]]) -> tuple[int, bytes]:
        """Status and body, in a thread; status 0 with the reason when there is no response."""
        try:
            method, url, headers, _, _ = self._client.param_serialize(
                "GET",
                path,
                query_params=list(query),
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
            )
            response = self._client.rest_client.pool_manager.request(
                method, url, headers=headers, timeout=TIMEOUT_S, retries=False
            )
            return int(response.status), bytes(response.data)
        except Exception as error:
            # urllib3 and ssl raise many types; all of them mean that the API server did not respond.
            return 0, f"the API server does not respond: {error}".encode()
