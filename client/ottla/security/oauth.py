"""OAUTHBEARER (RFC 7628, KIP-255, KIP-768): authentication with a JWT.

Called by the server's authenticator (`OAuthServer`) and by clients (`first_message`). By default Kafka
accepts unsecured tokens, which are for development only. With a key set (JWKS) the signature is verified by
PyJWT, and issuer, audience and times are checked.
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
_AUTH: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")
_GOT_IT: Final = b"\x01"
_INT64_MAX: Final = (1 << 63) - 1
SIGNATURES: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""The algorithms with a public key."""


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


def first_message(token: str) -> bytes:
    """The first message of a client."""
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


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
        header, body, signature = _parts(token)
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
        return BearerToken(principal, _milliseconds(expires))


def unsecured_token(claims: Mapping[str, Any]) -> str:
    """An unsecured token with these claims, for clients."""

    def encoded(value: Mapping[str, Any]) -> str:
        data = json.dumps(value, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    return f"{encoded({'alg': 'none'})}.{encoded(claims)}."


def _parts(token: str) -> tuple[dict[str, Any], dict[str, Any], str]:
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


def _milliseconds(seconds: float) -> int:
    """Limited to an int64, as Java's Math.round: JSON numbers may have any size, and 1e999 is infinity."""
    largest = _INT64_MAX // 1000
    return int(max(-largest, min(seconds, largest)) * 1000)


# --- signed tokens ---------------------------------------------------------------------------------------


class SignedRules(NamedTuple):
    """The rules for signed tokens: sasl.oauthbearer.*."""

    audience: tuple[str, ...]
    issuer: str | None
    skew_s: int
    sub_claim: str

    def validate(self, token: str, key_of: Callable[[str | None], Any]) -> BearerToken:
        """`key_of` returns the key with an id, None if there is none. Raises TokenRefused."""
        import jwt

        try:
            key = key_of(jwt.get_unverified_header(token).get("kid"))
            if key is None:
                raise TokenRefused("signed with a key that is not in the key set")
            claims = jwt.decode(
                token,
                key,
                algorithms=list(SIGNATURES),
                audience=list(self.audience) or None,
                issuer=self.issuer,
                leeway=self.skew_s,
                options={"require": ["exp", "iat"], "verify_aud": bool(self.audience)},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as problem:
            raise TokenRefused(f"{type(problem).__name__}: {problem}") from None
        principal = claims.get(self.sub_claim)
        if not isinstance(principal, str) or not principal.strip():
            raise TokenRefused(f"no claim {self.sub_claim}")
        return BearerToken(principal, _milliseconds(int(claims["exp"])))


def parse_key_set(data: bytes) -> dict[str | None, Any]:
    """A JWKS' public keys by their ids; under None the only one, if there is but one. Raises ValueError."""
    import jwt

    try:
        keys = jwt.PyJWKSet.from_dict(json.loads(data)).keys
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError) as problem:
        raise ValueError(f"not a key set: {problem}") from None
    found: dict[str | None, Any] = {key.key_id: key for key in keys if key.key_type != "oct"}
    if len(found) == 1:
        found[None] = next(iter(found.values()))
    return found
