"""Leader election by a Lease: one operator works, the others stand by.

The rules are those of Kubernetes' own components (client-go's leader election). The holder renews the Lease;
another operator takes it when it is free, or when it has not changed for its duration since that operator
saw it last. Clocks of machines are never compared. Each write names the resourceVersion that was read, so of
two operators one wins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from ottla_operator.kubernetes.api import Api, ApiError, Forbidden, NotFound, Object

log = logging.getLogger(__name__)

DURATION_S: Final = 15
RENEW_DEADLINE_S: Final = 10.0
RETRY_S: Final = 2.0
_KIND: Final = "Lease"


@dataclass(slots=True)
class Election:
    """The candidate `identity` for the Lease `name`. Times are those of the event loop, in seconds."""

    api: Api
    """Of its own: requests of reconciliations must not delay a renewal."""
    namespace: str
    name: str
    identity: str
    clock_ms: Callable[[], int]
    _seen: Object = field(default_factory=dict)
    _seen_at: float = 0.0

    async def acquire(self) -> None:
        """Wait until the Lease is held."""
        waits_for = ""
        while True:
            try:
                if await self._try():
                    log.info("holds the Lease %s/%s", self.namespace, self.name)
                    return
                holder = str(_spec(self._seen).get("holderIdentity"))
                if holder != waits_for:
                    log.info("stands by: %s holds the Lease %s/%s", holder, self.namespace, self.name)
                    waits_for = holder
            except Forbidden as error:
                log.error("the Lease %s/%s: %s", self.namespace, self.name, error.message)
            except ApiError as error:
                log.warning("the Lease %s/%s was not acquired: %s", self.namespace, self.name, error.message)
            await asyncio.sleep(RETRY_S)

    async def hold(self) -> str:
        """Renew the Lease until that fails for RENEW_DEADLINE_S, or another operator holds it. Returns why
        it ended: the caller must change nothing any more."""
        now = asyncio.get_running_loop().time
        renewed_at = now()
        lost = f"the Lease {self.namespace}/{self.name} is lost"
        while True:
            await asyncio.sleep(RETRY_S)
            try:
                async with asyncio.timeout_at(renewed_at + RENEW_DEADLINE_S):
                    if not await self._try():
                        return f"{lost}: {_spec(self._seen).get('holderIdentity')} holds it"
                renewed_at = now()
            except TimeoutError:
                log.warning("the Lease %s/%s was not renewed in time", self.namespace, self.name)
            except ApiError as error:
                log.warning("the Lease %s/%s was not renewed: %s", self.namespace, self.name, error.message)
            if now() - renewed_at >= RENEW_DEADLINE_S:
                return f"{lost}: it was not renewed for {RENEW_DEADLINE_S:g} s"

    async def release(self) -> None:
        """Free the Lease, so that another operator needs not wait for its end."""
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
        try:
            async with asyncio.timeout(RETRY_S):
                await self._write(spec)
        except (ApiError, TimeoutError) as error:
            log.warning(
                "the Lease %s/%s was not released: %s", self.namespace, self.name, error or "timed out"
            )

    async def _try(self) -> bool:
        """Acquire or renew the Lease; False when another operator holds it."""
        try:
            await self._look()
        except NotFound:
            await self._create()
            return True
        spec = _spec(self._seen)
        mine = spec.get("holderIdentity") == self.identity
        waited_s = asyncio.get_running_loop().time() - self._seen_at
        if (
            not mine
            and spec.get("holderIdentity")
            and waited_s < spec.get("leaseDurationSeconds", DURATION_S)
        ):
            return False
        await self._write(self._claim(None if mine else int(spec.get("leaseTransitions") or 0) + 1))
        return True

    def _claim(self, transitions: int | None) -> Object:
        """The fields of the spec that a holder writes; None: it renews."""
        now = self._now()
        claim = {"holderIdentity": self.identity, "leaseDurationSeconds": DURATION_S, "renewTime": now}
        return (
            claim if transitions is None else {**claim, "acquireTime": now, "leaseTransitions": transitions}
        )

    async def _look(self) -> None:
        found = await self.api.get(_KIND, self.namespace, self.name)
        if _version(found) != _version(self._seen):
            self._remember(found)

    async def _create(self) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": _KIND,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": self._claim(0),
        }
        self._remember(await self.api.create(body))

    async def _write(self, spec: Object) -> None:
        patch = {"metadata": {"resourceVersion": _version(self._seen)}, "spec": spec}
        self._remember(await self.api.merge(_KIND, self.namespace, self.name, patch))

    def _remember(self, lease: Object) -> None:
        self._seen, self._seen_at = lease, asyncio.get_running_loop().time()

    def _now(self) -> str:
        """As a MicroTime of the API."""
        return datetime.fromtimestamp(self.clock_ms() / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _spec(lease: Object) -> dict[str, Any]:
    return lease.get("spec") or {}


def _version(lease: Object) -> str:
    return str(lease.get("metadata", {}).get("resourceVersion", ""))
