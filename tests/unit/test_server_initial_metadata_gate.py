"""Requests about the cluster wait for the controller's first UpdateMetadata, or for the metadata of the
store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.metadata.cache import MetadataCache
from ottla.metadata.memory import MemoryStore
from ottla.metadata.store import StoreUnavailable
from ottla.protocol.messages import UpdateMetadataRequest
from ottla.server.handlers.cluster import initial_metadata_gate as gate_module
from ottla.server.handlers.cluster.initial_metadata_gate import InitialMetadataGate, read_cluster
from tests.worlds.controller_harness import Cluster

WAIT_S = 60


class FakeRequest:
    def __init__(self, *, abandoned: bool = False) -> None:
        self.abandoned = abandoned
        self.failed: list[BaseException] = []

    def fail(self, error: BaseException) -> None:
        self.failed.append(error)


def of_topics(*names: str, controller_id: int = 1) -> UpdateMetadataRequest:
    state = UpdateMetadataRequest.UpdateMetadataPartitionState(leader=1, replicas=[1], isr=[1])
    topics = [
        UpdateMetadataRequest.UpdateMetadataTopicState(topic_name=name, partition_states=[state])
        for name in names
    ]
    return UpdateMetadataRequest(controller_id=controller_id, topic_states=topics)


async def unread() -> UpdateMetadataRequest:
    raise AssertionError("the store is not to be read")


def test_requests_wait_for_the_first_update_and_later_ones_do_not() -> None:
    async def scenario() -> None:
        cache = MetadataCache()
        view = InitialMetadataGate(cache, unread)
        answered: list[object] = []
        early, gone, late = FakeRequest(), FakeRequest(abandoned=True), FakeRequest()
        assert view.wait(early, answered.append)  # type: ignore[arg-type]
        assert view.wait(gone, answered.append)  # type: ignore[arg-type]
        assert answered == []
        cache.update(UpdateMetadataRequest(controller_id=1))
        assert answered == [early]
        assert not view.wait(late, answered.append)  # type: ignore[arg-type]
        cache.update(UpdateMetadataRequest(controller_id=1))
        assert answered == [early]
        await asyncio.wait_for(view.run(), WAIT_S)

    asyncio.run(scenario())


def test_a_request_that_fails_is_answered_and_so_are_the_others() -> None:
    async def scenario() -> None:
        cache = MetadataCache()
        view = InitialMetadataGate(cache, unread)
        bad, good = FakeRequest(), FakeRequest()
        answered: list[object] = []

        def fails(request: object) -> None:
            raise ZeroDivisionError

        view.wait(bad, fails)  # type: ignore[arg-type]
        view.wait(good, answered.append)  # type: ignore[arg-type]
        cache.update(UpdateMetadataRequest(controller_id=1))
        assert [type(e) for e in bad.failed] == [ZeroDivisionError]
        assert answered == [good]

    asyncio.run(scenario())


def stood_in(
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[], Awaitable[UpdateMetadataRequest]],
    scenario: Callable[[MetadataCache, InitialMetadataGate], Awaitable[None]],
) -> None:
    """Runs the scenario with a gate that soon uses the store; it ends after the controller's update."""
    for name in ("INITIAL_METADATA_TIMEOUT_S", "STORE_READ_INTERVAL_S", "_RETRY_DELAY_S"):
        monkeypatch.setattr(gate_module, name, 0.001)

    async def run() -> None:
        cache = MetadataCache()
        view = InitialMetadataGate(cache, read)
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            group.create_task(view.run())
            await scenario(cache, view)

    asyncio.run(run())


def test_the_store_is_used_when_the_controller_sends_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = ["deleted-meanwhile", "kept"]

    async def read() -> UpdateMetadataRequest:
        return of_topics(*topics)

    async def scenario(cache: MetadataCache, view: InitialMetadataGate) -> None:
        answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        view.wait(FakeRequest(), answered.set_result)  # type: ignore[arg-type]
        await answered
        assert cache.topics() == topics
        updated = asyncio.Event()
        cache.on_update.append(updated.set)
        topics.append("created-later")
        while cache.topics() != topics:
            await updated.wait()
            updated.clear()
        # The controller has the last word, and tells everything.
        cache.update(of_topics("kept", controller_id=2))
        assert (cache.topics(), cache.controller_id) == (["kept"], 2)
        cache.update(of_topics("new", controller_id=2))
        assert cache.topics() == ["kept", "new"]

    stood_in(monkeypatch, read, scenario)


def test_while_the_store_does_not_answer_either_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    async def read() -> UpdateMetadataRequest:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise StoreUnavailable("/brokers/ids")
        return of_topics("kept")

    async def scenario(cache: MetadataCache, view: InitialMetadataGate) -> None:
        answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        view.wait(FakeRequest(), lambda request: answered.set_result(tries))  # type: ignore[arg-type]
        assert await answered == 4
        cache.update(of_topics("kept"))

    stood_in(monkeypatch, read, scenario)


def test_an_update_of_the_controller_overrides_a_concurrent_read_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def read() -> UpdateMetadataRequest:
        begun.set()
        await may_end.wait()
        return of_topics("old")

    async def scenario(cache: MetadataCache, view: InitialMetadataGate) -> None:
        await begun.wait()
        cache.update(of_topics("new"))
        may_end.set()

    caches: list[MetadataCache] = []

    async def noted(cache: MetadataCache, view: InitialMetadataGate) -> None:
        caches.append(cache)
        await scenario(cache, view)

    stood_in(monkeypatch, read, noted)
    assert caches[0].topics() == ["new"]


def test_the_store_has_the_same_metadata_as_the_controller() -> None:
    async def scenario() -> None:
        async with Cluster(3) as cluster:
            for name in ("a", "b", "going"):
                await cluster.create(name, partitions=2, replication_factor=2)
            await cluster.wait_until_quiet()
            reported = cluster.nodes[0].fake.cache
            tool = MemoryStore(cluster.tree)
            await tool.connect()
            read = MetadataCache()
            read.load_initial(await read_cluster(tool))
            assert read.controller_id == reported.controller_id
            assert read.brokers() == reported.brokers()
            assert sorted(read.topics()) == sorted(reported.topics()) == ["a", "b", "going"]
            for name in reported.topics():
                assert read.topic_id(name) == reported.topic_id(name)
                assert read.partitions(name) == reported.partitions(name)
            await tool.create("/admin/delete_topics/going")
            read.load_initial(await read_cluster(tool))
            assert sorted(read.topics()) == ["a", "b"]
            await tool.close()

    asyncio.run(asyncio.wait_for(scenario(), 90))
