"""The certificate of the webhook: from a Secret that all replicas share, into files that kopf reads again.

The operator makes and renews it, by an authority of its own whose certificate it keeps in the webhook's
configuration; or others do (cert-manager), and the operator only reads the Secret. Replicas need no leader
for this: each write names the version that was read.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ottla_operator.kubernetes.api import Api, ApiError, Conflict, NotFound, Object
from ottla_operator.planning.certificates import (
    Lifetime,
    Pair,
    RandomBytes,
    Subject,
    authority_reason,
    issue,
    new_authority,
    renewal_reason,
)

log = logging.getLogger(__name__)

CONFIGURATION: Final = "ValidatingWebhookConfiguration"
_LOOK_EACH_S: Final = 60.0
_AUTHORITY: Final = Lifetime(validity_days=3650, renewal_days=365)
_SERVER: Final = Lifetime(validity_days=365, renewal_days=60)
_KEY, _CERTIFICATE = "tls.key", "tls.crt"
_AUTHORITY_KEY, _AUTHORITY_CERTIFICATE = "ca.key", "ca.crt"


@dataclass(slots=True)
class WebhookCertificate:
    """`name`: of the Service and of the Secret. `configuration`: that of the webhook, whose caBundle is kept
    current; "": others make the certificate."""

    api: Api
    namespace: str
    name: str
    configuration: str
    folder: Path
    clock_ms: Callable[[], int]
    random_bytes: RandomBytes
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the files exist."""

    @property
    def certificate_file(self) -> Path:
        return self.folder / _CERTIFICATE

    @property
    def key_file(self) -> Path:
        return self.folder / _KEY

    async def keep(self) -> None:
        """Refresh the files and the configuration for ever."""
        while True:
            try:
                await self.refresh()
            except (ApiError, OSError) as error:
                log.warning("the certificate of the webhook: %s", error)
            await asyncio.sleep(_LOOK_EACH_S if self.ready.is_set() else 2.0)

    async def refresh(self) -> None:
        """One look at the Secret, and what is due then. Raises ApiError and OSError."""
        files = await self._read() if not self.configuration else await self._renewed()
        if _KEY not in files or _CERTIFICATE not in files:
            log.warning("the Secret %s/%s has no certificate yet", self.namespace, self.name)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in (self.key_file, self.certificate_file):
            if not path.exists() or path.read_bytes() != files[path.name]:
                path.touch(mode=0o600)
                path.write_bytes(files[path.name])
        self.ready.set()
        if self.configuration:
            await self._publish(files[_AUTHORITY_CERTIFICATE])

    async def _read(self) -> dict[str, bytes]:
        try:
            return _files(await self.api.get("Secret", self.namespace, self.name))
        except NotFound:
            return {}

    async def _renewed(self) -> Mapping[str, bytes]:
        """The content of the Secret, with what is due renewed."""
        try:
            secret: Object | None = await self.api.get("Secret", self.namespace, self.name)
        except NotFound:
            secret = None
        files = {} if secret is None else _files(secret)
        wanted = self._current(files)
        if wanted == files:
            return files
        data = {name: base64.b64encode(content).decode() for name, content in wanted.items()}
        try:
            if secret is None:
                metadata: Object = {"name": self.name, "namespace": self.namespace}
                body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
                await self.api.create({**body, "type": "kubernetes.io/tls"})
            else:
                version = {"resourceVersion": secret["metadata"]["resourceVersion"]}
                await self.api.merge("Secret", self.namespace, self.name, {"metadata": version, "data": data})
        except Conflict:
            return await self._read()
        log.info("issued the certificate of the webhook, Secret %s/%s", self.namespace, self.name)
        return wanted

    def _current(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """The files of the authority and of the server, new ones where they are missing or expire."""
        now_ms, host = self.clock_ms(), f"{self.name}.{self.namespace}.svc"
        authority = _pair(files, _AUTHORITY_KEY, _AUTHORITY_CERTIFICATE)
        if authority is None or authority_reason(authority, _AUTHORITY, now_ms):
            key = authority.key if authority is not None else None
            authority = new_authority(self.name, _AUTHORITY, now_ms, self.random_bytes, key)
        server, subject = _pair(files, _KEY, _CERTIFICATE), Subject(host, names=(host,))
        if server is None or renewal_reason(server, authority.certificate, subject, _SERVER, now_ms):
            server = issue(authority, subject, _SERVER, now_ms, self.random_bytes)
        return {
            _AUTHORITY_KEY: authority.key,
            _AUTHORITY_CERTIFICATE: authority.certificate,
            _KEY: server.key,
            _CERTIFICATE: server.certificate,
        }

    async def _publish(self, authority: bytes) -> None:
        """Write the authority into the webhook's configuration, when that has another one."""
        try:
            found = await self.api.get(CONFIGURATION, None, self.configuration)
        except NotFound:
            log.warning("there is no %s %s", CONFIGURATION, self.configuration)
            return
        bundle = base64.b64encode(authority).decode()
        webhooks = found.get("webhooks") or []
        if all(each["clientConfig"].get("caBundle") == bundle for each in webhooks):
            return
        changed = [
            {**each, "clientConfig": {**each["clientConfig"], "caBundle": bundle}} for each in webhooks
        ]
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        patch = {"metadata": version, "webhooks": changed}
        try:
            await self.api.merge(CONFIGURATION, None, self.configuration, patch)
        except Conflict:
            return
        log.info("wrote the authority of the webhook into %s %s", CONFIGURATION, self.configuration)


def _files(secret: Object) -> dict[str, bytes]:
    """The four files in a Secret; those that cannot be decoded are missing."""
    found = {}
    for name in (_AUTHORITY_KEY, _AUTHORITY_CERTIFICATE, _KEY, _CERTIFICATE):
        try:
            found[name] = base64.b64decode((secret.get("data") or {})[name], validate=True)
        except (KeyError, ValueError):
            continue
    return found


def _pair(files: Mapping[str, bytes], key: str, certificate: str) -> Pair | None:
    return Pair(files[key], files[certificate]) if key in files and certificate in files else None
