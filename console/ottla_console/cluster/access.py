"""A cluster as one principal sees it: admin clients with that principal's credentials, and a collector.

Sessions with equal credentials share an access: what it may see is what each of them may see. Invariants: an
access exists only while a session holds it; its first request has succeeded with these credentials, so that a
wrong password never joins; credentials are in memory only, and in no text that is logged or shown. The
collector has a client of its own, since a broker answers a connection in order: details for a page never wait
behind a collection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from ottla.client.admin import AdminClient
from ottla.client.errors import AuthenticationError
from ottla_console.cluster.collecting import Reader
from ottla_console.cluster.collector import Collector
from ottla_console.cluster.credentials import CLIENT_ID, Connect, Credentials
from ottla_console.cluster.log_reader import LogReader
from ottla_console.cluster.schema_decoder import SchemaDecoder
from ottla_console.settings import Cluster

OpenLogs: TypeAlias = Callable[[Mapping[str, object]], LogReader]
REQUEST_MS: Final = 5_000
CALL_MS: Final = 7_000
RETRIES: Final = 3
"""A page shows soon which broker does not respond, and tries again by itself."""
LOGINS_MAX: Final = 8
"""Log-ins that are tried at the same time."""
PROPAGATION_PAUSE_S: Final = 0.1


class Access:
    """See the module."""

    def __init__(
        self,
        cluster: Cluster,
        credentials: Credentials | None,
        now_ms: Callable[[], int],
        monotonic_s: Callable[[], float],
        connect: Connect,
        open_logs: OpenLogs,
    ) -> None:
        self.cluster = cluster
        self.credentials = credentials
        self.principal = credentials.principal if credentials else ""
        """Empty without a log-in: the brokers know it."""
        self.settings: dict[str, object] = {
            "bootstrap.servers": cluster.bootstrap,
            "client.id": CLIENT_ID,
            "request.timeout.ms": REQUEST_MS,
            **cluster.properties,
            **(credentials.properties() if credentials else {}),
        }
        """Of clients that act as this principal: has the password, and is never logged or shown."""
        quick = {**self.settings, "default.api.timeout.ms": CALL_MS, "retries": RETRIES}
        self.admin = connect(quick)
        self.reader = Reader(self.admin, self.principal, now_ms)
        self.logs = open_logs(self.settings)
        self.schemas = None if cluster.registry is None else SchemaDecoder(cluster.registry)
        self._background = connect(quick)
        collecting = Reader(self._background, self.principal, now_ms)
        self.collector = Collector(collecting, monotonic_s, name=f"{cluster.name} {self.principal}".strip())
        self.holders = 0

    async def start(self) -> None:
        await self.admin.__aenter__()
        await self._background.__aenter__()
        self.collector.start()

    async def stop(self) -> None:
        """Close the clients; the credentials are as they were."""
        await self.collector.stop()
        await self.logs.close()
        await self._background.close()
        await self.admin.close()

    async def close(self) -> None:
        await self.stop()
        if self.credentials is not None:
            await self.credentials.forget()


class Accesses:
    """The accesses in use, by cluster and credentials."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        monotonic_s: Callable[[], float],
        connect: Connect = AdminClient,
        open_logs: OpenLogs = LogReader,
    ) -> None:
        """`connect` makes the admin client with these settings, `open_logs` the reader of records."""
        self._connect = connect
        self._open_logs = open_logs
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._open: dict[tuple[str, Credentials | None], Access] = {}
        self._logins = asyncio.Semaphore(LOGINS_MAX)
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    async def acquire(self, cluster: Cluster, credentials: Credentials | None) -> Access:
        """The access with these credentials. Raises ClientError if they are refused, ClusterUnreachable, and
        ValueError if they cannot be sent. Without a log-in, the access is there even if no broker responds:
        its pages say so."""
        assert (credentials is not None) == cluster.login.personal
        key = (cluster.name, credentials)
        access = self._open.get(key)
        if access is None:
            if credentials is not None:
                try:
                    await self._verify(cluster, credentials)
                except BaseException:
                    await credentials.forget()
                    raise
            access = self._open.get(key)
        if access is None:
            access = self._open[key] = self._made(cluster, credentials)
            access.holders += 1
            await access.start()
            return access
        access.holders += 1
        return access

    async def _verify(self, cluster: Cluster, credentials: Credentials) -> None:
        async with self._logins:
            patient_until_s = self._monotonic_s() + credentials.known_within_s
            while True:
                trial = self._made(cluster, credentials)
                try:
                    await trial.admin.describe_cluster()
                    return
                except AuthenticationError:
                    if self._monotonic_s() >= patient_until_s:
                        raise
                finally:
                    await trial.stop()
                await asyncio.sleep(PROPAGATION_PAUSE_S)

    def _made(self, cluster: Cluster, credentials: Credentials | None) -> Access:
        return Access(cluster, credentials, self._now_ms, self._monotonic_s, self._connect, self._open_logs)

    def release(self, access: Access) -> None:
        """Give an access back; the last one closes it."""
        access.holders -= 1
        assert access.holders >= 0, "an access is released once by each holder"
        if access.holders == 0:
            self._open = {key: each for key, each in self._open.items() if each is not access}
            task = asyncio.get_running_loop().create_task(access.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for access in list(self._open.values()):
            await access.close()
        self._open.clear()
        await asyncio.gather(*self._closing)
