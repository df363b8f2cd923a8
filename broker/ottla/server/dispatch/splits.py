"""How a large request is answered in parts: which of its lists can be cut, and how the answers are joined.

Called by ottla.server.dispatch.large_requests. A part is a request of the same API with some of the items,
which the API's own guard and handler answer as any other. Items of one name stay in one part, so that a
handler finds those that are named twice; a third of the same name says nothing more, and is left out.

An API without a split changes a group or a transaction as a whole, or its answer is not by item. A request
of those in `WHOLE` may have `WHOLE_ITEMS_MAX` items. All others without a split come from brokers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, NamedTuple

from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.types import Message, Struct, fields_of

WHOLE_ITEMS_MAX: Final = 10_000
STEP_ROWS: Final = 200
SMALL_ROW: Final = 50
"""A row with as many rows of its own is not cut."""
INNER_ROW: Final = 10
"""As many numbers has one of the rows of a row after the cut."""


class Split(NamedTuple):
    """`asked` is the list that is cut, `answered` that of the answers; `rows` and `answered_rows` are
    the lists of their rows."""

    asked: str
    answered: str
    rows: str = ""
    answered_rows: str = ""
    key: tuple[str, ...] | None = ("name",)
    """What names a row; (): the row itself. None: rows may be repeated, and their order counts."""
    row_key: str | None = None
    """What names one of `rows`, where it matters that one is named twice."""
    inner: str = ""
    """The list of numbers of one of `rows`."""
    merged: str = ""
    """What names a row of the answer, of which each part may have some."""


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
"""These come before the requests of clients."""


class Limit(NamedTuple):
    """The error of a request with more than WHOLE_ITEMS_MAX items. With `splits` it is made in parts, of one
    list after the other."""

    error: ErrorCode
    splits: tuple[Split, ...] = ()


# What Kafka answers to offsets that make a larger batch than the topic of offsets takes.
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
    # An entity or a user that is named twice has one result.
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
    """Whether a request of this API may have WHOLE_ITEMS_MAX items only."""
    if message.api_key == ApiKey.ADD_PARTITIONS_TO_TXN and version >= 4:
        return None  # it comes from a broker
    return WHOLE.get(ApiKey(message.api_key))


def split_of(message: Message, version: int) -> Split | None:
    """How this request is cut; None: not at all."""
    key = ApiKey(message.api_key)
    if key == ApiKey.DELETE_TOPICS and version < 6:
        split: Split | None = _DELETE_BY_NAME
    elif key == ApiKey.OFFSET_FETCH and version >= 8:
        split = _FETCH_OF_GROUPS
    else:
        split = SPLITS.get(key)
    # A list that is null or empty can stand for everything there is.
    return split if split is not None and getattr(message, split.asked) else None


def parts(message: Message, split: Split, size: Callable[[], int]) -> Generator[Message | None, None, None]:
    """The parts of a request, each of about `size()` items as of then; None between two steps of the work. It
    uses up the lists of `message`."""
    asked: list[Any] = getattr(message, split.asked)
    groups: list[list[Any]] = []
    yield from _grouped(asked, split, groups)
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
    setattr(part, split.asked, rows)
    return part


def _grouped(rows: list[Any], split: Split, groups: list[list[Any]]) -> Generator[None, None, None]:
    """Move `rows` to `groups`, the last one first: those of the same name together."""
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
    """Move the rows of a row to `cut`, the last one first: those of the same name together."""
    if split.row_key is not None:
        yield from _grouped(items, Split("", "", key=(split.row_key,)), cut)
        return
    while items:
        cut.extend([items.pop()] for _ in range(min(STEP_ROWS, len(items))))
        yield


def _cut_inner(rows: list[Any], name: str) -> Generator[None, None, None]:
    """Replace each row that has many numbers by several with some of them."""
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
    """Add the answer to a part to that of the parts before it."""
    rows: list[Any] = getattr(answer, split.answered)
    new: list[Any] = getattr(more, split.answered)
    if split.merged:
        known = {getattr(row, split.merged): row for row in rows}
        for row in new:
            if getattr(row, split.merged) in known:
                getattr(known[getattr(row, split.merged)], split.answered_rows).extend(
                    getattr(row, split.answered_rows)
                )
        new = [row for row in new if getattr(row, split.merged) not in known]
    elif rows and new and split.answered_rows and _same_name(rows[-1], new[0], split):
        getattr(rows[-1], split.answered_rows).extend(getattr(new.pop(0), split.answered_rows))
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
    """Whether the lists of a message have more items, those of its rows included."""
    return _items(message, more_than) > more_than


def _items(struct: Struct, enough: int) -> int:
    count = 0
    for item in fields_of(type(struct)):
        if item.type.wire != "array":
            continue
        values = getattr(struct, item.name) or ()
        count += len(values)
        if item.type.element is not None and item.type.element.wire == "struct":
            for value in values:
                if count > enough:
                    return count
                count += _items(value, enough)
    return count


def release(struct: Struct) -> Generator[None, None, None]:
    """Give up the lists of a message in steps: to free a million objects in one go takes long."""
    for item in fields_of(type(struct)):
        if item.type.wire != "array" or item.type.element is None or item.type.element.wire != "struct":
            continue
        values: list[Any] = getattr(struct, item.name) or []
        while values:
            some = values[-STEP_ROWS:]
            del values[-STEP_ROWS:]
            for value in some:
                if has_items(value, STEP_ROWS):
                    yield from release(value)
            yield
