"""ACLs in the metadata store: writes, distribution among brokers, and concurrent changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ottla.metadata import acl_nodes
from ottla.metadata.acls import StoredAcls, start_acls
from ottla.metadata.memory import MemoryStore
from ottla.metadata.store import StoreError
from ottla.metadata.znodes import InvalidNode
from ottla.security.acls import (
    AclBinding,
    AclFilter,
    Entry,
    EntryFilter,
    Operation,
    PatternFilter,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla.security.authorizer import AclAuthorizer
from tests.worlds.clocks import run_in_virtual_time

FLIGHTS = ResourcePattern(ResourceType.TOPIC, "flights")
PREFIX = ResourcePattern(ResourceType.GROUP, "té-", PatternType.PREFIXED)


def entry(who: str, operation: Operation = Operation.READ) -> Entry:
    return Entry(who, "*", operation, Permission.ALLOW)


def run(scenario: Callable[[MemoryStore], Coroutine[Any, Any, None]]) -> None:
    async def reported() -> None:
        store = MemoryStore()
        await store.connect()
        async with asyncio.timeout(60):
            await scenario(store)

    run_in_virtual_time(reported())


async def follower(store: MemoryStore) -> StoredAcls:
    acls = StoredAcls(store, AclAuthorizer(), lambda: 0)
    await acls.start()
    return acls


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (the tests' own time-out ends it)
        await asyncio.sleep(0.005)


def test_a_brokers_change_reaches_other_brokers() -> None:
    async def scenario(store: MemoryStore) -> None:
        one, two = await follower(store), await follower(store)
        bindings = [AclBinding(FLIGHTS, entry("User:a")), AclBinding(PREFIX, entry("User:b"))]
        assert await one.create(bindings) == [None, None]
        assert list(one.authorizer.bindings(AclFilter())) == bindings, "known at once to who wrote it"
        await until(lambda: list(two.authorizer.bindings(AclFilter())) == bindings)
        three = await follower(store)
        assert list(three.authorizer.bindings(AclFilter())) == bindings, "and to who comes later"
        await three.delete([AclFilter(PatternFilter(ResourceType.TOPIC))])
        await until(lambda: list(one.authorizer.bindings(AclFilter())) == bindings[1:])
        assert await store.get(acl_nodes.path(FLIGHTS)) is None, "what has no entry has no node"
        for each in (one, two, three):
            await each.stop()

    run(scenario)


def test_brokers_that_change_the_same_acls_keep_each_others_changes() -> None:
    async def scenario(store: MemoryStore) -> None:
        brokers = [await follower(store) for _ in range(3)]
        await asyncio.gather(
            *[
                broker.create([AclBinding(FLIGHTS, entry(f"User:{place}-{n}"))])
                for place, broker in enumerate(brokers)
                for n in range(3)
            ]
        )
        everybody = {f"User:{place}-{n}" for place in range(3) for n in range(3)}
        for broker in brokers:
            await until(
                lambda broker=broker: {x.principal for x in broker.authorizer.entries(FLIGHTS)} == everybody
            )
            await broker.stop()

    run(scenario)


def test_a_deletion_returns_the_deleted_acls_by_filter() -> None:
    async def scenario(store: MemoryStore) -> None:
        acls = await follower(store)
        kept, read, written = entry("User:a"), entry("User:b"), entry("User:b", Operation.WRITE)
        await acls.create([AclBinding(FLIGHTS, each) for each in (kept, read, written)])
        of_bob = AclFilter(entry=EntryFilter(principal="User:b", operation=Operation.WRITE))
        by_name = AclFilter(PatternFilter(ResourceType.TOPIC, "flights"), EntryFilter(principal="User:b"))
        absent = AclFilter(PatternFilter(ResourceType.TOPIC, "trains", PatternType.LITERAL))
        deleted = await acls.delete([of_bob, by_name, absent])
        assert [[each.binding.entry for each in of] for of in deleted] == [[written], [read], []]
        assert acls.authorizer.entries(FLIGHTS) == {kept}
        await acls.stop()

    run(scenario)


def test_an_acl_without_a_valid_node_name_is_refused_alone() -> None:
    async def scenario(store: MemoryStore) -> None:
        acls = await follower(store)
        dots = ResourcePattern(ResourceType.TOPIC, "..")
        nobody = AclBinding(FLIGHTS, Entry("nobody", "*", Operation.READ, Permission.ALLOW))
        fine = AclBinding(PREFIX, entry("User:a"))
        outcomes = await acls.create([AclBinding(dots, entry("User:a")), nobody, fine])
        assert [type(each) for each in outcomes] == [ValueError, ValueError, type(None)]
        assert [[each] for each in acls.authorizer.bindings(AclFilter())] == [[fine]]
        await acls.delete([AclFilter(PatternFilter(ResourceType.TOPIC, ".."))])
        await acls.stop()

    run(scenario)


def test_old_notifications_are_purged() -> None:
    async def scenario(store: MemoryStore) -> None:
        now_ms = 0
        acls = StoredAcls(store, AclAuthorizer(), lambda: now_ms)
        await acls.start()
        root = acl_nodes.CHANGES[PatternType.LITERAL]
        await acls.create([AclBinding(FLIGHTS, entry("User:a"))])
        [first] = await store.children(root)
        stat = await store.exists(f"{root}/{first}")
        assert stat is not None
        now_ms = stat.ctime_ms + 16 * 60 * 1000
        await acls.create([AclBinding(FLIGHTS, entry("User:b"))])
        while first in await store.children(root):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await acls.stop()

    run(scenario)


def test_a_node_that_cannot_be_read_keeps_a_broker_from_starting() -> None:
    async def scenario(store: MemoryStore) -> None:
        await store.create(acl_nodes.path(FLIGHTS), b"{}", make_parents=True)
        given = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
        with pytest.raises(StoreError, match="flights"):
            await start_acls(given, store, lambda: 0)
        assert await start_acls({}, store, lambda: 0) is None, "nobody reads ACLs without an authorizer"

    run(scenario)


def test_a_node_that_can_no_longer_be_read_changes_nothing() -> None:
    async def scenario(store: MemoryStore) -> None:
        acls, other = await follower(store), await follower(store)
        await acls.create([AclBinding(FLIGHTS, entry("User:a"))])
        await store.set(acl_nodes.path(FLIGHTS), b"not JSON")
        await store.create(
            acl_nodes.change_prefix(FLIGHTS), acl_nodes.encode_change(FLIGHTS), sequential=True
        )
        await other.create([AclBinding(PREFIX, entry("User:b"))])
        await until(lambda: bool(acls.authorizer.entries(PREFIX)))
        assert acls.authorizer.entries(FLIGHTS) == {entry("User:a")}
        for each in (acls, other):
            await each.stop()

    run(scenario)


@pytest.mark.parametrize("pattern", [FLIGHTS, PREFIX, ResourcePattern(ResourceType.TRANSACTIONAL_ID, "a:b")])
def test_a_change_names_its_pattern(pattern: ResourcePattern) -> None:
    data = acl_nodes.encode_change(pattern)
    assert acl_nodes.decode_change(pattern.pattern_type, data) == pattern


@pytest.mark.parametrize("data", [b"", b"flights", b"WHAT:flights", b"{}", b"\xff"])
@pytest.mark.parametrize("kind", [PatternType.LITERAL, PatternType.PREFIXED])
def test_a_change_without_effect_is_reported_as_none(kind: PatternType, data: bytes) -> None:
    with pytest.raises(InvalidNode):
        acl_nodes.decode_change(kind, data)


def test_acls_of_a_newer_kafka_are_kept_separately() -> None:
    row = b'{"principal":"User:a","permissionType":"Allow","operation":"Levitate","host":"*"}'
    [found] = acl_nodes.decode("/x", b'{"version":1,"acls":[' + row + b"]}")
    assert found.operation is Operation.UNKNOWN
    with pytest.raises(InvalidNode, match="version 2"):
        acl_nodes.decode("/x", b'{"version":2,"acls":[]}')
