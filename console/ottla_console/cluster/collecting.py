"""One collection: the requests of an admin client whose results are the parts of a snapshot.

Called by `collector` for what all pages share, and by pages for details on demand (`read`). A request that
fails becomes a problem of its part; nothing is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Final, TypeVar

from ottla.client.admin import AdminClient
from ottla.client.admin_types import (
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    GroupListing,
    LogDirDescription,
    Results,
    TopicDescription,
    TopicPartition,
)
from ottla.client.errors import ClientError, UnsupportedVersionError
from ottla.protocol.errors import KafkaError, UnencodableMessage
from ottla.security.acls import Operation, ResourceType
from ottla_console.cluster.problems import Need, Problem, problem_of
from ottla_console.cluster.snapshot import Part

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
R = TypeVar("R")

READ_S: Final = 8.0
"""The longest that a page waits for details."""
PROBLEMS_MAX: Final = 5
"""Of one part; more of them say nothing new."""
DESCRIBE_CLUSTER: Final = Need(Operation.DESCRIBE, ResourceType.CLUSTER)


async def end(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, and wait until it has ended."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Reader:
    """Reads parts with one admin client, as one principal."""

    def __init__(self, admin: AdminClient, principal: str, now_ms: Callable[[], int]) -> None:
        self.admin = admin
        self.principal = principal
        self.now_ms = now_ms

    async def read(
        self, work: Awaitable[T], what: str, need: Need | None = None, *, timeout_s: float = READ_S
    ) -> Part[T]:
        """The result of a coroutine of the admin client, or its problem."""
        try:
            async with asyncio.timeout(timeout_s):
                value = await work
        except TimeoutError:
            return self._failed(TimeoutError(f"no response within {timeout_s:g} s"), what, need)
        except (ClientError, KafkaError, OSError, UnencodableMessage) as error:
            return self._failed(error, what, need)
        return Part(value, (), self.now_ms())

    async def read_each(
        self,
        work: Awaitable[Results[K, V]],
        what: Callable[[K], str],
        need: Callable[[K], Need] | None = None,
        *,
        title: str,
        whole: Need | None = None,
        timeout_s: float = READ_S,
    ) -> Part[dict[K, V]]:
        """The results of the items that succeeded; those that failed are problems. `whole`: what the request
        itself needs."""
        found = await self.read(work, title, whole, timeout_s=timeout_s)
        if found.value is None:
            return Part(None, found.problems, found.taken_ms)
        failures = list(found.value.errors.values())
        if failures and not found.value and all(isinstance(e, UnsupportedVersionError) for e in failures):
            return self._failed(failures[0], title, whole)  # the same for each item
        problems = [
            problem_of(error, what(key), need(key) if need else None, self.principal)
            for key, error in found.value.errors.items()
        ]
        return Part(dict(found.value.items()), tuple(problems[:PROBLEMS_MAX]), found.taken_ms)

    async def settings(self, resource: ConfigResource, what: str, need: Need) -> Part[dict[str, ConfigEntry]]:
        """The settings of a topic or a broker; before Kafka 2.6 without their documentation."""

        async def described() -> Results[ConfigResource, dict[str, ConfigEntry]]:
            try:
                return await self.admin.describe_configs([resource], synonyms=True, documentation=True)
            except UnencodableMessage:
                return await self.admin.describe_configs([resource], synonyms=True)

        found = await self.read_each(described(), lambda _: what, lambda _: need, title=what)
        entries = None if found.value is None else found.value.get(resource)
        return Part(entries, found.problems, found.taken_ms)

    def _failed(self, error: Exception, what: str, need: Need | None) -> Part[T]:
        return Part(None, (problem_of(error, what, need, self.principal),), self.now_ms())

    # --- the parts of a snapshot ---

    async def cluster(self) -> Part[ClusterDescription]:
        return await self.read(self.admin.describe_cluster(), "the brokers")

    async def topics(self) -> Part[Mapping[str, TopicDescription]]:
        return await self.read_each(
            self.admin.describe_topics(),
            lambda name: f"the topic {name}",
            lambda name: Need(Operation.DESCRIBE, ResourceType.TOPIC, name),
            title="the topics",
        )

    async def log_dirs(self) -> Part[Mapping[int, tuple[LogDirDescription, ...]]]:
        return await self.read_each(
            self.admin.describe_log_dirs(),
            lambda broker: f"the log directories of broker {broker}",
            lambda _: DESCRIBE_CLUSTER,
            title="the log directories",
        )

    async def end_offsets(self, topics: Mapping[str, TopicDescription]) -> Part[Mapping[TopicPartition, int]]:
        led = [
            TopicPartition(t.name, p.partition)
            for t in topics.values()
            for p in t.partitions
            if p.leader >= 0
        ]
        return await self.read(self.admin.end_offsets(led), "the log end offsets")

    async def groups(self) -> Part[Mapping[str, GroupListing]]:
        found = await self.read_each(
            self.admin.list_groups(),
            lambda broker: f"the groups that broker {broker} coordinates",
            lambda _: Need(Operation.DESCRIBE, ResourceType.GROUP),
            title="the groups",
        )
        value = None
        if found.value is not None:
            value = {each.group_id: each for listed in found.value.values() for each in listed}
        return Part(value, found.problems, found.taken_ms)

    async def committed(
        self, groups: Mapping[str, GroupListing]
    ) -> Part[Mapping[str, Mapping[TopicPartition, int]]]:
        found = await self.read_each(
            self.admin.list_group_offsets(dict.fromkeys(groups)),
            lambda group: f"the committed offsets of {group}",
            lambda group: Need(Operation.DESCRIBE, ResourceType.GROUP, group),
            title="the committed offsets of the groups",
        )
        value = None
        if found.value is not None:
            value = {
                group: {tp: each.offset for tp, each in offsets.items() if each is not None}
                for group, offsets in found.value.items()
            }
        return Part(value, found.problems, found.taken_ms)


def merged(*problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Problems of several parts, each once."""
    return tuple(dict.fromkeys(each for some in problems for each in some))
