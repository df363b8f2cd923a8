"""Kazoo clients with TLS by `ottla.security` and SASL DIGEST-MD5, as Kafka's settings configure them.

Used by `ZooKeeperSession`. Kazoo's handler creates and selects sockets, its connection handler authenticates;
both are extended here. Everything here runs in kazoo's threads.

Invariants: `ready` is called after a connection's login; `failed` is called with one line for each failed
connection. Keys and certificates are read again for every connection, so that renewed ones are used.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionDropped,
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
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import SASL
from kazoo.retry import KazooRetry
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
from ottla.metadata.zookeeper_access import Account, ZooKeeperAccess
from ottla.security import digest_md5
from ottla.security.mechanisms import SaslFailed
from ottla.security.stores import StoreProblem
from ottla.security.tls import TlsSettings, client_context

RECONNECT_DELAY_S_MAX = 1.0

Ready = Callable[[], None]
Failed = Callable[[str, bool], None]
"""Called with the reason of a failed connection, and whether ZooKeeper rejected the login."""


def new_client(
    hosts: str,
    session_timeout_s: float,
    access: ZooKeeperAccess,
    *,
    client_id: tuple[int, bytes] | None = None,
    ready: Ready = lambda: None,
    failed: Failed = lambda reason, refused: None,
    **options: Any,
) -> KazooClient:
    """A client that connects with `access`. With `client_id` it takes that session over."""
    client = KazooClient(
        hosts=hosts,
        timeout=session_timeout_s,
        client_id=client_id,
        handler=TlsHandler(access.tls) if access.tls else None,
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=RECONNECT_DELAY_S_MAX),
        **options,
    )
    client._connection = _Connection(client, access.login, ready, failed)
    return client


def zookeeper_context(tls: TlsSettings) -> ssl.SSLContext:
    """The TLS context. Raises StoreProblem with the names of the zookeeper.ssl.* settings."""
    try:
        return client_context(tls)
    except StoreProblem as problem:
        prefix = "zookeeper." if str(problem).startswith("ssl.") else "zookeeper.ssl: "
        raise StoreProblem(f"{prefix}{problem}") from None


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Creates TLS sockets. Kazoo's own TLS reads keys from PEM files only, and ignores data that OpenSSL has
    buffered."""

    def __init__(self, tls: TlsSettings) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **_: object
    ) -> ssl.SSLSocket:
        try:
            context = zookeeper_context(self._tls)
        except StoreProblem as problem:
            raise OSError(errno.EINVAL, str(problem)) from problem
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise

    def select(self, readers: Any, writers: Any, failing: Any, timeout: float | None = None) -> Any:
        """Select also sockets with buffered data: a TLS record can have several responses, and the rest of it
        does not make the descriptor readable."""
        buffered = [s for s in readers if isinstance(s, ssl.SSLSocket) and s.pending()]
        ready, *rest = super().select(readers, writers, failing, 0 if buffered else timeout)
        return [*ready, *(s for s in buffered if s not in ready)], *rest


class _Connection(ConnectionHandler):  # type: ignore[misc]
    def __init__(self, client: KazooClient, account: Account | None, ready: Ready, failed: Failed) -> None:
        super().__init__(
            client,
            client._conn_retry.copy(),
            logger=client.logger,
            sasl_options=None if account is None else {},
        )
        self._account = account
        self._ready, self._failed = ready, failed

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        try:
            timeouts: tuple[float, float] = super()._connect(host, hostip, port)
        except SessionExpiredError:
            raise
        except AuthFailedError as error:
            self._failed(f"{host}:{port} rejected the login: {error}", True)
            # Kazoo would not retry an AuthFailedError: the password may be corrected while the broker runs.
            raise ConnectionDropped(str(error)) from error
        except Exception as error:
            self._failed(f"{host}:{port}: {_failure_reason(error)}", False)
            raise
        self._ready()
        return timeouts

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        assert self._account is not None
        exchange = digest_md5.log_in(*self._account)
        token, xid = next(exchange), 0
        while True:
            xid += 1
            self._submit(SASL(token), timeout, xid)
            header, answer, offset = self._read_header(timeout)
            if header.err:
                raise AuthFailedError(f"user {self._account.user}: wrong user or password")
            try:
                token = exchange.send(SASL.deserialize(answer, offset)[0])
            except StopIteration:
                return
            except SaslFailed as failure:
                raise AuthFailedError(f"user {self._account.user}: {failure}") from failure


def _failure_reason(error: BaseException) -> str:
    """A short text of the cause of kazoo's error."""
    cause = error.__cause__ or error.__context__ or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        reason = (cause.reason or str(cause)).lower().replace("_", " ")
        _, is_alert, alert = reason.partition("alert ")
        if is_alert and "certificate" in alert:
            return f"it rejected the client certificate: {alert} (from an untrusted authority, or expired?)"
        return f"TLS handshake failed: {reason}"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__


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
