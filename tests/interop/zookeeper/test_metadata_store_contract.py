"""The contract suite of the metadata store: every test runs on all adapters, and once more over TLS.

The ZooKeeper side runs against a real server (PySpark's jars); without Java it is skipped by name. `secured`
is that adapter with a client certificate, a login and node ACLs. `simulated` is the simulation's, in virtual
time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ottla.local.zookeeper import EmbeddedZooKeeper, JavaUnusable, ZooKeeperUnavailable
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.metadata.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NoNode,
    NotEmpty,
    SetData,
    Stat,
    StoreConflict,
    StoreUnavailable,
    delete_recursively,
    ensure_path,
)
from ottla.metadata.zookeeper import MultiRead, ZooKeeperStore
from ottla.simulation.ensemble import Ensemble, EnsembleStore
from ottla.simulation.loop import SimulatedLoop
from ottla.simulation.network import SimulatedNetwork
from tests.judges.secured_zookeeper import SecuredZooKeeper, access

pytestmark = pytest.mark.timeout(420)
WAIT_S = 90.0

OpenStore = Callable[[], Awaitable[MetadataStore]]
Scenario = Callable[[OpenStore], Awaitable[None]]
Server = TypeVar("Server", EmbeddedZooKeeper, SecuredZooKeeper)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    yield from started(EmbeddedZooKeeper(Path(tmp_path_factory.mktemp("zookeeper"))))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    yield from started(SecuredZooKeeper(tmp_path_factory.mktemp("secured")))


def started(server: Server) -> Iterator[Server]:
    try:
        server.start()
    except (JavaUnusable, ZooKeeperUnavailable) as missing:
        pytest.skip(f"ZooKeeper's server needs Java and PySpark's jars: {missing}")
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def simulated_loop() -> Iterator[SimulatedLoop]:
    with closing(SimulatedLoop()) as loop:
        yield loop


_chroots = itertools.count()


@pytest.fixture(params=["memory", "simulated", "zookeeper", "secured"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Runs a scenario with a function that opens sessions on one empty tree, and closes them afterwards."""
    run_loop: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run
    if request.param == "zookeeper":
        connect = f"{request.getfixturevalue('zookeeper').connect}/test/{next(_chroots)}"

        def new() -> MetadataStore:
            return ZooKeeperStore(connect, 30_000)

    elif request.param == "secured":
        ensemble: SecuredZooKeeper = request.getfixturevalue("secured")
        place = f"{ensemble.secure}/test/{next(_chroots)}"
        ours = access(ensemble.tls() | {"zookeeper.set.acl": "true"}, ensemble.java_options())

        def new() -> MetadataStore:
            return ZooKeeperStore(place, 30_000, access=ours)

    elif request.param == "simulated":
        loop: SimulatedLoop = request.getfixturevalue("simulated_loop")
        network = SimulatedNetwork(loop, random.Random(1))
        simulated = Ensemble(loop, network, random.Random(2), lambda: 0)
        run_loop = loop.run

        def new() -> MetadataStore:
            return EnsembleStore(simulated, f"client-{next(_chroots)}", 30_000)

    else:
        tree = MemoryTree()

        def new() -> MetadataStore:
            return MemoryStore(tree)

    def runner(scenario: Scenario) -> None:
        async def main() -> None:
            opened: list[MetadataStore] = []

            async def open_store() -> MetadataStore:
                store = new()
                await store.connect()
                opened.append(store)
                return store

            try:
                await scenario(open_store)
            finally:
                for store in opened:
                    await store.close()

        run_loop(asyncio.wait_for(main(), 200))

    return runner


Runner = Callable[[Scenario], None]


class Woken:
    """A watch callback that can be awaited."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self._event.set()

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for wake-ups, looking again after each, until the condition holds."""
        while not await condition():
            await asyncio.wait_for(self._event.wait(), WAIT_S)
            self._event.clear()


def test_a_created_node_is_read_back_with_its_version(run: Runner) -> None:
    async def scenario(open_store: OpenStore) -> None:
        store = await open_store()
        assert await store.create("/a", b"one") == "/a"
        found = await store.get("/a")
        assert found is not None
        data, stat = found
        assert (data, stat.version, stat.ephemeral_owner) == (b"one", 0, 0)
        changed = await store.set("/a", b"two", 0)
        assert changed.version == 1
        assert changed.czxid == stat.czxid < changed.mzxid
        assert await store.exists("/a") == changed

    run(scenario)


def test_a_sync_makes_writes_of_other_sessions_visible(run: Runner) -> None:
    async def scenario(open_store: OpenStore) -> None:
        writer, reader = await open_store(), await open_store()
        await writer.create("/a", b"0")
        for number in range(20):
            await writer.set("/a", b"%d" % number)
            await reader.sync()
            found = await reader.get("/a")
            assert found is not None
            assert found[0] == b"%d" % number

    run(scenario)


def test_reads_of_a_missing_node_are_empty_and_writes_fail(run: Runner) -> None:
    async def scenario(open_store: OpenStore) -> None:
        store = await open_store()
        assert await store.get("/none") is None
        assert await store.exists("/none") is None
        assert await store.children("/none") == []
        for change in (store.set("/none", b""), store.delete("/none"), store.create("/none/child")):
            with pytest.raises(NoNode):
                await change

    run(scenario)


def test_a_stale_version_changes_nothing(run: Runner) -> None:
    async def scenario(open_store: OpenStore) -> None:
        store = await open_store()
        await store.create("/a", b"one")
        await store.set("/a", b"two", 0)
        with pytest.raises(BadVersion):
            await store.set("/a", b"three", 0)
        with pytest.raises(BadVersion):
            await store.delete("/a", 0)
        found = await store.get("/a")
        assert found is not None
        assert found[0] == b"two"
        await store.delete("/a", 1)
        assert await store.get("/a") is None

    run(scenario)


def test_nodes_exist_once_and_parents_are_kept_while_they_have_children(run: Runner) -> None:
    async def scenario(open_store: OpenStore) -> None:
        store = await open_store()
        await store.create("/a/b/c", b"x", make_parents=True)
        with pytest.raises(NodeExists):
            await store.create("/a/b/c", b"y", make_parents=True)
        with pytest.raises(NotEmpty):
            await store.delete("/a")
        await ensure_path(store, "/a/b/d")
        await ensure_path(store, "/a/b/d")
        assert await store.children("/a/b") == ["c", "d"]
        await delete_recursively(store, "/a")
        assert await store.exists("/a") is None

    run(scenario)


def test_sequential_nodes_are_numbered_in_order(run: Runner) -> None:
    async def scenario(open_store: OpenStore) -> None:
        store = await open_store()
        await store.create("/changes")
        created = [
            await store.create("/changes/change_", b"%d" % n, sequential=True, ephemeral=False)
            for n in range(3)
        ]
        assert created == sorted(created)
        assert [path.rpartition("_")[2] for path in created] == ["0000000000", "0000000001", "0000000002"]
        assert await store.children("/changes") == [path.rpartition("/")[2] for path in created]

    run(scenario)


def test_an_ephemeral_node_ends_with_its_session(run: Runner) -> None:
    async def scenario(open_store: OpenStore) -> None:
        owner, other = await open_store(), await open_store()
        await owner.create("/me", b"", ephemeral=True)
        stat = await other.exists("/me")
        assert stat is not None
        assert stat.ephemeral_owner == owner.session_id != other.session_id
        woken = Woken()
        await other.watch_data("/me", woken)
        await owner.close()

        async def gone() -> bool:
            return await other.exists("/me") is None

        await woken.until(gone)

    run(scenario)


def test_a_multi_is_atomic_and_returns_each_result(run: Runner) -> None:
    async def scenario(open_store: OpenStore) -> None:
        store = await open_store()
        await store.create("/epoch", b"1")
        await store.create("/old", b"")
        results = await store.multi(
            [
                Check("/epoch", 0),
                Create("/new", b"n"),
                Create("/new/child", b"c"),
                SetData("/epoch", b"2", 0),
                Delete("/old"),
            ]
        )
        assert results[1:3] == ["/new", "/new/child"]
        assert isinstance(results[3], Stat)
        assert results[3].version == 1
        assert results[0] is results[4] is None
        assert await store.children("/new") == ["child"]
        assert await store.exists("/old") is None

    run(scenario)


@pytest.mark.parametrize(
    ("failing", "cause"),
    [
        (Check("/epoch", 7), BadVersion),
        (Check("/none", 0), NoNode),
        (Create("/epoch"), NodeExists),
        (Create("/none/child"), NoNode),
        (SetData("/epoch", b"", 7), BadVersion),
        (Delete("/epoch", 7), BadVersion),
    ],
    ids=repr,
)
def test_a_rejected_multi_changes_nothing_and_names_the_failed_operation(
    run: Runner, failing: Check | Create | SetData | Delete, cause: type[Exception]
) -> None:
    async def scenario(open_store: OpenStore) -> None:
        store = await open_store()
        await store.create("/epoch", b"1")
        with pytest.raises(StoreConflict) as refused:
            await store.multi([Create("/before"), SetData("/epoch", b"2"), failing, Create("/after")])
        # The failing operation's own expectation is judged against what the ones before it did.
        assert refused.value.failed == failing
        assert refused.value.index == 2
        assert isinstance(refused.value.cause, cause)
        found = await store.get("/epoch")
        assert found is not None
        assert (found[0], found[1].version) == (b"1", 0)
        assert await store.exists("/before") is None
        assert await store.exists("/after") is None

    run(scenario)


def test_pipelined_operations_take_effect_in_the_order_issued(run: Runner) -> None:
    async def scenario(open_store: OpenStore) -> None:
        store = await open_store()
        await store.create("/n", b"")
        stats = await asyncio.gather(*(store.set("/n", b"%d" % n, n) for n in range(50)))
        assert [stat.version for stat in stats] == list(range(1, 51))
        await asyncio.gather(*(store.create(f"/n/{n:03}", b"%d" % n) for n in range(700)))
        found = await store.get_many([f"/n/{n:03}" for n in range(701)])
        assert [entry[0] for entry in found[:-1] if entry] == [b"%d" % n for n in range(700)]
        assert found[-1] is None

    run(scenario)


def test_nodes_are_read_one_by_one_if_the_ensemble_has_no_multi_read(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A kind of request that no ZooKeeper knows is to this one what multiRead is to one before 3.6.
    monkeypatch.setattr(MultiRead, "type", 99)

    async def scenario(open_store: OpenStore) -> None:
        store = await open_store()
        await store.create("/n", b"x")
        for _ in range(2):
            found = await store.get_many(["/n", "/none", "/n"])
            assert [entry and entry[0] for entry in found] == [b"x", None, b"x"]

    run(scenario)


def test_a_children_watch_sees_every_state_even_before_the_node_exists(run: Runner) -> None:
    async def scenario(open_store: OpenStore) -> None:
        watcher, writer = await open_store(), await open_store()
        woken = Woken()
        await watcher.watch_children("/parent", woken)

        async def expect(names: list[str]) -> None:
            async def seen() -> bool:
                return await watcher.children("/parent") == names

            await woken.until(seen)

        await writer.create("/parent")
        for count in range(1, 4):
            await writer.create(f"/parent/{count}")
            await expect([str(n) for n in range(1, count + 1)])
        await delete_recursively(writer, "/parent")
        await expect([])
        await writer.create("/parent/again", make_parents=True)
        await expect(["again"])

    run(scenario)


def test_a_data_watch_sees_creation_change_and_deletion(run: Runner) -> None:
    async def scenario(open_store: OpenStore) -> None:
        watcher, writer = await open_store(), await open_store()
        woken = Woken()
        await watcher.watch_data("/node", woken)

        async def expect(data: bytes | None) -> None:
            async def seen() -> bool:
                found = await watcher.get("/node")
                return (found[0] if found else None) == data

            await woken.until(seen)

        await writer.create("/node", b"1")
        await expect(b"1")
        await writer.set("/node", b"2")
        await expect(b"2")
        await writer.delete("/node")
        await expect(None)
        await writer.create("/node", b"3")
        await expect(b"3")

    run(scenario)


def test_a_cancelled_watch_calls_back_no_more(run: Runner) -> None:
    async def scenario(open_store: OpenStore) -> None:
        store = await open_store()
        calls: list[str] = []
        called = asyncio.Event()
        cancel = await store.watch_data("/node", lambda: calls.append("cancelled"))
        await store.watch_data("/node", called.set)
        cancel()
        await store.create("/node", b"1")
        await asyncio.wait_for(called.wait(), WAIT_S)
        assert calls == []

    run(scenario)


def test_a_closed_session_is_unavailable(run: Runner) -> None:
    async def scenario(open_store: OpenStore) -> None:
        store = await open_store()
        await store.close()
        with pytest.raises(StoreUnavailable):
            await store.get("/")
        with pytest.raises(StoreUnavailable):
            await store.create("/x")

    run(scenario)


async def _expire(store: MetadataStore) -> None:
    """Take the session away as the ensemble would after a silence."""
    if isinstance(store, MemoryStore):
        store.expire()
        return
    assert isinstance(store, ZooKeeperStore | EnsembleStore)
    # A second connection that adopts the session and closes it: the server forgets the session.
    await store.end_session(store.session_token)


def test_an_expired_session_is_reported_and_replaced_and_watches_continue(run: Runner) -> None:
    async def scenario(open_store: OpenStore) -> None:
        store, other = await open_store(), await open_store()
        expired, woken = asyncio.Event(), Woken()
        store.on_session_expired(expired.set)
        await store.create("/parent")
        await store.watch_children("/parent", woken)
        await store.create("/mine", b"", ephemeral=True)
        before = store.session_id
        await _expire(store)
        await asyncio.wait_for(expired.wait(), WAIT_S)
        assert await store.exists("/mine") is None
        assert store.session_id != before
        await other.create("/parent/child")

        async def seen() -> bool:
            return await store.children("/parent") == ["child"]

        await woken.until(seen)
        await store.create("/mine", b"", ephemeral=True)

    run(scenario)


def test_an_ensemble_that_does_not_respond_is_unavailable() -> None:
    async def scenario() -> None:
        with pytest.raises(StoreUnavailable):
            await ZooKeeperStore("127.0.0.1:1", 1_000).connect()

    asyncio.run(scenario())


def test_the_session_of_a_dead_process_is_ended_by_its_token(run: Runner) -> None:
    async def scenario(open_store: OpenStore) -> None:
        crashed, next_run = await open_store(), await open_store()
        await crashed.create("/mine", b"", ephemeral=True)
        assert await next_run.exists("/mine") is not None
        await next_run.end_session(crashed.session_token)
        assert await next_run.exists("/mine") is None
        with pytest.raises(ValueError):  # noqa: PT011 - the adapters say it in their own words
            await next_run.end_session("no token")

    run(scenario)
