"""Delegation tokens (KIP-48, KIP-373): their rights and lifetimes.

Called by the store of the tokens (`ottla.metadata.delegation_tokens`) and by the handlers. Pure. The HMAC of
a token's id, with the secret that all brokers share, is its password: a client that authenticates with it by
SCRAM has the owner as its principal.
"""

from __future__ import annotations

import base64
import hmac
from typing import NamedTuple

from ottla.environment import environment
from ottla.security.principals import Principal


class Token(NamedTuple):
    """A delegation token; times are wall time in ms."""

    id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    max_ms: int
    expires_ms: int

    def concerns(self, principal: Principal) -> bool:
        """Whether `principal` is the owner, the requester or a renewer."""
        return principal in (self.owner, self.requester, *self.renewers)

    def may_change(self, principal: Principal) -> bool:
        return principal in (self.owner, *self.renewers)

    def is_over(self, now_ms: int) -> bool:
        return self.max_ms < now_ms or self.expires_ms < now_ms

    def expiring_in(self, lifetime_ms: int, now_ms: int) -> Token:
        return self._replace(expires_ms=min(self.max_ms, now_ms + lifetime_ms))


class Lifetimes(NamedTuple):
    """delegation.token.max.lifetime.ms and .expiry.time.ms."""

    most_ms: int
    usual_ms: int


def new_token(
    owner: Principal,
    requester: Principal,
    renewers: tuple[Principal, ...],
    wanted_max_ms: int,
    lifetimes: Lifetimes,
    now_ms: int,
) -> Token:
    """A new token; `wanted_max_ms` of 0 or less: the maximum lifetime."""
    longest_ms = lifetimes.most_ms if wanted_max_ms <= 0 else min(wanted_max_ms, lifetimes.most_ms)
    token_id = base64.urlsafe_b64encode(environment.get().random.randbytes(16)).rstrip(b"=").decode()
    token = Token(token_id, owner, requester, renewers, now_ms, now_ms + longest_ms, 0)
    return token.expiring_in(lifetimes.usual_ms, now_ms)


def hmac_of(token_id: str, secret: str) -> bytes:
    """The HMAC of a token, with delegation.token.secret.key."""
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")
