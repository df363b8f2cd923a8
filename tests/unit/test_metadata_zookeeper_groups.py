"""Groups with members, owners and offsets in ZooKeeper, as written by any kind of client."""

from __future__ import annotations

import asyncio

from ottla.metadata.memory import MemoryStore
from ottla.metadata.zookeeper_groups import ZooKeeperGroup, group_names, read_groups

NODES = {
    "ids/billing_a": b'{"version":1,"subscription":{"orders":2},"pattern":"static","timestamp":"1"}',
    "ids/billing_b": b"no JSON",
    "owners/orders/0": b"billing_a-0",
    "owners/orders/1": b"billing_a-1",
    "owners/orders/x": b"billing_a-1",
    "offsets/orders/0": b"17",
    "offsets/orders/1": b"-1",
    "offsets/orders/2": b"seventeen",
    "offsets/orders/3": b"99999999999999999999",
    "offsets/orders/4": b"",
    "offsets/returns/0": b"0",
}


async def groups_at(root: str) -> tuple[list[str], list[ZooKeeperGroup]]:
    store = MemoryStore()
    await store.connect()
    for path, data in NODES.items():
        await store.create(f"{root}/consumers/billing/{path}", data, make_parents=True)
    await store.create(f"{root}/consumers/left/offsets/orders/0", b"5", make_parents=True)
    return await group_names(store, root), await read_groups(store, ["left", "billing", "nobody"], root)


def test_readable_parts_of_groups_are_read() -> None:
    for root in ("", "/kafka"):
        names, (left, billing, nobody) = asyncio.run(groups_at(root))
        assert names == ["billing", "left"]
        assert billing.members == {"billing_a": ("orders",), "billing_b": ()}
        assert billing.owners == {("orders", 0): "billing_a-0", ("orders", 1): "billing_a-1"}
        assert billing.offsets == {("orders", 0): 17, ("returns", 0): 0}
        assert billing.member_of(("orders", 1)) == "billing_a"
        assert billing.member_of(("returns", 0)) is None
        assert left == ZooKeeperGroup("left", {}, {}, {("orders", 0): 5})
        assert [group.state for group in (billing, left, nobody)] == ["Stable", "Empty", "Dead"]
