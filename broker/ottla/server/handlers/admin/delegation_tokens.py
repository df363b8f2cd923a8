"""Create- and DescribeDelegationToken 0 to 3, Renew- and ExpireDelegationToken 0 to 2 (KIP-48, KIP-373).

Behaviour: any broker responds on authenticated connections: not on PLAINTEXT, not on SSL without a client
certificate, and not if the client authenticated with a token (DELEGATION_TOKEN_REQUEST_NOT_ALLOWED). Without
delegation.token.secret.key tokens are disabled (DELEGATION_TOKEN_AUTH_DISABLED). A request names a token by
its HMAC; its owner and its renewers may renew it, up to its maximum lifetime, or expire it.

Left out on purpose: authorization for tokens of other users, which is in ottla.server.authorization.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ottla.metadata.delegation_tokens import DelegationTokens
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.delegation_tokens import Token, new_token
from ottla.security.principals import ANONYMOUS, USER, Principal
from ottla.server.dispatch.dispatcher import Request, Route

NO_TIME = -1
NAMES_REQUESTER_FROM = 3


class DelegationTokensHandler:
    def __init__(
        self, tokens: DelegationTokens, protocols: Mapping[str, str], clock: Callable[[], int]
    ) -> None:
        """`protocols` of the listeners, by name; `clock` gives wall time in ms."""
        self._tokens = tokens
        self._protocols = protocols
        self._clock = clock
        # Serializes lookup, change and write: concurrent requests would lose changes.
        self._alone = asyncio.Lock()

    def routes(self) -> list[Route]:
        return [
            Route(m.CreateDelegationTokenRequest, self.create, _create_error),
            Route(m.RenewDelegationTokenRequest, self.renew, _renew_error),
            Route(m.ExpireDelegationTokenRequest, self.expire, _expire_error),
            Route(m.DescribeDelegationTokenRequest, self.describe, _describe_error),
        ]

    async def create(self, request: Request) -> m.CreateDelegationTokenResponse:
        message = request.decode(m.CreateDelegationTokenRequest)
        requester = owner = request.principal
        if message.owner_principal_name:
            owner = Principal(message.owner_principal_type or "", message.owner_principal_name)
        response = m.CreateDelegationTokenResponse(
            principal_type=owner.type,
            principal_name=owner.name,
            issue_timestamp_ms=NO_TIME,
            expiry_timestamp_ms=NO_TIME,
            max_timestamp_ms=NO_TIME,
        )
        if request.version >= NAMES_REQUESTER_FROM:
            response.token_requester_principal_type = requester.type
            response.token_requester_principal_name = requester.name
        renewers = tuple(Principal(r.principal_type, r.principal_name) for r in message.renewers)
        error = self._refusal(request)
        if error is ErrorCode.NONE and any(renewer.type != USER for renewer in renewers):
            error = ErrorCode.INVALID_PRINCIPAL_TYPE
        if error is ErrorCode.NONE and not self._tokens.enabled:
            error = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        response.error_code = error
        if error is ErrorCode.NONE:
            token = new_token(
                owner, requester, renewers, message.max_lifetime_ms, self._tokens.lifetimes, self._clock()
            )
            await self._tokens.put(token)
            response.token_id, response.hmac = token.id, self._tokens.hmac(token)
            response.issue_timestamp_ms, response.max_timestamp_ms = token.issued_ms, token.max_ms
            response.expiry_timestamp_ms = token.expires_ms
        return response

    async def renew(self, request: Request) -> m.RenewDelegationTokenResponse:
        message = request.decode(m.RenewDelegationTokenRequest)
        async with self._alone:
            token, now_ms = self._of_request(request, bytes(message.hmac)), self._clock()
            if token.is_over(now_ms):
                raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
            period_ms = message.renew_period_ms
            renewed = token.expiring_in(
                self._tokens.lifetimes.usual_ms if period_ms < 0 else period_ms, now_ms
            )
            await self._tokens.put(renewed)
        return m.RenewDelegationTokenResponse(expiry_timestamp_ms=renewed.expires_ms)

    async def expire(self, request: Request) -> m.ExpireDelegationTokenResponse:
        message = request.decode(m.ExpireDelegationTokenRequest)
        async with self._alone:
            token, now_ms = self._of_request(request, bytes(message.hmac)), self._clock()
            if message.expiry_time_period_ms < 0:
                await self._tokens.remove(token.id)
                return m.ExpireDelegationTokenResponse(expiry_timestamp_ms=now_ms)
            if token.is_over(now_ms):
                raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
            changed = token.expiring_in(message.expiry_time_period_ms, now_ms)
            await self._tokens.put(changed)
        return m.ExpireDelegationTokenResponse(expiry_timestamp_ms=changed.expires_ms)

    async def describe(self, request: Request) -> m.DescribeDelegationTokenResponse:
        message = request.decode(m.DescribeDelegationTokenRequest)
        self._require_tokens(request)
        owners = message.owners
        wanted = None if owners is None else [Principal(o.principal_type, o.principal_name) for o in owners]
        found = [t for t in self._tokens.all() if wanted is None or any(map(t.concerns, wanted))]
        response = m.DescribeDelegationTokenResponse(tokens=[self._described(token) for token in found])
        if request.version >= NAMES_REQUESTER_FROM:
            for row, token in zip(response.tokens, found, strict=True):
                row.token_requester_principal_type = token.requester.type
                row.token_requester_principal_name = token.requester.name
        return response

    def _refusal(self, request: Request) -> ErrorCode:
        """NONE, or the error of a connection that may not request tokens."""
        connection = request.connection
        protocol = self._protocols.get(connection.listener, "PLAINTEXT")
        unknown = protocol == "PLAINTEXT" or (protocol == "SSL" and connection.principal == ANONYMOUS)
        if unknown or connection.by_token:
            return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return ErrorCode.NONE

    def _require_tokens(self, request: Request) -> None:
        """Raises KafkaError if the connection may not request tokens, or tokens are disabled."""
        error = self._refusal(request)
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        if not self._tokens.enabled:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)

    def _of_request(self, request: Request, code: bytes) -> Token:
        """The token that the request renews or expires. Raises KafkaError."""
        self._require_tokens(request)
        token = self._tokens.by_hmac(code)
        if token is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        if not token.may_change(request.principal):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
        return token

    def _described(self, token: Token) -> m.DescribeDelegationTokenResponse.DescribedDelegationToken:
        renewer = m.DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer
        return m.DescribeDelegationTokenResponse.DescribedDelegationToken(
            principal_type=token.owner.type,
            principal_name=token.owner.name,
            issue_timestamp=token.issued_ms,
            expiry_timestamp=token.expires_ms,
            max_timestamp=token.max_ms,
            token_id=token.id,
            hmac=self._tokens.hmac(token),
            renewers=[renewer(principal_type=r.type, principal_name=r.name) for r in token.renewers],
        )


def _create_error(
    message: m.CreateDelegationTokenRequest, version: int, code: ErrorCode, detail: str | None
) -> m.CreateDelegationTokenResponse:
    return m.CreateDelegationTokenResponse(
        error_code=code,
        issue_timestamp_ms=NO_TIME,
        expiry_timestamp_ms=NO_TIME,
        max_timestamp_ms=NO_TIME,
    )


def _renew_error(
    message: m.RenewDelegationTokenRequest, version: int, code: ErrorCode, detail: str | None
) -> m.RenewDelegationTokenResponse:
    return m.RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=NO_TIME)


def _expire_error(
    message: m.ExpireDelegationTokenRequest, version: int, code: ErrorCode, detail: str | None
) -> m.ExpireDelegationTokenResponse:
    return m.ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=NO_TIME)


def _describe_error(
    message: m.DescribeDelegationTokenRequest, version: int, code: ErrorCode, detail: str | None
) -> m.DescribeDelegationTokenResponse:
    return m.DescribeDelegationTokenResponse(error_code=code)
