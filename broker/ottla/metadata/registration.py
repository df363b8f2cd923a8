"""Registration of a broker: Kafka's persistent nodes, the cluster id, and /brokers/ids/<id>.

Called by the broker at its start and after its session expired. Invariant: a broker id is registered by one
session at a time; the registration of another live session is never replaced.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from ottla.metadata import znodes
from ottla.metadata.store import (
    MetadataStore,
    NodeExists,
    NoNode,
    StoreUnavailable,
    ensure_path,
    pipelined,
)
from ottla.metadata.znodes import BrokerInfo, Endpoint
from ottla.ports import random_uuid

log = logging.getLogger(__name__)


class AlreadyRegistered(Exception):
    """Another live broker has this id."""


async def ensure_tree(store: MetadataStore) -> None:
    """Create the missing persistent nodes of Kafka's tree."""
    await pipelined(lambda path: asyncio.ensure_future(ensure_path(store, path)), znodes.PERSISTENT_PATHS)


def new_cluster_id(random: Random) -> str:
    """22 characters of URL-safe base64, as in Kafka; never with a leading dash (KAFKA-14189)."""
    while True:
        text = base64.urlsafe_b64encode(random_uuid(random).bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


async def cluster_id(store: MetadataStore, random: Random) -> str:
    """The cluster id; the first broker creates it."""
    found = await store.get(znodes.CLUSTER_ID)
    if found is None:
        try:
            await store.create(
                znodes.CLUSTER_ID, znodes.encode_cluster_id(new_cluster_id(random)), make_parents=True
            )
        except NodeExists:
            log.debug("Another broker created the cluster id first")
        found = await store.get(znodes.CLUSTER_ID)
        if found is None:
            raise StoreUnavailable(znodes.CLUSTER_ID, "deleted after its creation")
    return znodes.decode_cluster_id(found[0])


class BrokerRegistration:
    """Registers one broker, at its start and after each expired session.

    `clock` returns wall time in ms. After a crash, the previous session of the broker may still own the id:
    `register` waits for its expiry, at most `wait_s` (more than the session timeout), and then awaits
    `after_crash`, so that its partitions can fail over first.
    """

    def __init__(
        self,
        store: MetadataStore,
        broker_id: int,
        endpoints: Sequence[Endpoint],
        *,
        rack: str | None = None,
        clock: Callable[[], int],
        wait_s: float = 30.0,
        after_crash: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._wait_s = wait_s
        self._after_crash = after_crash
        self.broker_id = broker_id
        self.endpoints = tuple(endpoints)
        self.rack = rack
        self.broker_epoch = -1

    async def register(self) -> int:
        """Create /brokers/ids/<id> and return the broker epoch, its czxid (KIP-380).

        Raises AlreadyRegistered if a live broker keeps the id for `wait_s`, StoreUnavailable.
        """
        await ensure_tree(self._store)
        path = znodes.broker_path(self.broker_id)
        info = BrokerInfo(self.broker_id, self.endpoints, self.rack, self._clock())
        changed = asyncio.Event()
        cancel = await self._store.watch_data(path, changed.set)
        deadline = asyncio.get_running_loop().time() + self._wait_s
        try:
            while True:
                changed.clear()
                try:
                    await self._store.create(path, znodes.encode_broker(info), ephemeral=True)
                except NodeExists:
                    log.debug("%s already exists", path)
                stat = await self._store.exists(path)
                if stat is not None and stat.ephemeral_owner == self._store.session_id:
                    self.broker_epoch = stat.czxid
                    log.info("Registered broker %d with epoch %d", self.broker_id, stat.czxid)
                    return stat.czxid
                if stat is not None:
                    await self._wait_for_expiry(changed, deadline)
                    if self._after_crash is not None and await self._store.exists(path) is None:
                        await self._after_crash()
        finally:
            cancel()

    async def _wait_for_expiry(self, changed: asyncio.Event, deadline: float) -> None:
        remaining_s = deadline - asyncio.get_running_loop().time()
        log.info(
            "Broker id %d is registered by another session; waiting for its expiry for at most %.0f s",
            self.broker_id,
            remaining_s,
        )
        try:
            await asyncio.wait_for(changed.wait(), max(0.0, remaining_s))
        except TimeoutError:
            raise AlreadyRegistered(
                f"broker id {self.broker_id} is in use: {znodes.broker_path(self.broker_id)} belongs to "
                "another live session. Give this broker another broker.id, or stop the other one."
            ) from None

    async def unregister(self) -> None:
        """Delete the registration if it is this session's."""
        path = znodes.broker_path(self.broker_id)
        stat = await self._store.exists(path)
        if stat is not None and stat.ephemeral_owner == self._store.session_id:
            try:
                await self._store.delete(path)
            except NoNode:
                return
