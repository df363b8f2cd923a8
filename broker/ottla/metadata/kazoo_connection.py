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
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionDropped, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import SASL
from kazoo.retry import KazooRetry

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
    failed: Failed = lambda reason, is_denied: None,
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
            header, response, offset = self._read_header(timeout)
            if header.err:
                raise AuthFailedError(f"user {self._account.user}: wrong user or password")
            try:
                token = exchange.send(SASL.deserialize(response, offset)[0])
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
