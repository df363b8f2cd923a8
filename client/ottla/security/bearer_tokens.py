"""The tokens of a client's OAUTHBEARER logins: where they come from, and when the next one is needed.

Called by `clients`. A token comes from a function of the application, from an OAuth server by the grant
client_credentials (KIP-768), from a file, or is unsecured. Before each login `TokenSource.prepare` is
awaited: it obtains a token if there is none, or the present one is to be refreshed by Kafka's
sasl.login.refresh.* (KIP-255). Sessions are renewed later in the life of a token than it is refreshed, so a
renewed session has a new token.

Invariant: while a token is valid, a failure to obtain the next one does not fail a login.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote_plus, urlencode

from ottla.environment import environment
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security import https
from ottla.security.oauth import TokenRefused, jwt_parts, unsecured_token
from ottla.security.tls import Get

log = logging.getLogger(__name__)

HANDLERS: Final = tuple(
    f"org.apache.kafka.common.security.oauthbearer.{name}"
    for name in (
        "OAuthBearerLoginCallbackHandler",
        "secured.OAuthBearerLoginCallbackHandler",
        "internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler",
    )
)
"""The login callback handlers of Kafka whose behaviour is built in."""
AFTER_FAILURE_MS: Final = 10_000
"""The pause after a refresh that failed while the present token is valid, as in Kafka."""
ANSWER_S: Final = 5.0
"""For one answer, by default, and for all attempts at one: a connection is opened within 10 s
(socket.connection.setup.timeout.ms), and what is wrong with the OAuth server should be told before."""
PERMANENT: Final = frozenset({*range(400, 408), *range(409, 416), 501, 505})
"""HTTP errors after which Kafka does not repeat a request."""
_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_STRING, _NUMBER, _LIST = (f"unsecuredLogin{kind}Claim_" for kind in ("String", "Number", "List"))


class Token(NamedTuple):
    """A token, and the extensions of the login (KIP-342)."""

    value: str
    extensions: Mapping[str, str]
    lifetime_ms: int | None = None
    """From its retrieval, for a token that does not itself tell."""


TokenProvider: TypeAlias = Callable[[], Any]
"""A function or coroutine function without arguments that returns a token as text; or an object with such a
method `token`, and optionally `extensions` that returns a dict, as for aiokafka and kafka-python."""
Retrieve: TypeAlias = Callable[[], Awaitable[Token]]


class RefreshRules(NamedTuple):
    """sasl.login.refresh.{window.factor,window.jitter,min.period.seconds,buffer.seconds}."""

    factor: float
    jitter: float
    least_s: int
    buffer_s: int

    @classmethod
    def of(cls, get: Get) -> RefreshRules:
        """Raises ValueError."""

        def within(name: str, default: float, least: float, most: float) -> float:
            text = get(f"sasl.login.refresh.{name}")
            try:
                value = default if text is None else float(text)
            except ValueError:
                value = -1
            if not least <= value <= most:
                raise ValueError(f"sasl.login.refresh.{name}={text}: must be from {least} to {most}")
            return value

        return cls(
            within("window.factor", 0.8, 0.5, 1.0),
            within("window.jitter", 0.05, 0.0, 0.25),
            int(within("min.period.seconds", 60, 0, 900)),
            int(within("buffer.seconds", 300, 0, 3600)),
        )

    def refresh_at(self, now_ms: int, issued_ms: int, expires_ms: int, uniform: Callable[[], float]) -> int:
        """When a token that was obtained now is to be refreshed, as wall time in ms."""
        part = self.factor + self.jitter * uniform()
        if (self.least_s + self.buffer_s) * 1000 > expires_ms - now_ms:
            return now_ms + int((expires_ms - now_ms) * part)
        at = issued_ms + int((expires_ms - issued_ms) * part)
        return max(min(at, expires_ms - self.buffer_s * 1000), now_ms + self.least_s * 1000)


class TokenSource:
    """See the module. Belongs to one event loop."""

    def __init__(self, retrieve: Retrieve, rules: RefreshRules | None = None) -> None:
        """Without rules a token is obtained for each login."""
        self._retrieve = retrieve
        self._rules = rules
        self._environment = environment.get()
        self._lock = asyncio.Lock()
        self._token: Token | None = None
        self._refresh_ms = 0
        self._expires_ms = 0

    @property
    def token(self) -> Token:
        """The present token, after `prepare`."""
        assert self._token is not None
        return self._token

    async def prepare(self) -> None:
        """Obtain a token if one is needed. Raises OSError, TimeoutError, and KafkaError for what does not get
        better."""
        async with self._lock:
            now_ms = self._environment.wall_ms()
            if self._token is None or now_ms >= self._refresh_ms:
                await self._renew(now_ms)

    async def _renew(self, now_ms: int) -> None:
        try:
            token = await self._retrieve()
        except (OSError, TimeoutError, KafkaError) as problem:
            if self._token is None or now_ms >= self._expires_ms:
                raise
            self._refresh_ms = now_ms + AFTER_FAILURE_MS
            log.warning("no new OAuth token, the present one is used: %s", problem)
            return
        now_ms = self._environment.wall_ms()
        issued_ms, expires_ms = _life_of(token, now_ms)
        self._token, self._expires_ms, self._refresh_ms = token, expires_ms, now_ms
        if self._rules is not None:
            uniform = self._environment.random.random
            self._refresh_ms = self._rules.refresh_at(now_ms, issued_ms, expires_ms, uniform)


def _life_of(token: Token, now_ms: int) -> tuple[int, int]:
    """When it was issued, and when it expires; a token that does not tell is used for one login."""
    try:
        _, claims, _ = jwt_parts(token.value)
        expires = claims["exp"] * 1000
        issued = claims.get("iat", now_ms / 1000) * 1000
        return min(int(issued), now_ms), int(expires)
    except (TokenRefused, LookupError, TypeError, ValueError, OverflowError):
        return now_ms, now_ms + (token.lifetime_ms or 0)


def rejected(reason: str) -> KafkaError:
    """The error of a login that fails before it reaches the broker."""
    return KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, reason)


# --- where tokens come from -------------------------------------------------------------------------------


def token_source(options: Mapping[str, str], get: Get, provider: TokenProvider | None) -> TokenSource:
    """By the settings of a client and the options of its login module. Raises ValueError."""
    handler = get("sasl.login.callback.handler.class")
    if handler and handler not in HANDLERS:
        raise ValueError(
            f"sasl.login.callback.handler.class={handler}: Java classes are not supported; {HANDLERS[0]} is"
        )
    rules, url = RefreshRules.of(get), get(_URL)
    if provider is not None:
        return TokenSource(_provided(provider), rules)
    if url:
        https.check_url(_URL, url)
        from_file = _from_file(url, options)
        return TokenSource(from_file) if from_file else TokenSource(_from_server(url, options, get), rules)
    if handler in HANDLERS[:2]:
        raise ValueError(f"{_URL}: not set, which {handler} needs")
    return TokenSource(_unsecured(options))


def _provided(provider: TokenProvider) -> Retrieve:
    obtain = getattr(provider, "token", provider)
    more = getattr(provider, "extensions", None)

    async def retrieve() -> Token:
        try:
            value = await _called(obtain)
            extensions = {} if more is None else await _called(more)
        except (OSError, TimeoutError, KafkaError):
            raise
        except Exception as problem:
            raise rejected(f"sasl.oauth.token.provider: {problem!r}") from problem
        if not isinstance(value, str) or not value:
            raise rejected("sasl.oauth.token.provider: it did not return a token as text")
        return Token(value, dict(extensions or {}))

    return retrieve


async def _called(function: Callable[[], Any]) -> Any:
    """The result of a coroutine function, or of a function, which is called in a thread."""
    if iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return await function()
    found = await asyncio.to_thread(function)
    return await found if isinstance(found, Awaitable) else found


def _extensions(options: Mapping[str, str], prefix: str = "extension_") -> dict[str, str]:
    return {name.removeprefix(prefix): text for name, text in options.items() if name.startswith(prefix)}


def _from_file(url: str, options: Mapping[str, str]) -> Retrieve | None:
    """A token from a file; it is read for each login, since it may be renewed."""
    path = https.file_of(url)
    if path is None:
        return None

    async def retrieve() -> Token:
        data = await asyncio.to_thread(https.read_file, path)
        return Token(data.decode("utf-8", "replace").strip(), _extensions(options))

    return retrieve


def _from_server(url: str, options: Mapping[str, str], get: Get) -> Retrieve:
    """A token by the grant client_credentials (RFC 6749, 4.4). Raises ValueError."""
    for name in ("clientId", "clientSecret"):
        if not options.get(name, "").strip():
            raise ValueError(f"sasl.jaas.config: {name} is not set, which {_URL} needs")
    account = [options["clientId"], options["clientSecret"]]
    if (get("sasl.oauthbearer.header.urlencode") or "").lower() == "true":
        account = [quote_plus(text) for text in account]
    headers = {
        "Accept": "application/json",
        "Authorization": f"Basic {base64.b64encode(':'.join(account).encode()).decode()}",
        "Cache-Control": "no-cache",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    form = {"grant_type": "client_credentials"}
    if scope := options.get("scope", "").strip():
        form["scope"] = scope

    def milliseconds(name: str, default: float) -> float:
        text = get(f"sasl.login.{name}")
        try:
            return default if not text else float(int(text))
        except ValueError:
            raise ValueError(f"sasl.login.{name}={text}: must be a whole number") from None

    pause_ms, most_ms = milliseconds("retry.backoff.ms", 100), milliseconds("retry.backoff.max.ms", 10_000)
    limits = [milliseconds(f"{step}.timeout.ms", 0) for step in ("connect", "read")]
    timeout_s = max(limits) / 1000 or ANSWER_S
    now_s = environment.get().monotonic_s

    def ask() -> bytes:
        return https.request(
            url, body=urlencode(form).encode(), headers=headers, options=options, timeout_s=timeout_s
        )

    async def retrieve() -> Token:
        began, attempt = now_s(), 0
        while True:
            try:
                return _of_answer(await asyncio.to_thread(ask), options)
            except https.HttpProblem as problem:
                if problem.status in PERMANENT:
                    raise rejected(f"{_URL}={url}: {problem}") from None
                wait_s = pause_ms * 2.0 ** min(attempt, 32) / 1000
                if now_s() - began + wait_s >= min(most_ms / 1000, ANSWER_S):
                    raise https.HttpProblem(f"{_URL}={url}: {problem}", problem.status) from None
                log.warning("%s=%s: %s; it is asked again in %.1f s", _URL, url, problem, wait_s)
            attempt += 1
            await asyncio.sleep(wait_s)

    return retrieve


def _of_answer(data: bytes, options: Mapping[str, str]) -> Token:
    """The token in an answer of RFC 6749, 5.1. The message of an error has no part of the answer."""
    try:
        answer = json.loads(data)
        value, expires_in = answer["access_token"], answer.get("expires_in")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise rejected(f"{_URL}: its answer has no access_token") from None
    if not isinstance(value, str) or not value.strip():
        raise rejected(f"{_URL}: its access_token is no text")
    known = isinstance(expires_in, int) and not isinstance(expires_in, bool)
    return Token(value.strip(), _extensions(options), expires_in * 1000 if known else None)


def _unsecured(options: Mapping[str, str]) -> Retrieve:
    """A token without a signature: its claims are options, as of OAuthBearerUnsecuredLoginCallbackHandler.
    Raises ValueError."""
    name = options.get("unsecuredLoginPrincipalClaimName", "sub")
    claims: dict[str, object] = dict(_extensions(options, _STRING))
    claims |= {claim: float(text) for claim, text in _extensions(options, _NUMBER).items()}
    for claim, text in _extensions(options, _LIST).items():
        claims[claim] = text[1:].split(text[0]) if text else []
    if name not in claims:
        raise ValueError(f"sasl.jaas.config: {_STRING}{name} is not set, nor {_URL}")
    lifetime_s = int(options.get("unsecuredLoginLifetimeSeconds", "3600"))
    wall_ms = environment.get().wall_ms
    extensions = _extensions(options, "unsecuredLoginExtension_")

    async def retrieve() -> Token:
        now_s = wall_ms() / 1000
        return Token(unsecured_token({"iat": now_s, "exp": now_s + lifetime_s, **claims}), extensions)

    return retrieve
