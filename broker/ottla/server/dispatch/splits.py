"""Rules for large requests in parts: which list of a request is split, and how the responses are joined.

Called by ottla.server.dispatch.large_requests. A part is a request of the same API with some of the items;
the API's authorization and handler serve it as any other request. Items of the same name stay in one part, so
that a handler finds duplicates; a third item of the same name does not change the response, and is dropped.

An API without a split changes a group or a transaction as a whole, or its response is not by item. Requests
of the APIs in `WHOLE` may have `WHOLE_ITEMS_MAX` items. All others without a split are sent by brokers only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable
from functools import cache
from typing import Any, Final, NamedTuple

from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.types import Message, Struct, fields_of

WHOLE_ITEMS_MAX: Final = 10_000
STEP_ROWS: Final = 200
SMALL_ROW: Final = 50
"""A row with at most so many inner rows is not split."""
INNER_ROW: Final = 10
"""An inner row has at most so many numbers after the split."""


class Split(NamedTuple):
    """`items` is the list of the request that is split, `results` that of the response; `rows` and
    `result_rows` are the lists in their elements."""

    items: str
    results: str
    rows: str = ""
    result_rows: str = ""
    key: tuple[str, ...] | None = ("name",)
    """The fields that name an item; (): the item itself. None: items may repeat, and their order matters."""
    row_key: str | None = None
    """The field that names one of `rows`, where duplicates matter."""
    inner: str = ""
    """The list of numbers in one of `rows`."""
    merged: str = ""
    """The field that names a result, if the response to each part may have rows of the same result."""


_BY_PARTITION: Final = ("topics", "topics", "partitions", "partitions")
_RESOURCES: Final = ("resource_type", "resource_name")
_DELETE_BY_NAME: Final = Split("topic_names", "responses", key=())
_FETCH_OF_GROUPS: Final = Split("groups", "groups", "topics", "topics", None, inner="partition_indexes")

SPLITS: Final[dict[ApiKey, Split]] = {
    ApiKey.PRODUCE: Split("topic_data", "responses", "partition_data", "partition_responses", None),
    ApiKey.METADATA: Split("topics", "topics", key=("name", "topic_id")),
    ApiKey.LIST_OFFSETS: Split(*_BY_PARTITION, row_key="partition_index"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Split(*_BY_PARTITION, ("topic",)),
    ApiKey.OFFSET_FETCH: Split("topics", "topics", "partition_indexes", "partitions"),
    ApiKey.OFFSET_DELETE: Split(*_BY_PARTITION),
    ApiKey.DELETE_RECORDS: Split(*_BY_PARTITION, row_key="partition_index"),
    ApiKey.DESCRIBE_PRODUCERS: Split("topics", "topics", "partition_indexes", "partitions"),
    ApiKey.FIND_COORDINATOR: Split("coordinator_keys", "coordinators", key=()),
    ApiKey.DESCRIBE_GROUPS: Split("groups", "groups", key=()),
    ApiKey.DELETE_GROUPS: Split("groups_names", "results", key=()),
    ApiKey.LEAVE_GROUP: Split("members", "members", key=None),
    ApiKey.DESCRIBE_TRANSACTIONS: Split("transactional_ids", "transaction_states", key=()),
    ApiKey.DESCRIBE_CONFIGS: Split("resources", "results", key=_RESOURCES),
    ApiKey.ALTER_CONFIGS: Split("resources", "responses", key=_RESOURCES),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Split("resources", "responses", key=_RESOURCES),
    ApiKey.CREATE_TOPICS: Split("topics", "topics"),
    ApiKey.DELETE_TOPICS: Split("topics", "responses", key=("name", "topic_id")),
    ApiKey.CREATE_PARTITIONS: Split("topics", "results"),
    ApiKey.CREATE_ACLS: Split("creations", "results", key=None),
    ApiKey.DELETE_ACLS: Split("filters", "filter_results", key=None),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Split(
        "topics", "responses", "partitions", "partitions", row_key="partition_index"
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Split("topics", "topics", "partition_indexes", "partitions"),
    ApiKey.ELECT_LEADERS: Split(
        "topic_partitions", "replica_election_results", "partitions", "partition_result", ("topic",)
    ),
    ApiKey.DESCRIBE_LOG_DIRS: Split(
        "topics", "results", "partitions", "topics", ("topic",), merged="log_dir"
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Split("dirs", "results", "topics", "", None, inner="partitions"),
}


BETWEEN_BROKERS: Final = frozenset(
    (
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.ALTER_PARTITION,
    )
)
"""Requests that are served before those of clients."""


class Limit(NamedTuple):
    """The error for a request with more than WHOLE_ITEMS_MAX items. With `splits` the error response is made
    in parts, of one list after the other."""

    error: ErrorCode
    splits: tuple[Split, ...] = ()


# Kafka's error for offsets that make a larger batch than __consumer_offsets allows.
_COMMIT_TOO_LARGE: Final = Limit(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, (Split(*_BY_PARTITION),))
_TOO_LARGE: Final = Limit(ErrorCode.INVALID_REQUEST)

WHOLE: Final[dict[ApiKey, Limit]] = {
    ApiKey.OFFSET_COMMIT: _COMMIT_TOO_LARGE,
    ApiKey.TXN_OFFSET_COMMIT: _COMMIT_TOO_LARGE,
    ApiKey.ADD_PARTITIONS_TO_TXN: Limit(
        ErrorCode.INVALID_REQUEST,
        (
            Split(
                "v3_and_below_topics", "results_by_topic_v3_and_below", "partitions", "results_by_partition"
            ),
        ),
    ),
    ApiKey.JOIN_GROUP: _TOO_LARGE,
    ApiKey.SYNC_GROUP: _TOO_LARGE,
    ApiKey.LIST_GROUPS: _TOO_LARGE,
    ApiKey.LIST_TRANSACTIONS: _TOO_LARGE,
    ApiKey.CREATE_DELEGATION_TOKEN: _TOO_LARGE,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _TOO_LARGE,
    # An entity or a user that is named twice has one result, so these requests are not split.
    ApiKey.ALTER_CLIENT_QUOTAS: Limit(
        ErrorCode.INVALID_REQUEST, (Split("entries", "entries", "entity", key=None),)
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _TOO_LARGE,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Limit(ErrorCode.INVALID_REQUEST, (Split("users", "results"),)),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Limit(
        ErrorCode.INVALID_REQUEST, (Split("deletions", "results"), Split("upsertions", "results"))
    ),
    ApiKey.UPDATE_FEATURES: _TOO_LARGE,
}


def limit_of(message: Message, version: int) -> Limit | None:
    """The limit of a request that may have only WHOLE_ITEMS_MAX items; None: it has no limit."""
    if message.api_key == ApiKey.ADD_PARTITIONS_TO_TXN and version >= 4:
        return None  # a broker sends it
    return WHOLE.get(ApiKey(message.api_key))


def split_of(message: Message, version: int) -> Split | None:
    """The split of this request; None if it has none."""
    key = ApiKey(message.api_key)
    if key == ApiKey.DELETE_TOPICS and version < 6:
        split: Split | None = _DELETE_BY_NAME
    elif key == ApiKey.OFFSET_FETCH and version >= 8:
        split = _FETCH_OF_GROUPS
    else:
        split = SPLITS.get(key)
    # A list that is null or empty can mean all items.
    return split if split is not None and getattr(message, split.items) else None


def parts(message: Message, split: Split, size: Callable[[], int]) -> Generator[Message | None, None, None]:
    """The parts of a request, each of about `size()` items at that time; None between two steps of the work.
    Removes the items from the lists of `message`."""
    items_left: list[Any] = getattr(message, split.items)
    groups: list[list[Any]] = []
    yield from _grouped(items_left, split, groups)
    gathered: list[Any] = []
    weight = 0
    while groups:
        rows = groups.pop()
        items: list[Any] | None = getattr(rows[0], split.rows) if split.rows else None
        if items and split.inner:
            yield from _cut_inner(items, split.inner)
        if items is None or len(items) <= SMALL_ROW:
            gathered += rows
            weight += len(rows) + len(items or ())
        else:
            row = rows[0]
            setattr(row, split.rows, [])
            cut: list[Any] = []
            yield from _cut(items, split, cut)
            while cut:
                some: list[Any] = []
                while cut and len(some) + weight < size():
                    some += cut.pop()
                part = copy.copy(row)
                setattr(part, split.rows, some)
                gathered.append(part)
                weight += len(some) + 1
                if weight >= size():
                    yield _part(message, split, gathered)
                    gathered, weight = [], 0
        if weight >= size():
            yield _part(message, split, gathered)
            gathered, weight = [], 0
    if gathered:
        yield _part(message, split, gathered)


def _part(message: Message, split: Split, rows: list[Any]) -> Message:
    part = copy.copy(message)
    setattr(part, split.items, rows)
    return part


def _grouped(rows: list[Any], split: Split, groups: list[list[Any]]) -> Generator[None, None, None]:
    """Move `rows` to `groups`, in reverse order; rows of the same name are in one group."""
    if split.key is None:
        while rows:
            groups.extend([rows.pop()] for _ in range(min(STEP_ROWS, len(rows))))
            yield
        return
    rows.reverse()
    names = split.key
    found: dict[Any, list[Any]] = {}
    while rows:
        for _ in range(min(STEP_ROWS, len(rows))):
            row = rows.pop()
            group = found.setdefault(tuple(getattr(row, name) for name in names) if names else row, [])
            if not split.rows or not group:
                if len(group) < 2:
                    group.append(row)
            else:
                getattr(group[0], split.rows).extend(getattr(row, split.rows))
        yield
    while found:
        groups.extend(found.popitem()[1] for _ in range(min(STEP_ROWS, len(found))))
        yield


def _cut(items: list[Any], split: Split, cut: list[list[Any]]) -> Generator[None, None, None]:
    """Move the rows of an item to `cut`, in reverse order; rows of the same name are in one group."""
    if split.row_key is not None:
        yield from _grouped(items, Split("", "", key=(split.row_key,)), cut)
        return
    while items:
        cut.extend([items.pop()] for _ in range(min(STEP_ROWS, len(items))))
        yield


def _cut_inner(rows: list[Any], name: str) -> Generator[None, None, None]:
    """Replace each row with many numbers by several rows with some of them."""
    for place in range(len(rows)):
        numbers = getattr(rows[place], name)
        if len(numbers) > INNER_ROW:
            setattr(rows[place], name, numbers[:INNER_ROW])
            for at in range(INNER_ROW, len(numbers), INNER_ROW):
                rest = copy.copy(rows[place])
                setattr(rest, name, numbers[at : at + INNER_ROW])
                rows.append(rest)
                if at % (INNER_ROW * STEP_ROWS) == 0:
                    yield
        elif place % STEP_ROWS == 0:
            yield


def join(answer: Message, more: Message, split: Split) -> None:
    """Append the response to a part to that of the parts before it."""
    rows: list[Any] = getattr(answer, split.results)
    new: list[Any] = getattr(more, split.results)
    if split.merged:
        known = {getattr(row, split.merged): row for row in rows}
        for row in new:
            if getattr(row, split.merged) in known:
                getattr(known[getattr(row, split.merged)], split.result_rows).extend(
                    getattr(row, split.result_rows)
                )
        new = [row for row in new if getattr(row, split.merged) not in known]
    elif rows and new and split.result_rows and _same_name(rows[-1], new[0], split):
        getattr(rows[-1], split.result_rows).extend(getattr(new.pop(0), split.result_rows))
    rows += new
    for name in ("error_code", "throttle_time_ms"):
        if hasattr(answer, name):
            setattr(answer, name, max(getattr(answer, name), getattr(more, name)))
    if getattr(more, "node_endpoints", None):
        nodes = {node.node_id for node in answer.node_endpoints}  # type: ignore[attr-defined]
        answer.node_endpoints += [n for n in more.node_endpoints if n.node_id not in nodes]  # type: ignore[attr-defined]


def _same_name(one: Struct, other: Struct, split: Split) -> bool:
    names: Iterable[str] = split.key or (("group_id",) if hasattr(one, "group_id") else ("name",))
    return all(getattr(one, name) == getattr(other, name) for name in names)


def has_items(message: Struct, more_than: int) -> bool:
    """Whether the lists of a message have more items than that, including the lists in its rows."""
    return _items(message, more_than) > more_than


@cache
def _lists(cls: type[Struct]) -> tuple[tuple[str, bool], ...]:
    """The names of a struct's lists, and whether their items are structs."""
    return tuple(
        (item.name, item.type.element is not None and item.type.element.wire == "struct")
        for item in fields_of(cls)
        if item.type.wire == "array"
    )


def _items(struct: Struct, enough: int) -> int:
    count = 0
    for name, has_structs in _lists(type(struct)):
        values = getattr(struct, name) or ()
        count += len(values)
        if has_structs:
            for value in values:
                if count > enough:
                    return count
                count += _items(value, enough)
    return count


def release(struct: Struct) -> Generator[None, None, None]:
    """Free the lists of a message in steps: to free a million objects at once takes long."""
    for name, has_structs in _lists(type(struct)):
        if not has_structs:
            continue
        values: list[Any] = getattr(struct, name) or []
        while values:
            some = values[-STEP_ROWS:]
            del values[-STEP_ROWS:]
            for value in some:
                if has_items(value, STEP_ROWS):
                    yield from release(value)
            yield
