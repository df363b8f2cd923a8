"""Conversion between the store's types and kazoo's: operations, results, errors, and the ACLs of new nodes.

Used by `zookeeper` and `zookeeper_session`; the operator uses the ACLs for its own nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

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
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from ottla.metadata import znodes
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
    NoAuthError: "denied by the node's ACL, which belongs to another user",
    InvalidACLError: "zookeeper.set.acl=true requires authentication, and this session is not authenticated",
    SessionClosedRequireSaslError: "this ZooKeeper requires SASL authentication",
}
_LOST = (ConnectionLoss, SessionExpiredError, OperationTimeoutError, KazooConnectionClosed)


class Unimplemented(StoreError):
    """The ensemble does not support this request."""


def add_to(transaction: Any, operation: Operation, acls: Sequence[ACL]) -> None:
    """Add an operation to kazoo's transaction. `acls` are those of a node to create."""
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
        raise StoreUnavailable(operation.path, f"unexpected response {result!r}")
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


# --- ACLs of nodes ---

_SENSITIVE: Final = ("/config/users", znodes.CONFIG_BROKERS, "/delegation_token/tokens")
"""Prefixes of the paths of nodes with secrets (ZkData.SensitiveRootPaths)."""


def node_acls(path: str, *, secure: bool) -> list[ACL]:
    """The ACLs of a new node (ZkData.defaultAcls).

    `secure` is zookeeper.set.acl: the creator has all permissions, and everybody can read nodes without
    secrets. /consumers stays open, because consumers of 0.8 write there. The creator is the identity that
    ZooKeeper has authenticated by SASL, by a client certificate, or both.
    """
    if not secure or path == znodes.CONSUMERS:
        return list(OPEN_ACL_UNSAFE)
    if path.startswith(_SENSITIVE):
        return list(CREATOR_ALL_ACL)
    return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]
