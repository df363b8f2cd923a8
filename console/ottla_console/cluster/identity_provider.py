"""An OpenID provider: its discovery document, its keys, and tokens by the authorization code (OpenID Connect
Core 1.0, RFC 6749, RFC 7636).

Called by `web.login` for log-ins and by `cluster.bearer` for their renewal. HTTP runs in threads. Invariants:
an ID token is used only after its signature and claims are checked; no text that is raised has a token, a
code or a secret in it, nor what the provider has sent but the name of its error.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, TypeAlias
from urllib.parse import quote_plus, urlencode, urlsplit

import jwt

from ottla.security import https
from ottla.security.signed_tokens import KeySet, PublicKey, parse_key_set, select_key
from ottla.security.stores import StoreProblem
from ottla_console.settings import OpenIdClient, is_safe

Fetch: TypeAlias = Callable[..., bytes]
"""`ottla.security.https.request`."""
REQUEST_S: Final = 5.0
DISCOVERY_S: Final = 3600.0
KEYS_PAUSE_S: Final = 30.0
"""Between two requests for the keys: tokens with unknown keys must not make more."""
LEEWAY_S: Final = 60
_ERROR: Final = re.compile(r'"error"\s*:\s*"([a-zA-Z_]{1,60})"')


class ProviderProblem(Exception):
    """The provider did not do it; the text is for people."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused
        """Whether it has refused the code or the token, so that another attempt is in vain."""


@dataclass(frozen=True)
class Tokens:
    """What the provider has issued."""

    access: str = field(repr=False)
    refresh: str = field(repr=False)
    """Empty: none."""
    id: str = field(repr=False)


@dataclass(frozen=True)
class Discovery:
    """Of .well-known/openid-configuration."""

    authorization: str
    token: str
    keys: str
    revocation: str
    """Empty: not there; likewise `end_session`."""
    end_session: str
    posts_secret: bool
    """The secret of the client is in the form, not in a header."""

    @classmethod
    def of(cls, document: object, issuer: str) -> Discovery:
        """Raises ProviderProblem."""
        if not isinstance(document, dict) or document.get("issuer") != issuer:
            raise ProviderProblem(f"its discovery document is not that of the issuer {issuer}")

        def url(name: str, *, needed: bool = True) -> str:
            found = document.get(name)
            if found is None and not needed:
                return ""
            if not isinstance(found, str) or not is_safe(found):
                raise ProviderProblem(f"its discovery document has no usable {name}")
            return found

        methods = document.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        return cls(
            url("authorization_endpoint"),
            url("token_endpoint"),
            url("jwks_uri"),
            url("revocation_endpoint", needed=False),
            url("end_session_endpoint", needed=False),
            "client_secret_basic" not in methods and "client_secret_post" in methods,
        )


class IdentityProvider:
    """See the module. One for each cluster with log-in by OIDC."""

    def __init__(
        self,
        client: OpenIdClient,
        monotonic_s: Callable[[], float],
        fetch: Fetch = https.request,
    ) -> None:
        self._client = client
        self._now_s = monotonic_s
        self._fetch = fetch
        self._discovery: Discovery | None = None
        self._discovered_s = 0.0
        self._keys: KeySet = ()
        self._keys_s: float | None = None
        self._options = trust_of(client)

    @property
    def name(self) -> str:
        """For people: sso.example."""
        return urlsplit(self._client.issuer).hostname or self._client.issuer

    @property
    def end_session_url(self) -> str:
        """Where a person logs out of the provider; empty if it is not known."""
        found = "" if self._discovery is None else self._discovery.end_session
        return _with_query(found, {"client_id": self._client.id}) if found else ""

    # --- a log-in ---

    async def authorization_url(self, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """Where the browser goes to log in. Raises ProviderProblem."""
        discovery = await self.discover()
        digest = sha256(verifier.encode()).digest()
        query = {
            **self._client.parameters,
            "response_type": "code",
            "client_id": self._client.id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self._client.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return _with_query(discovery.authorization, query)

    async def exchange(self, code: str, redirect_uri: str, verifier: str, nonce: str) -> Tokens:
        """The tokens for a code, with a checked ID token. Raises ProviderProblem."""
        form = {
            **self._client.parameters,
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        tokens = await self._tokens(form)
        await self._check_id_token(tokens.id, nonce)
        return tokens

    async def refresh(self, tokens: Tokens) -> Tokens:
        """New tokens; the provider may give a new refresh token, or not. Raises ProviderProblem."""
        form = {
            **self._client.parameters,
            "grant_type": "refresh_token",
            "refresh_token": tokens.refresh,
        }
        new = await self._tokens(form)
        return new if new.refresh else Tokens(new.access, tokens.refresh, new.id)

    async def revoke(self, tokens: Tokens) -> None:
        """Make the refresh token worthless (RFC 7009). Raises ProviderProblem."""
        discovery = await self.discover()
        if discovery.revocation and tokens.refresh:
            form = {"token": tokens.refresh, "token_type_hint": "refresh_token"}
            await self._post(discovery.revocation, form)

    # --- checks ---

    async def _check_id_token(self, token: str, nonce: str) -> None:
        if not token:
            raise ProviderProblem("it gave no ID token: scopes must have openid")
        try:
            header = jwt.get_unverified_header(token)
            key_id, algorithm = header.get("kid"), str(header.get("alg"))
            key = await self._key(key_id, algorithm)
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=self._client.id,
                issuer=self._client.issuer,
                leeway=LEEWAY_S,
                options={"require": ["iss", "sub", "aud", "exp", "iat"]},
            )
        except jwt.PyJWTError as error:
            raise ProviderProblem(f"its ID token is not valid: {type(error).__name__}") from None
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if several else self._client.id) != self._client.id:
            raise ProviderProblem("its ID token was issued to another client")
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise ProviderProblem("its ID token belongs to another log-in")

    async def _key(self, key_id: str | None, algorithm: str) -> PublicKey:
        key = select_key(self._keys, key_id, algorithm)
        if key is None and (self._keys_s is None or self._now_s() - self._keys_s >= KEYS_PAUSE_S):
            discovery = await self.discover()
            data = await self._get(discovery.keys)
            self._keys_s = self._now_s()
            try:
                self._keys = parse_key_set(data)
            except ValueError as error:
                raise ProviderProblem(f"its keys cannot be used: {error}") from None
            key = select_key(self._keys, key_id, algorithm)
        if key is None:
            raise ProviderProblem("its ID token is signed by no key of its key set that has a public part")
        return key

    # --- HTTP ---

    async def discover(self) -> Discovery:
        """The discovery document, kept for an hour. Raises ProviderProblem."""
        if self._discovery is None or self._now_s() - self._discovered_s >= DISCOVERY_S:
            data = await self._get(f"{self._client.issuer.rstrip('/')}/.well-known/openid-configuration")
            self._discovery = Discovery.of(_json(data), self._client.issuer)
            self._discovered_s = self._now_s()
        return self._discovery

    async def _tokens(self, form: Mapping[str, str]) -> Tokens:
        discovery = await self.discover()
        answer = _json(await self._post(discovery.token, form))
        if not isinstance(answer, dict) or str(answer.get("token_type", "")).lower() != "bearer":
            raise ProviderProblem("it gave no bearer token")
        access, refresh, id_ = (answer.get(f"{name}_token") or "" for name in ("access", "refresh", "id"))
        if not all(isinstance(each, str) for each in (access, refresh, id_)) or not access:
            raise ProviderProblem("it gave no access token")
        return Tokens(access, refresh, id_)

    async def _get(self, url: str) -> bytes:
        return await self._request(url, None, {"Accept": "application/json"})

    async def _post(self, url: str, form: Mapping[str, str]) -> bytes:
        client = self._client
        headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
        posts = self._discovery is not None and self._discovery.posts_secret
        if client.secret and not posts:
            account = f"{quote_plus(client.id)}:{quote_plus(client.secret)}"  # RFC 6749, 2.3.1
            headers["Authorization"] = f"Basic {base64.b64encode(account.encode()).decode()}"
        else:
            form = {**form, "client_id": client.id}
            if client.secret:
                form["client_secret"] = client.secret
        return await self._request(url, urlencode(form).encode(), headers)

    async def _request(self, url: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        def call() -> bytes:
            return self._fetch(url, body=body, headers=headers, options=self._options, timeout_s=REQUEST_S)

        try:
            return await asyncio.to_thread(call)
        except https.HttpProblem as problem:
            if not problem.status:
                raise ProviderProblem(f"no response of {urlsplit(url).netloc}: {problem}") from None
            named = _ERROR.search(str(problem))
            text = f"HTTP {problem.status}" + (f" {named[1]}" if named else "")
            refused = problem.status in (400, 401, 403)
            raise ProviderProblem(f"{urlsplit(url).path} responded {text}", refused=refused) from None
        except (OSError, StoreProblem) as problem:
            raise ProviderProblem(str(problem)) from None


def trust_of(client: OpenIdClient) -> dict[str, str]:
    """The ssl.* options of connections to the provider."""
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": client.ca} if client.ca else {}


def _with_query(url: str, query: Mapping[str, str]) -> str:
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(query)}"


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ProviderProblem("its answer is not JSON") from None
