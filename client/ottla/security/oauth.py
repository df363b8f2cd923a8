"""OAUTHBEARER (RFC 7628, KIP-255, KIP-768): authentication with a JWT.

Called by the server's authenticator (`OAuthServer`) and by clients (`first_message`, `unsecured_token`). By
default Kafka accepts unsecured tokens, which are for development only (`UnsecuredRules`); `signed_tokens`
has the rules for others.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ottla.security.mechanisms import SaslFailed

_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PAIRS: Final = "(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*"
_FIRST: Final = re.compile(f"n,(?:a=(?P<authorization>{_NAME}))?,\x01(?P<pairs>{_PAIRS})\x01")
_TOKEN: Final = "[-_~+/.a-zA-Z0-9]+=*"
_AUTH: Final = re.compile(rf"(?P<scheme>\w+) +(?P<token>{_TOKEN})")
_GOT_IT: Final = b"\x01"
_INT64_MAX: Final = (1 << 63) - 1
_EXTENSION: Final = re.compile("[A-Za-z]+=[\x21-\x7e \t\r\n]+")


class BearerToken(NamedTuple):
    """The claims of a valid token that are used."""

    principal: str
    expires_ms: int


class TokenRefused(Exception):
    """The token is not valid, or lacks `scope`, which is sent to the client; the reason is for the log."""

    def __init__(self, reason: str, scope: str | None = None) -> None:
        super().__init__(reason)
        self.scope = scope


Validate = Callable[[str, int], BearerToken]
"""(token, wall time in ms) -> its claims. Raises TokenRefused."""


class OAuthServer:
    """The broker's side of one exchange."""

    def __init__(self, validate: Validate, on_refused: Callable[[str], None]) -> None:
        """`on_refused` is called with the reason when a token is rejected."""
        self.complete = False
        self.authorization_id = ""
        self.expires_ms: int | None = None
        self.by_token = False
        self._validate = validate
        self._on_refused = on_refused
        self._error: str | None = None

    def evaluate(self, token: bytes, now_ms: int) -> bytes:
        if token == _GOT_IT and self._error is not None:
            raise SaslFailed(self._error)
        self._error = None
        value, wanted = _parse(token)
        try:
            found = self._validate(value, now_ms)
        except TokenRefused as refusal:
            self._on_refused(str(refusal))
            status = "invalid_token" if refusal.scope is None else "insufficient_scope"
            scope = "" if refusal.scope is None else f', "scope":"{refusal.scope}"'
            self._error = f'{{"status":"{status}"{scope}}}'
            return self._error.encode()
        if wanted and wanted != found.principal:
            raise SaslFailed(
                f"Authentication failed: Client requested an authorization id ({wanted}) that is different "
                f"from the token's principal name ({found.principal})"
            )
        self.authorization_id, self.expires_ms, self.complete = found.principal, found.expires_ms, True
        return b""


def _parse(message: bytes) -> tuple[str, str]:
    """The token, and the authorization id that the client requests. Raises SaslFailed."""
    found = _FIRST.fullmatch(message.decode("utf-8", "replace"))
    if found is None:
        raise SaslFailed
    pairs = dict(pair.partition("=")[::2] for pair in found["pairs"].split("\x01") if pair)
    auth = _AUTH.fullmatch(pairs.get("auth", ""))
    if auth is None or auth["scheme"].lower() != "bearer":
        raise SaslFailed
    return auth["token"], found["authorization"] or ""


def first_message(token: str, extensions: Mapping[str, str] | None = None) -> bytes:
    """The first message of a client; the extensions (KIP-342) are names of letters with values. Raises
    SaslFailed."""
    if not re.fullmatch(_TOKEN, token):
        raise SaslFailed("the token has characters that a bearer token must not have")
    pairs = [f"{name}={value}" for name, value in (extensions or {}).items()]
    if "auth" in (extensions or {}) or not all(map(_EXTENSION.fullmatch, pairs)):
        raise SaslFailed("an extension's name must have letters only, and its value printable characters")
    return "\x01".join(("n,,", f"auth=Bearer {token}", *pairs, "", "")).encode()


# --- unsecured tokens ------------------------------------------------------------------------------------


class UnsecuredRules(NamedTuple):
    """The rules for unsecured tokens: the login module's options unsecuredValidator…"""

    principal_claim: str
    scope_claim: str
    required_scope: tuple[str, ...]
    skew_ms: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> UnsecuredRules:
        """Raises ValueError."""

        def option(name: str) -> str:
            return options.get(f"unsecuredValidator{name}", "").strip()

        skew_ms = int(option("AllowableClockSkewMs") or 0)
        if skew_ms < 0:
            raise ValueError(f"Allowable clock skew millis must not be negative: {skew_ms}")
        return cls(
            option("PrincipalClaimName") or "sub",
            option("ScopeClaimName") or "scope",
            tuple(option("RequiredScope").split()),
            skew_ms,
        )

    def validate(self, token: str, now_ms: int) -> BearerToken:
        """As `Validate`."""
        header, body, signature = jwt_parts(token)
        if header.get("alg") != "none" or signature:
            raise TokenRefused("the token is signed, and no key set is configured")
        principal = body.get(self.principal_claim)
        if not isinstance(principal, str) or not principal.strip():
            raise TokenRefused(f"no claim {self.principal_claim}")
        issued, expires = _time(body, "iat"), _time(body, "exp")
        if expires is None:
            raise TokenRefused("no claim exp")
        if issued is not None and issued * 1000 > now_ms + self.skew_ms:
            raise TokenRefused("issued in the future")
        if now_ms - self.skew_ms >= expires * 1000:
            raise TokenRefused("expired")
        if issued is not None and expires <= issued:
            raise TokenRefused("expires before it was issued")
        scope = body.get(self.scope_claim, "")
        present = (
            [scope.strip()] if isinstance(scope, str) else scope
        )  # a string is one scope, even with spaces
        if not isinstance(present, list) or not set(self.required_scope) <= set(map(str, present)):
            raise TokenRefused("a scope is missing", f"[{', '.join(self.required_scope)}]")
        return BearerToken(principal, milliseconds(expires))


def unsecured_token(claims: Mapping[str, Any]) -> str:
    """An unsecured token with these claims, for clients."""

    def encoded(value: Mapping[str, Any]) -> str:
        data = json.dumps(value, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    return f"{encoded({'alg': 'none'})}.{encoded(claims)}."


def jwt_parts(token: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The header, the claims and the signature of a JWT, unverified. Raises TokenRefused."""
    try:
        header, body, signature = token.split(".")
        return _json(header), _json(body), signature
    except (ValueError, RecursionError) as problem:
        raise TokenRefused(f"not a JWT: {problem}") from None


def _json(part: str) -> dict[str, Any]:
    value = json.loads(
        base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)), parse_constant=_refuse_constant
    )
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise TokenRefused(f"claim {name} is not a time")
    return value


def milliseconds(seconds: float) -> int:
    """Seconds as ms, limited to an int64, as Java's Math.round: JSON numbers may have any size, and 1e999 is
    infinity."""
    largest = _INT64_MAX // 1000
    return int(max(-largest, min(seconds, largest)) * 1000)
