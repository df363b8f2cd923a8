"""Delegation tokens in the metadata store (DelegationTokenManager): /delegation_token/tokens.

Called by the broker (start, stop, `expire` about once a second), by the handlers, and by SCRAM for every
client that authenticates with a token. As in Kafka, a change writes the token's node, and then a sequential
notification with the token's id, which every broker reads again. Late and repeated notifications are
harmless.

Invariant: this broker's own changes are visible when the call returns.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import Callable
from typing import Final

from ottla.metadata.client_quotas import desanitize, sanitize
from ottla.metadata.config import BrokerConfig
from ottla.metadata.notifications import Notifications
from ottla.metadata.store import (
    MetadataStore,
    NodeExists,
    NoNode,
    StoreError,
    ensure_path,
)
from ottla.security.delegation_tokens import Lifetimes, Token, hmac_of
from ottla.security.principals import Principal
from ottla.security.scram import ScramCredential, new_credential

log = logging.getLogger(__name__)

TOKENS: Final = "/delegation_token/tokens"
CHANGES: Final = "/delegation_token/token_changes"
CHANGE_PREFIX: Final = f"{CHANGES}/token_change_"
_VERSION: Final = 3


class DelegationTokens:
    """Loads, follows and changes tokens; disabled without a secret key. `clock` returns wall time in ms."""

    def __init__(self, config: BrokerConfig, clock: Callable[[], int]) -> None:
        self._secret = (
            config.get_optional_str("delegation.token.secret.key")
            or config.get_optional_str("delegation.token.master.key")
            or ""
        )
        self.lifetimes = Lifetimes(
            config.get_int("delegation.token.max.lifetime.ms"),
            config.get_int("delegation.token.expiry.time.ms"),
        )
        self._check_interval_ms = config.get_int("delegation.token.expiry.check.interval.ms")
        self._clock = clock
        self._checked_ms = clock()
        self._known: dict[str, Token] = {}
        self._by_hmac: dict[bytes, str] = {}
        self._credentials: dict[tuple[str, str], ScramCredential] = {}
        self._store: MetadataStore | None = None
        self._notifications: Notifications | None = None
        self._expiring: asyncio.Task[None] | None = None

    @property
    def enabled(self) -> bool:
        return bool(self._secret)

    async def start(self, store: MetadataStore) -> None:
        """Load all tokens, and follow their changes. Raises StoreError."""
        if not self.enabled:
            return
        self._store = store
        await ensure_path(store, TOKENS)
        await ensure_path(store, CHANGES)
        self._notifications = notifications = Notifications(
            store, CHANGES, "delegation tokens", self._on_changes, self._clock
        )
        await notifications.watch()
        for token_id in await store.children(TOKENS):
            await self._reload(token_id)
        notifications.follow()

    async def stop(self) -> None:
        if self._notifications is not None:
            await self._notifications.stop()
        if self._expiring is not None:
            self._expiring.cancel()
            await asyncio.gather(self._expiring, return_exceptions=True)

    # --- reading ------------------------------------------------------------------------------------

    def all(self) -> list[Token]:
        return list(self._known.values())

    def hmac(self, token: Token) -> bytes:
        return hmac_of(token.id, self._secret)

    def by_hmac(self, code: bytes) -> Token | None:
        return self._known.get(self._by_hmac.get(code, ""))

    def lookup(self, mechanism: str, token_id: str) -> tuple[ScramCredential, str, int] | None:
        """For SCRAM: a token's credential, its owner's name, and its expiry time in ms."""
        token = self._known.get(token_id)
        if token is None:
            return None
        made = self._credentials.get((mechanism, token_id))
        if made is None:
            made = new_credential(mechanism, base64.b64encode(self.hmac(token)).decode())
            self._credentials[mechanism, token_id] = made
        return made, token.owner.name, token.expires_ms

    # --- changes ------------------------------------------------------------------------------------

    async def put(self, token: Token) -> None:
        """Create or change a token. Raises StoreError."""
        store = self._require_store()
        path, data = f"{TOKENS}/{token.id}", encode(token)
        try:
            await store.set(path, data)
        except NoNode:
            with contextlib.suppress(NodeExists):
                await store.create(path, data, make_parents=True)
        self._cache(token)
        await self._announce(token.id)

    async def remove(self, token_id: str) -> None:
        """Delete a token. Raises StoreError."""
        with contextlib.suppress(NoNode):
            await self._require_store().delete(f"{TOKENS}/{token_id}")
        self._remove_cached(token_id)
        await self._announce(token_id)

    def expire(self, *, is_controller: bool) -> None:
        """Delete expired tokens every delegation.token.expiry.check.interval.ms, on the controller."""
        now_ms = self._clock()
        if not self.enabled or now_ms - self._checked_ms < self._check_interval_ms:
            return
        self._checked_ms = now_ms
        if is_controller and (self._expiring is None or self._expiring.done()):
            self._expiring = asyncio.ensure_future(self._remove_expired(now_ms))

    async def _remove_expired(self, now_ms: int) -> None:
        for token in self.all():
            if token.is_over(now_ms):
                log.info("Delegation token expired for token: %s, owner: %s", token.id, token.owner)
                try:
                    await self.remove(token.id)
                except StoreError as problem:
                    log.warning("Failed to delete an expired delegation token: %s", problem)

    def _require_store(self) -> MetadataStore:
        assert self._store is not None, "`start` with a secret key must come first"
        return self._store

    async def _announce(self, token_id: str) -> None:
        await self._require_store().create(
            CHANGE_PREFIX, token_id.encode(), sequential=True, make_parents=True
        )

    def _cache(self, token: Token) -> None:
        self._known[token.id] = token
        self._by_hmac[self.hmac(token)] = token.id

    def _remove_cached(self, token_id: str) -> None:
        token = self._known.pop(token_id, None)
        if token is not None:
            self._by_hmac.pop(self.hmac(token), None)
        for key in [key for key in self._credentials if key[1] == token_id]:
            del self._credentials[key]

    # --- following ----------------------------------------------------------------------------------

    async def _on_changes(self, changes: list[bytes]) -> None:
        for token_id in dict.fromkeys(data.decode("utf-8", "replace") for data in changes):
            await self._reload(token_id)

    async def _reload(self, token_id: str) -> None:
        found = await self._require_store().get(f"{TOKENS}/{token_id}")
        if found is None:
            self._remove_cached(token_id)
            return
        try:
            self._cache(decode(found[0]))
        except ValueError as problem:
            log.error("Ignoring the delegation token %s: %s", token_id, problem)


def encode(token: Token) -> bytes:
    """The token's node."""
    value = {
        "version": _VERSION,
        "owner": sanitize(str(token.owner)),
        "tokenRequester": sanitize(str(token.requester)),
        "renewers": [sanitize(str(renewer)) for renewer in token.renewers],
        "issueTimestamp": token.issued_ms,
        "maxTimestamp": token.max_ms,
        "expiryTimestamp": token.expires_ms,
        "tokenId": token.id,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode(data: bytes) -> Token:
    """The token of a node. Raises ValueError."""
    try:
        value = json.loads(data)
        if not 0 < value["version"] <= _VERSION:
            raise ValueError(f"unsupported version {value['version']}")
        owner = _principal(value["owner"])
        requester = _principal(value["tokenRequester"]) if value["version"] >= _VERSION else owner
        times = (int(value[name]) for name in ("issueTimestamp", "maxTimestamp", "expiryTimestamp"))
        return Token(value["tokenId"], owner, requester, tuple(map(_principal, value["renewers"])), *times)
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"not a delegation token: {problem!r}") from None


def _principal(text: str) -> Principal:
    return Principal.parse(desanitize(text) or "")
