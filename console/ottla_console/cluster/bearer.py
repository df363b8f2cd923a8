"""The tokens of a person who has logged in at an OpenID provider, as credentials at the brokers.

Made by `web.login`; the clients of the person's access ask for the present token before each log-in and
re-authentication. Invariants: a token is renewed once, however many clients ask; once the provider has
refused a renewal, or the token has ended without one, the credentials are not usable again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.oauth import TokenRefused, jwt_parts
from ottla_console.cluster.credentials import FORGET_S
from ottla_console.cluster.identity_provider import IdentityProvider, ProviderProblem, Tokens
from ottla_console.settings import Cluster

log = logging.getLogger(__name__)

SUB_CLAIM: Final = "sasl.oauthbearer.sub.claim.name"
RENEW_PART: Final = 0.25
"""A token is renewed in the last part of its life; clients ask for one when a fifth is left."""


class BearerTokens:
    """See the module."""

    known_within_s = 0.0

    def __init__(
        self, cluster: Cluster, provider: IdentityProvider, tokens: Tokens, now_ms: Callable[[], int]
    ) -> None:
        """Raises ProviderProblem if the access token is not one that brokers can check."""
        self._cluster = cluster
        self._provider = provider
        self._now_ms = now_ms
        self._lock = asyncio.Lock()
        self._ended = False
        self._claim = cluster.properties.get(SUB_CLAIM, "sub")
        self._take(tokens)
        self.principal = f"User:{self._name}"

    def _take(self, tokens: Tokens) -> None:
        try:
            _, claims, _ = jwt_parts(tokens.access)
            name, expires_s = claims.get(self._claim), claims["exp"]
            if not isinstance(name, str) or not name:
                raise ProviderProblem(f"its access token has no claim {self._claim}")
            self._name, self._expires_ms = name, int(expires_s * 1000)
        except (TokenRefused, LookupError, TypeError, ValueError, OverflowError):
            raise ProviderProblem(
                "its access token is not a JWT with claim exp, so that brokers cannot check it; most"
                " providers issue one for an audience or a resource, which is set by `parameters`"
            ) from None
        self._tokens = tokens
        self._renew_ms = self._expires_ms - int(RENEW_PART * max(0, self._expires_ms - self._now_ms()))

    def properties(self) -> dict[str, object]:
        return {"sasl.mechanism": "OAUTHBEARER", "sasl.oauth.token.provider": self.token}

    async def token(self) -> str:
        """The present access token. Raises KafkaError if there is none any more."""
        async with self._lock:
            if self._now_ms() >= self._renew_ms and self._tokens.refresh and not self._ended:
                await self._renew()
            if self._ended or self._now_ms() >= self._expires_ms:
                raise KafkaError(
                    ErrorCode.SASL_AUTHENTICATION_FAILED, "the log-in has ended, or was not renewed"
                )
            return self._tokens.access

    async def _renew(self) -> None:
        name = self._name
        try:
            self._take(await self._provider.refresh(self._tokens))
        except ProviderProblem as problem:
            self._ended = problem.refused
            log.warning(
                "cluster=%s: the token of %r was not renewed: %s", self._cluster.name, self.principal, problem
            )
            return
        self._ended = self._name != name  # a session is one principal's

    def usable(self, certificate: bytes | None, now_ms: int) -> bool:
        alive = bool(self._tokens.refresh) or now_ms < self._expires_ms
        return alive and not self._ended

    async def forget(self) -> None:
        self._ended = True
        try:
            async with asyncio.timeout(FORGET_S):
                await self._provider.revoke(self._tokens)
        except (ProviderProblem, TimeoutError) as problem:
            log.warning(
                "cluster=%s: the refresh token of %r was not revoked: %s",
                self._cluster.name,
                self.principal,
                problem,
            )
