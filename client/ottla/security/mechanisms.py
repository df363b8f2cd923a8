"""SASL mechanisms on the broker's side: their interface, and PLAIN.

Called by the server's authenticator with the client's tokens. A mechanism is a state machine for one
exchange, without I/O. `scram` and `oauth` have the others.

Invariant: the error to the client does not reveal whether the user exists.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Protocol


class SaslFailed(Exception):
    """Authentication failed. The message is sent to the client; without one it gets Kafka's default."""


class SaslServer(Protocol):
    """The broker's side of one exchange."""

    complete: bool
    authorization_id: str
    """The authenticated user, once complete."""
    expires_ms: int | None
    """Wall time in ms at which the credential expires; None if it does not."""
    by_token: bool
    """Whether the client used a delegation token: it then cannot create others."""

    def evaluate(self, token: bytes, now_ms: int) -> bytes:
        """The answer to the client's token. Raises SaslFailed."""


class PlainServer:
    """PLAIN (RFC 4616): user and password in one message. Users are options of the login module."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self.complete = False
        self.authorization_id = ""
        self.expires_ms: int | None = None
        self.by_token = False
        self._users = users

    def evaluate(self, token: bytes, now_ms: int) -> bytes:
        words = token.decode("utf-8", "replace").split("\0", 3)
        if len(words) != 3:
            raise SaslFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(words)}")
        wanted, user, password = words
        if not user:
            raise SaslFailed("Authentication failed: username not specified")
        if not password:
            raise SaslFailed("Authentication failed: password not specified")
        known = self._users.get(user)
        if known is None or not hmac.compare_digest(known.encode(), password.encode()):
            raise SaslFailed("Authentication failed: Invalid username or password")
        if wanted and wanted != user:
            raise SaslFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.authorization_id, self.complete = user, True
        return b""


def plain_users(options: Mapping[str, str]) -> dict[str, str]:
    """The users among a login module's options: user_NAME="password"."""
    return {name[5:]: password for name, password in options.items() if name.startswith("user_")}


def plain_token(user: str, password: str) -> bytes:
    """The token of a client of PLAIN."""
    return b"\0".join((b"", user.encode(), password.encode()))
