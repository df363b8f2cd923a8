"""Transactions: transactional ids with their state, one of them with its partitions; the partitions that open
and hanging transactions hold back; producers of a topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from starlette.responses import Response

from ottla.client.admin_types import OffsetSpec, TransactionDescription
from ottla.security.acls import Operation, ResourceType
from ottla_console.cluster.problems import Need
from ottla_console.cluster.snapshot import Part
from ottla_console.pages.transactions.view import (
    PARTITIONS_MAX,
    Held,
    Listed,
    Producing,
    held_back,
    held_of,
    ids_of,
    ongoing,
    producers_of,
    transaction_of,
    transactions_of,
)
from ottla_console.web.page import Context, Nav, Page, Tab

DESCRIBED_MAX: Final = 200
"""Open transactions of the list that are described."""


async def show_list(ctx: Context) -> Response:
    """All transactional ids, and since when the transactions of some of them are open."""
    listed = await _listed(ctx, lambda _: Need(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID))
    described = await _describe(ctx, ongoing(listed)[:DESCRIBED_MAX])
    return ctx.render(
        "transactions/list.html", transactions_of(listed, described, ctx.now_ms(), ctx.query("state"))
    )


async def show_held(ctx: Context) -> Response:
    """The partitions whose last stable offset is behind the high watermark, with what holds it back; a
    hanging transaction is among them, which the list of transactional ids does not show."""
    snapshot, reader = await ctx.snapshot("topics"), ctx.reader
    wanted = {
        (topic.name, each.partition): OffsetSpec.LATEST
        for topic in snapshot.known_topics.values()
        for each in topic.partitions
        if each.leader >= 0
    }
    # In this order: a log that grows between the two is not held back.
    ends, stable = [
        await reader.read_each(
            reader.admin.list_offsets(wanted, isolation_level=isolation),
            lambda tp: f"the offsets of {tp.topic}-{tp.partition}",
            lambda tp: Need(Operation.DESCRIBE, ResourceType.TOPIC, tp.topic),
            title="the last stable offsets",
        )
        for isolation in ("read_uncommitted", "read_committed")
    ]
    held = held_back(ends, stable)
    listed: Part[Listed] = Part()
    producers: Part[Producing] = Part()
    described: Part[dict[str, TransactionDescription]] = Part()
    if held:
        producers = await _producers(ctx, [*held][:PARTITIONS_MAX], "the producers")
        listed = await _listed(ctx)
        described = await _describe(ctx, ongoing(listed)[:DESCRIBED_MAX])
    read = (ends, stable, producers, listed, described)
    problems = tuple(each for part in read for each in part.problems)
    view = Held(held_of(held, producers, listed, described, ctx.now_ms(), ctx.query()), len(held), problems)
    return ctx.render("transactions/held.html", view)


async def show(ctx: Context) -> Response:
    """A transactional id."""
    id_ = ctx.params.get("id", "")
    found = await _describe(ctx, [id_])
    described = (found.value or {}).get(id_)
    producers: Part[Producing] = Part()
    if described is not None and described.partitions:
        title = "where the transaction began in its partitions"
        producers = await _producers(ctx, described.partitions[:PARTITIONS_MAX], title)
    part = Part(described, found.problems, found.taken_ms)
    view = transaction_of(id_, part, ctx.now_ms(), producers)
    return ctx.render("transactions/transaction.html", view, status=404 if view.missing else 200)


async def _listed(ctx: Context, need: Callable[[int], Need] | None = None) -> Part[Listed]:
    return await ctx.reader.read_each(
        ctx.reader.admin.list_transactions(),
        lambda broker: f"the transactions that broker {broker} coordinates",
        need,
        title="the transactions",
    )


async def _producers(ctx: Context, partitions: Sequence[tuple[str, int]], title: str) -> Part[Producing]:
    return await ctx.reader.read_each(
        ctx.reader.admin.describe_producers(partitions),
        lambda tp: f"the producers of {tp.topic}-{tp.partition}",
        lambda tp: Need(Operation.READ, ResourceType.TOPIC, tp.topic),
        title=title,
    )


async def _describe(ctx: Context, ids: Sequence[str]) -> Part[dict[str, TransactionDescription]]:
    return await ctx.reader.read_each(
        ctx.reader.admin.describe_transactions(ids),
        lambda id_: f"the transactional id {id_}",
        lambda id_: Need(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, id_),
        title="the transactions",
    )


async def show_producers(ctx: Context) -> Response:
    """The producers that write to a topic, by the state that its leaders keep of them."""
    snapshot = await ctx.snapshot("topics")
    topic = snapshot.known_topics.get(ctx.name)
    partitions = (
        [(ctx.name, each.partition) for each in topic.partitions if each.leader >= 0] if topic else []
    )
    found = await _producers(ctx, partitions, f"the producers of {ctx.name}")
    listed: Part[Listed] = Part()
    if any(each.transaction_start_offset >= 0 for some in (found.value or {}).values() for each in some):
        listed = await _listed(ctx)
    view = producers_of(
        ctx.name,
        topic is not None and topic.internal,
        found,
        ctx.now_ms(),
        ctx.query(),
        ends=snapshot.end_offsets.value,
        ids=ids_of(listed),
    )
    return ctx.render("transactions/producers.html", view)


PAGES = (
    Page("transactions", show_list, "Transactions", nav=Nav("Data", "Transactions", 30)),
    Page("transactions/held", show_held, "Held back by transactions", under="transactions"),
    Page("transaction", show, "Transaction", under="transactions", keep=("id",)),
    Page(
        "topics/{name}/producers",
        show_producers,
        "Producers of a topic",
        tab=Tab("topic", "Producers", 25),
        under="topics",
    ),
)
