"""An asynchronous client of the API server: list, get, server-side apply, patch, delete; errors by type.

The only module that uses the official client, which is synchronous and runs in a thread pool here. Objects
are plain dicts in the API's form. Invariants: every call has a time-out; a failed call raises an `ApiError`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from kubernetes import client, config

from ottla_operator.kubernetes.naming import MANAGER
from ottla_operator.resources import API_VERSION, KINDS

log = logging.getLogger(__name__)

Object = dict[str, Any]

_TIMEOUT_S: Final = 20.0
_THREADS: Final = 8
_PAGE: Final = 500

_PLURALS: Final = {
    "ConfigMap": ("v1", "configmaps"),
    "Event": ("v1", "events"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "Node": ("v1", "nodes"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Pod": ("v1", "pods"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings"),
    "ValidatingWebhookConfiguration": ("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"),
    "StorageClass": ("storage.k8s.io/v1", "storageclasses"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "Ingress": ("networking.k8s.io/v1", "ingresses"),
    "Certificate": ("cert-manager.io/v1", "certificates"),
    "TLSRoute": ("gateway.networking.k8s.io/v1", "tlsroutes"),
    **{kind: (API_VERSION, model.definition.plural) for kind, model in KINDS.items()},
}


class ApiError(Exception):
    """The API server rejected the request, or did not respond (status 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(ApiError):
    """The object or its kind does not exist."""


class Conflict(ApiError):
    """The object has another resourceVersion or uid than the request names, or exists already."""


class Forbidden(ApiError):
    """The operator lacks the permission; also a creation in a namespace that is being deleted."""


class Invalid(ApiError):
    """The object or the patch is invalid."""


_ERRORS: Final = {403: Forbidden, 404: NotFound, 409: Conflict, 422: Invalid}


@dataclass(frozen=True, slots=True)
class Call:
    """One request, for metrics."""

    verb: str
    kind: str
    status: int


def path_of(kind: str, namespace: str | None, name: str | None = None, subresource: str = "") -> str:
    """The URL path of a kind's objects, of one object, or of its subresource."""
    version, plural = _PLURALS[kind]
    root = f"/api/{version}" if version == "v1" else f"/apis/{version}"
    parts = [root]
    if namespace is not None:
        parts.append(f"namespaces/{namespace}")
    parts.append(plural)
    if name is not None:
        parts.append(name)
    if subresource:
        parts.append(subresource)
    return "/".join(parts)


def load_config() -> None:
    """Load the pod's service account in a cluster, else the kubeconfig. Raises RuntimeError."""
    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]
    except config.ConfigException:
        try:
            config.load_kube_config()  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as error:
            raise RuntimeError(f"there is neither a service account nor a kubeconfig: {error}") from None


class Api:
    """One connection pool to the API server. `load_config` must have been called."""

    def __init__(self, counted: Callable[[Call], None] | None = None) -> None:
        settings = client.Configuration.get_default_copy()
        settings.connection_pool_maxsize = _THREADS
        self._client = client.ApiClient(settings)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="api")
        self._counted = counted or (lambda call: None)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- requests

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
        method = {"get": "GET", "list": "GET", "create": "POST", "delete": "DELETE"}.get(verb, "PATCH")
        headers = {"Accept": "application/json", "Content-Type": content_type}
        text = None if body is None else json.dumps(body)
        loop = asyncio.get_running_loop()
        status = 0
        try:
            status, answer = await loop.run_in_executor(
                self._threads, self._send, method, path, dict(query or {}), headers, text
            )
        finally:
            self._counted(Call(verb, kind, status))
        content = _parsed(answer)
        if status >= 300 or status == 0:
            reason = str(content.get("reason") or f"Status{status}")
            message = str(content.get("message") or answer[:300].decode(errors="replace"))
            raise _ERRORS.get(status, ApiError)(status, reason, message)
        return content

    def _send(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: str | None
    ) -> tuple[int, bytes]:
        """Send the request, in a thread. Returns status 0 with a reason when there is no response."""
        try:
            method, url, all_headers, _, _ = self._client.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params=headers,
                auth_settings=["BearerToken"],
            )
            # The pool is used directly: the client's encoder rejects JSON with the content types of patches.
            response = self._client.rest_client.pool_manager.request(
                method, url, body=body, headers=all_headers, timeout=_TIMEOUT_S, retries=False
            )
            return int(response.status), bytes(response.data)
        except Exception as error:
            # urllib3 and ssl raise many types; all of them mean that the API server did not respond.
            reason = {"reason": "Unreachable", "message": f"the API server does not respond: {error}"}
            return 0, json.dumps(reason).encode()

    # ---- reading

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> list[Object]:
        """All objects of a kind, page by page. `namespace` None: of all namespaces."""
        found: list[Object] = []
        query = {"limit": str(_PAGE)}
        if selector:
            query["labelSelector"] = selector
        while True:
            page = await self._request("list", kind, path_of(kind, namespace), query=query)
            # The items of a list have no apiVersion and kind.
            type_meta = {"apiVersion": _PLURALS[kind][0], "kind": kind}
            found += [{**type_meta, **item} for item in page.get("items") or ()]
            token = page.get("metadata", {}).get("continue")
            if not token:
                return found
            query["continue"] = token

    async def get(self, kind: str, namespace: str | None, name: str) -> Object:
        return await self._request("get", kind, path_of(kind, namespace, name))

    # ---- writing

    async def apply(self, manifest: Object) -> Object:
        """Server-side apply; the operator takes ownership of all fields of the manifest."""
        metadata = manifest["metadata"]
        return await self._request(
            "apply",
            manifest["kind"],
            path_of(manifest["kind"], metadata["namespace"], metadata["name"]),
            query={"fieldManager": MANAGER, "force": "true"},
            body=manifest,
            content_type="application/apply-patch+yaml",
        )

    async def create(self, manifest: Object, *, dry_run: bool = False) -> Object:
        """Create an object. Raises Conflict when it exists. `dry_run`: only ask whether it may be created."""
        kind = manifest["kind"]
        path = path_of(kind, manifest["metadata"]["namespace"])
        return await self._request(
            "create", kind, path, query={"dryRun": "All"} if dry_run else None, body=manifest
        )

    async def merge(self, kind: str, namespace: str | None, name: str, patch: Object) -> Object:
        """A merge patch; with metadata.resourceVersion it applies to that version only."""
        return await self._patch(kind, path_of(kind, namespace, name), patch, "merge-patch")

    async def replace_owners(
        self,
        kind: str,
        namespace: str,
        name: str,
        resource_version: str,
        managed_fields: Sequence[Object],
        annotations: Mapping[str, str],
    ) -> Object:
        """Replace metadata.managedFields and the annotations. Raises Conflict when the object has another
        version."""
        patch = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version},
            {"op": "add", "path": "/metadata/managedFields", "value": list(managed_fields)},
            {"op": "add", "path": "/metadata/annotations", "value": dict(annotations)},
        ]
        return await self._patch(kind, path_of(kind, namespace, name), patch, "json-patch")

    async def replace_status(
        self, kind: str, namespace: str, name: str, resource_version: str, status: Object
    ) -> Object:
        """Replace the status. Raises Conflict when the object has another version."""
        patch = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": resource_version},
            {"op": "add", "path": "/status", "value": status},
        ]
        try:
            return await self._patch(kind, path_of(kind, namespace, name, "status"), patch, "json-patch")
        except Invalid as error:
            if "test" in error.message and "resourceVersion" in error.message:
                raise Conflict(409, "Conflict", error.message) from None
            raise

    async def _patch(self, kind: str, path: str, patch: object, form: str) -> Object:
        """`form`: merge-patch or json-patch."""
        return await self._request(
            "patch",
            kind,
            path,
            query={"fieldManager": MANAGER},
            body=patch,
            content_type=f"application/{form}+json",
        )

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str = "", propagation: str = "Background"
    ) -> None:
        """Begin a deletion; a missing object is no error. `uid`: only an object with this uid."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._request("delete", kind, path_of(kind, namespace, name), body=options)
        except NotFound:
            log.debug("%s %s/%s does not exist", kind, namespace, name)


def _parsed(answer: bytes) -> Object:
    try:
        content = json.loads(answer)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
