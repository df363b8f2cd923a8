"""Signed tokens of OAUTHBEARER (KIP-768): key sets (JWKS, RFC 7517), and the rules by which a JWT is valid.

Called by the broker's listeners. PyJWT verifies signatures; keys are selected, and claims validated, as
Kafka's OAuthBearerValidatorCallbackHandler does it.

Invariants: a key verifies only algorithms of its own type, all of them with a public key, so that a token
cannot choose `none`, or HMAC with a public key as its secret; claims are looked at after the signature.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from ottla.security.oauth import BearerToken, TokenRefused, milliseconds

_ALGORITHMS: Final = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
"""The type of the keys of an algorithm."""
RSA_BITS_MIN: Final = 2048
"""Kafka does not verify by shorter keys either."""
_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}


class PublicKey(NamedTuple):
    """A key of a key set. Empty texts: not in the set."""

    id: str
    type: str
    algorithm: str
    curve: str
    key: Any


KeySet = Sequence[PublicKey]


def parse_key_set(data: bytes) -> KeySet:
    """A JWKS' public keys for signatures, without those that cannot be used. Raises ValueError when there is
    none."""
    try:
        entries = json.loads(data)["keys"]
        found = tuple(key for entry in entries if (key := _public_key(entry)) is not None)
    except (ValueError, TypeError, LookupError, RecursionError) as problem:
        raise ValueError(f"not a key set: {problem}") from None
    if not found:
        raise ValueError("not a key set: it has no public key for signatures")
    return found


def _public_key(entry: Any) -> PublicKey | None:
    import jwt

    if not isinstance(entry, dict) or entry.get("kty") == "oct" or entry.get("use", "sig") != "sig":
        return None
    try:
        key = jwt.PyJWK(entry).key
    except jwt.PyJWTError:
        return None
    if entry["kty"] == "RSA" and key.key_size < RSA_BITS_MIN:
        return None
    kid, kty, alg, crv = (str(entry.get(name, "")) for name in ("kid", "kty", "alg", "crv"))
    return PublicKey(kid, kty, alg, crv, key)


def select_key(keys: KeySet, key_id: str | None, algorithm: str) -> PublicKey | None:
    """The key that a token names, or without a name the first one that can have signed it; None if there is
    none."""
    kind, curve = _ALGORITHMS.get(algorithm), _CURVES.get(algorithm)
    for key in keys:
        if (
            key.type == kind
            and (key_id is None or key.id == key_id)
            and key.algorithm in ("", algorithm)
            and (curve is None or key.curve == curve)
        ):
            return key
    return None


Select = Callable[[str | None, str], PublicKey | None]
"""`select_key` in the present key set: (key id, algorithm) -> the key."""


class SignedRules(NamedTuple):
    """The rules for signed tokens: sasl.oauthbearer.*."""

    audience: tuple[str, ...]
    issuer: str | None
    skew_s: int
    scope_claim: str
    sub_claim: str

    def validate(self, token: str, select: Select, now_ms: int) -> BearerToken:
        """Raises TokenRefused, whose message is for the log: it has no part of the token but names."""
        claims = _verified(token, select)
        self._check_addressees(claims)
        expires_s = self._check_times(claims, now_ms / 1000)
        self._check_scope(claims.get(self.scope_claim))
        principal = claims.get(self.sub_claim)
        if not isinstance(principal, str) or not principal.strip():
            raise TokenRefused(f"no claim {self.sub_claim}")
        return BearerToken(principal, milliseconds(expires_s))

    def _check_addressees(self, claims: dict[str, Any]) -> None:
        given = claims.get("aud")
        audience = [given] if isinstance(given, str) else given
        if given is None:
            if self.audience:
                raise TokenRefused("no claim aud")
        elif not isinstance(audience, list) or not all(isinstance(each, str) for each in audience):
            raise TokenRefused("claim aud is no text, nor a list of texts")
        elif not self.audience:
            raise TokenRefused("it is for an audience, and sasl.oauthbearer.expected.audience is not set")
        elif not set(audience) & set(self.audience):
            raise TokenRefused("it is for another audience")
        if self.issuer is not None and claims.get("iss") != self.issuer:
            raise TokenRefused("it is of another issuer" if "iss" in claims else "no claim iss")

    def _check_times(self, claims: dict[str, Any], now_s: float) -> int:
        """As in Kafka, a token that was issued in the future is valid. Returns when it expires."""
        expires, issued, starts = (_seconds(claims, name) for name in ("exp", "iat", "nbf"))
        if expires is None or issued is None:
            raise TokenRefused("no claim exp" if expires is None else "no claim iat")
        if expires <= now_s - self.skew_s:
            raise TokenRefused("it has expired")
        if expires < issued or (starts is not None and expires < starts):
            raise TokenRefused("it expires before it is valid")
        if starts is not None and starts > now_s + self.skew_s:
            raise TokenRefused("it is not valid yet")
        if issued < 0:
            raise TokenRefused("claim iat is negative")
        return expires

    def _check_scope(self, scope: object) -> None:
        """Of several scopes none may be empty or there twice; Kafka's authorizer does not use them."""
        scopes = [scope] if isinstance(scope, str) else scope
        if not isinstance(scopes, list):
            return
        if not all(isinstance(each, str) and each.strip() for each in scopes):
            raise TokenRefused(f"claim {self.scope_claim} has an item that is no text, or is empty")
        if len(set(scopes)) < len(scopes):
            raise TokenRefused(f"claim {self.scope_claim} has an item twice")


def _verified(token: str, select: Select) -> dict[str, Any]:
    """The claims of a token with a valid signature. Raises TokenRefused."""
    import jwt

    try:
        header = jwt.get_unverified_header(token)
        key_id, algorithm = header.get("kid"), header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
            raise TokenRefused("its algorithm is not one with a public key")
        if "crit" in header:
            raise TokenRefused("it has critical extensions, and none is supported")
        key = select(key_id, algorithm)
        if key is None:
            raise TokenRefused("signed with a key that is not in the key set")
        claims = jwt.decode(
            token,
            key.key,
            algorithms=[algorithm],
            options={  # validated by SignedRules
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "verify_aud": False,
                "verify_iss": False,
            },
        )
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as problem:
        raise TokenRefused(f"{type(problem).__name__}: {problem}") from None
    if not isinstance(claims, dict):
        raise TokenRefused("its claims are no object")
    return claims


def _seconds(claims: dict[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(f"claim {name} is not a time")
    try:
        return int(value)
    except (ValueError, OverflowError):  # NaN, infinity
        raise TokenRefused(f"claim {name} is not a time") from None
