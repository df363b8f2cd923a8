"""The `Secrets` interface over the API server: the Secrets of Users.

Used by the reconciler of one cluster. A Secret has the cluster's label, so that one request lists all, and an
ownerReference to its resource, so that the garbage collector deletes it with the resource. A Secret without
this reference belongs to someone else and is never written.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from typing import Any, Final

from ottla_operator.kubernetes import naming
from ottla_operator.kubernetes.api import Api, ApiError, Conflict, NotFound, Object
from ottla_operator.planning.observed import Secret
from ottla_operator.platform.interfaces import StepFailed
from ottla_operator.resources import API_VERSION, AnyResource

_KIND: Final = "Secret"
_COMPONENT: Final = "user"


class KubernetesSecrets:
    """The Secrets of one cluster's Users."""

    def __init__(self, api: Api, namespace: str, cluster: str) -> None:
        self._api = api
        self._namespace = namespace
        self._cluster = cluster
        self._known: dict[str, Secret] = {}

    async def read(self, names: Collection[str]) -> Mapping[str, Secret]:
        """Raises ApiError."""
        labelled = await self._api.list(_KIND, self._namespace, f"{naming.CLUSTER_LABEL}={self._cluster}")
        found = {secret.name: secret for secret in map(secret_of, labelled) if secret.name in names}
        for name in sorted(set(names) - set(found)):
            try:
                found[name] = secret_of(await self._api.get(_KIND, self._namespace, name))
            except NotFound:
                continue
        self._known = found
        return found

    async def put(self, owner: AnyResource, name: str, data: Mapping[str, bytes]) -> None:
        known = self._known.get(name)
        if known is not None and known.owner != owner.key:
            raise StepFailed("SecretConflict", f"Secret {name} exists and {owner.key} does not own it")
        manifest = self._manifest(owner, name, data)
        try:
            if known is None:
                await self._api.create(manifest)
            else:
                gone = dict.fromkeys(set(known.data) - set(data))
                metadata = {**manifest["metadata"], "resourceVersion": known.version.rpartition("/")[2]}
                patch = {"metadata": metadata, "data": {**gone, **manifest["data"]}}
                await self._api.merge(_KIND, self._namespace, name, patch)
        except Conflict:
            raise StepFailed("SecretConflict", f"Secret {name} was created or changed concurrently") from None
        except ApiError as error:
            raise StepFailed("ApplyFailed", f"Secret {name}: {error.message}") from None

    async def delete(self, owner: AnyResource, name: str) -> None:
        known = self._known.get(name)
        if known is None or known.owner != owner.key:
            return
        try:
            await self._api.delete(_KIND, self._namespace, name)
        except ApiError as error:
            raise StepFailed("DeleteFailed", f"Secret {name}: {error.message}") from None

    async def release(self, owner: AnyResource) -> None:
        """Nothing to do: the garbage collector deletes owned Secrets."""

    def _manifest(self, owner: AnyResource, name: str, data: Mapping[str, bytes]) -> dict[str, Any]:
        reference = {
            "apiVersion": API_VERSION,
            "kind": owner.kind,
            "name": owner.metadata.name,
            "uid": owner.metadata.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }
        return {
            "apiVersion": "v1",
            "kind": _KIND,
            "metadata": {
                "name": name,
                "namespace": self._namespace,
                "labels": naming.labels(self._cluster, _COMPONENT),
                "ownerReferences": [reference],
            },
            "type": "Opaque",
            "data": {entry: base64.b64encode(value).decode() for entry, value in data.items()},
        }


def secret_of(item: Object) -> Secret:
    """A listed Secret with its owner and version."""
    metadata = item["metadata"]
    owner = next(
        (
            f"{reference['kind']}/{reference['name']}"
            for reference in metadata.get("ownerReferences") or ()
            if reference.get("apiVersion") == API_VERSION
        ),
        "",
    )
    data = {entry: base64.b64decode(value) for entry, value in (item.get("data") or {}).items()}
    version = f"{metadata.get('uid', '')}/{metadata.get('resourceVersion', '')}"
    return Secret(str(metadata["name"]), data, owner, version)
