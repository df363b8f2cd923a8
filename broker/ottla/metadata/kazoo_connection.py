"""Kazoo's connection, as Kafka's settings want it: TLS by `ottla.security`, and a login by DIGEST-MD5.

Called by the ZooKeeper adapter. Kazoo has seams for both: a handler makes and watches its sockets, and a
connection handler logs in. Everything here runs in kazoo's threads.

Invariants: a connection counts as `ready` only after its login; whatever keeps one from that is told to
`failed`, in one line. Keys and certificates are read anew for every connection: renewed ones are taken.
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
"""Why there is no connection, and whether that is ZooKeeper's refusal of our login."""


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
    """A client that connects as `access` says. With `client_id` it takes that session over."""
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
    """Raises StoreProblem, in the words of the zookeeper.ssl.* settings."""
    try:
        return client_context(tls)
    except StoreProblem as problem:
        prefix = "zookeeper." if str(problem).startswith("ssl.") else "zookeeper.ssl: "
        raise StoreProblem(f"{prefix}{problem}") from None


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Makes TLS sockets. Kazoo's own TLS takes keys from files only, and forgets what OpenSSL holds back."""

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
        """A record of TLS may hold several answers: what is left of it shows on no descriptor."""
        held = [s for s in readers if isinstance(s, ssl.SSLSocket) and s.pending()]
        ready, *others = super().select(readers, writers, failing, 0 if held else timeout)
        return [*ready, *(s for s in held if s not in ready)], *others


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
            self._failed(f"{host}:{port} refuses our login: {error}", True)
            # Kazoo would give up for good: a password may be put right while we run.
            raise ConnectionDropped(str(error)) from error
        except Exception as error:
            self._failed(f"{host}:{port}: {_reason(error)}", False)
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
                raise AuthFailedError(f"user {self._account.user}, or the password, is wrong")
            try:
                token = exchange.send(SASL.deserialize(answer, offset)[0])
            except StopIteration:
                return
            except SaslFailed as failure:
                raise AuthFailedError(f"user {self._account.user}: {failure}") from failure


def _reason(error: BaseException) -> str:
    """What kazoo's error was made of, in a few words."""
    cause = error.__cause__ or error.__context__ or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        reason = (cause.reason or str(cause)).lower().replace("_", " ")
        _, alert, said = reason.partition("alert ")
        if alert and "certificate" in said:
            return f"it refuses our certificate: {said} (not of an authority that it trusts? expired?)"
        return f"no TLS connection: {reason}"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__
