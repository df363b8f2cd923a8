"""The ZooKeeper adapter of the metadata store, over kazoo.

Requests are issued with kazoo's asynchronous calls and are therefore pipelined on the one connection.

Invariants: those of a session; every node is made with the ACL that Kafka would give it, its parents too;
ZooKeeper's one-shot watches are re-armed before their callback runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.exceptions import (
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.security import ACL

from ottla.metadata import bulk_reads
from ottla.metadata.kazoo_connection import RECONNECT_DELAY_S_MAX
from ottla.metadata.kazoo_words import Unimplemented, add_to, result_of, stat_of, translate
from ottla.metadata.node_acls import node_acls
from ottla.metadata.store import (
    ANY_VERSION,
    Cancel,
    NodeExists,
    NoNode,
    Operation,
    OperationResult,
    Stat,
    StoreConflict,
    StoreUnavailable,
    WatchCallback,
    ensure_path,
    pipelined,
)
from ottla.metadata.zookeeper_session import ZooKeeperSession

log = logging.getLogger(__name__)

_READ_AT_ONCE = 200
"""Nodes in one request. The answer is as long as they are: a topic of 1,000 partitions has 20 KiB."""


class ZooKeeperStore(ZooKeeperSession):
    """Implements `ottla.metadata.store.MetadataStore`."""

    _reads_many = True

    async def connect(self) -> None:
        hosts, _, chroot = self._connect_string.partition("/")
        if chroot:
            session_ms, connect_ms = int(self._session_timeout_s * 1000), int(self._connect_timeout_s * 1000)
            outside = ZooKeeperStore(hosts, session_ms, connect_ms, self._access)
            await outside.connect()
            try:
                await ensure_path(outside, f"/{chroot}")
            finally:
                await outside.close()
        await super().connect()

    async def sync(self) -> None:
        await self._read("/", lambda client: client.sync_async("/"))

    async def get(self, path: str) -> tuple[bytes, Stat] | None:
        try:
            data, stat = await self._read(path, lambda client: client.get_async(path))
        except NoNode:
            return None
        # Kafka's Java code creates its folders with null data.
        return data or b"", stat_of(stat)

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        batches = [paths[at : at + _READ_AT_ONCE] for at in range(0, len(paths), _READ_AT_ONCE)]
        if len(paths) > 1 and self._reads_many:
            try:
                found = await pipelined(lambda batch: asyncio.ensure_future(self._get_batch(batch)), batches)
                return [node for batch in found for node in batch]
            except Unimplemented:
                log.info("this ZooKeeper reads nodes one by one only (it is older than 3.6)")
                self._reads_many = False
        return await pipelined(lambda path: asyncio.ensure_future(self.get(path)), paths)

    async def _get_batch(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        batch = await self._read(paths[0], lambda client: bulk_reads.read_many(client, paths))
        nodes: list[tuple[bytes, Stat] | None] = []
        for path, found in zip(paths, batch, strict=True):
            if isinstance(found, NoNodeError):
                nodes.append(None)
            elif isinstance(found, Exception):
                raise translate(path, found)
            else:
                nodes.append((found[0] or b"", stat_of(found[1])))
        return nodes

    async def exists(self, path: str) -> Stat | None:
        stat = await self._read(path, lambda client: client.exists_async(path))
        return stat_of(stat) if stat is not None else None

    async def children(self, path: str) -> list[str]:
        try:
            names: list[str] = await self._read(path, lambda client: client.get_children_async(path))
        except NoNode:
            return []
        return sorted(names)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        def issue(client: Any) -> Any:
            # Kafka's folders have null data, and its code takes empty data of some for a value.
            return client.create_async(
                path, data or None, self._acls(path), ephemeral=ephemeral, sequence=sequential
            )

        try:
            return str(await self._write(path, issue))
        except NoNode:
            parent = path.rpartition("/")[0]
            if not make_parents or not parent:
                raise
        # Kazoo would give the parents the ACL of this node.
        with contextlib.suppress(NodeExists):
            await self.create(parent, make_parents=True)
        return str(await self._write(path, issue))

    def _acls(self, path: str) -> list[ACL]:
        return node_acls(path, secure=self._access.secure_acls)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        return stat_of(await self._write(path, lambda client: client.set_async(path, data, version)))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._write(path, lambda client: client.delete_async(path, version))

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        path = operations[0].path if operations else "/"

        def commit(client: Any) -> Any:
            transaction = client.transaction()
            for operation in operations:
                add_to(transaction, operation, self._acls(operation.path))
            return transaction.commit_async()

        results = await self._write(path, commit)
        for index, (operation, result) in enumerate(zip(operations, results, strict=True)):
            # ZooKeeper names the culprit; the other operations are "rolled back" or "not tried".
            if isinstance(result, Exception) and not isinstance(
                result, RolledBackError | RuntimeInconsistency
            ):
                raise StoreConflict(operation, index, translate(operation.path, result))
        return [result_of(operation, result) for operation, result in zip(operations, results, strict=True)]

    async def watch_children(self, path: str, callback: WatchCallback) -> Cancel:
        async def arm(fire: Callable[[Any], None]) -> None:
            try:
                await self._read(path, lambda client: client.get_children_async(path, watch=fire))
            except NoNode:
                # Children of a node that is not there: wait for the node, then watch its children.
                if await self._read(path, lambda client: client.exists_async(path, watch=fire)) is not None:
                    await arm(fire)

        return await self._watch(arm, callback)

    async def watch_data(self, path: str, callback: WatchCallback) -> Cancel:
        async def arm(fire: Callable[[Any], None]) -> None:
            await self._read(path, lambda client: client.exists_async(path, watch=fire))

        return await self._watch(arm, callback)

    async def _watch(self, arm: Callable[[Callable[[Any], None]], Any], callback: WatchCallback) -> Cancel:
        # A controller watches every topic: a watch that waits is no task, which would cost some KiB each.
        fired = cancelled = False
        task: asyncio.Task[None] | None = None

        def fire(_event: Any) -> None:  # in a thread of kazoo's
            self._to_loop(wake)

        def wake() -> None:
            nonlocal fired, task
            fired = True
            if task is None and not cancelled:
                task = asyncio.ensure_future(arm_again())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        async def arm_again() -> None:
            nonlocal fired, task
            while fired:
                fired = False
                try:
                    await arm(fire)
                except StoreUnavailable:
                    # Expired or unreachable for long: the watch is gone, so go on until it is armed.
                    fired = True
                    await asyncio.sleep(RECONNECT_DELAY_S_MAX)
                    continue
                try:
                    callback()
                except Exception:
                    log.exception("a watch callback failed")
            task = None

        await arm(fire)
        # Kazoo drops the watches of an expired session without a word when it never got to arm them.
        unsubscribe = self.on_session_expired(wake)

        def cancel() -> None:
            nonlocal cancelled
            if not cancelled:
                cancelled = True
                unsubscribe()
                if task is not None:
                    task.cancel()

        return cancel
