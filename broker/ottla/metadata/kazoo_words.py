"""Kazoo's words for the store's: operations on their way to ZooKeeper, answers and errors on their way back.

Called by the ZooKeeper adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.exceptions import ConnectionClosedError as KazooConnectionClosed
from kazoo.security import ACL

from ottla.metadata.store import (
    BadVersion,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    OperationResult,
    SetData,
    Stat,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)

_DENIED = {
    NoAuthError: "denied by the node's ACL: it belongs to somebody else",
    InvalidACLError: "zookeeper.set.acl=true: ZooKeeper has authenticated nobody that it could belong to",
    SessionClosedRequireSaslError: "this ZooKeeper lets nobody in who has not authenticated",
}
_LOST = (ConnectionLoss, SessionExpiredError, OperationTimeoutError, KazooConnectionClosed)


class Unimplemented(StoreError):
    """The ensemble does not know that kind of request."""


def add_to(transaction: Any, operation: Operation, acls: Sequence[ACL]) -> None:
    """`acls` are for a node to create."""
    if isinstance(operation, Create):
        transaction.create(
            operation.path, operation.data, acls, ephemeral=operation.ephemeral, sequence=operation.sequential
        )
    elif isinstance(operation, SetData):
        transaction.set_data(operation.path, operation.data, operation.version)
    elif isinstance(operation, Delete):
        transaction.delete(operation.path, operation.version)
    else:
        transaction.check(operation.path, operation.version)


def result_of(operation: Operation, result: Any) -> OperationResult:
    if isinstance(result, Exception):
        raise StoreUnavailable(operation.path, f"unexpected answer {result!r}")
    if isinstance(operation, Create):
        return str(result)
    return stat_of(result) if isinstance(operation, SetData) else None


def stat_of(stat: Any) -> Stat:
    return Stat(
        version=int(stat.version),
        czxid=int(stat.czxid),
        mzxid=int(stat.mzxid),
        ephemeral_owner=int(stat.ephemeralOwner),
        ctime_ms=int(stat.ctime),
    )


def translate(path: str, error: BaseException) -> StoreError:
    if isinstance(error, NoNodeError):
        return NoNode(path)
    if isinstance(error, NodeExistsError):
        return NodeExists(path)
    if isinstance(error, BadVersionError):
        return BadVersion(path)
    if isinstance(error, UnimplementedError):
        return Unimplemented(path)
    if isinstance(error, NotEmptyError):
        return NotEmpty(path)
    if type(error) in _DENIED:
        return StoreDenied(path, _DENIED[type(error)])
    if isinstance(error, _LOST):
        return StoreUnavailable(path, type(error).__name__)
    assert isinstance(error, KazooException | Exception)
    return StoreUnavailable(path, repr(error))
