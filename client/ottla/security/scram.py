"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802), both sides, and credentials as Kafka stores them.

Called by the server's authenticator, by clients (brokers, tools), and where credentials are set or read. A
credential does not contain the password: with it the broker verifies that the client has the password, and
proves to the client that it has the credential. With the extension `tokenauth=true` the name is a delegation
token's id and the password its HMAC (KIP-48).

The server's first message contains the user's salt. For a name without a credential it contains a made-up
one, and the exchange fails at the proof as for a wrong password: it does not reveal which users exist.
Kafka's server fails at the first message there.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.environment import environment
from ottla.security.mechanisms import SaslFailed

MECHANISMS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
TYPES: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""Mechanisms by their numbers in requests (KIP-554)."""
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
JAVA_SALT_BITS: Final = 130
"""Java clients make a salt of the base-36 digits of a random number with so many bits."""
_JAVA_SALT: Final = re.compile(rb"[0-9a-z]{20,26}")
_HEX_SALT: Final = re.compile(rb"[0-9a-f]{32}")
_SASL_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"  # of ASCII, as in Kafka
_SAFE: Final = r"[^=,\0][^,\0]*"
_PRINTABLE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?"
_EXTENSIONS: Final = r"(?:,[A-Za-z]+=[^,\0]+)*"
_CLIENT_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authorization>{_SASL_NAME}))?,(?:m={_SAFE},)?"
    rf"(?P<bare>n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_PRINTABLE})(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<bare>c=(?P<channel>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_SERVER_FIRST: Final = re.compile(
    rf"(?:m={_SAFE},)?r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>\d+){_EXTENSIONS}"
)
_SERVER_FINAL: Final = re.compile(rf"(?:e=(?P<error>{_SAFE})|v=(?P<signature>{_BASE64})){_EXTENSIONS}")


class ScramCredential(NamedTuple):
    """What a broker keeps of a password for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def to_text(self) -> str:
        """As in /config/users."""
        salt, stored, server = (base64.b64encode(part).decode() for part in self[:3])
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"

    @classmethod
    def of_text(cls, text: str) -> ScramCredential:
        """Raises ValueError."""
        parts = dict(item.strip().partition("=")[::2] for item in text.split(","))
        if len(parts) != 4:
            raise ValueError("Credentials not valid: not salt, stored_key, server_key and iterations")
        try:
            salt, stored, server = (
                base64.b64decode(parts[name], validate=True) for name in ("salt", "stored_key", "server_key")
            )
            return cls(salt, stored, server, int(parts["iterations"]))
        except (KeyError, ValueError) as problem:
            raise ValueError(f"Credentials not valid: {problem}") from None


Lookup = Callable[[str], ScramCredential | None]
Decoy = Callable[[str, bool], ScramCredential]
"""The credential that is shown for an unknown name (a delegation token's id if the flag is set)."""
TokenLookup = Callable[[str], "tuple[ScramCredential, str, int] | None"]
"""A token's id to its credential, its owner's name, and when it ends."""


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """The hash of a password; it takes some ten milliseconds on purpose."""
    return hashlib.pbkdf2_hmac(MECHANISMS[mechanism], password.encode(), salt, iterations)


def credential(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a salted password."""
    algorithm = MECHANISMS[mechanism]
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    stored_key = hashlib.new(algorithm, client_key).digest()
    return ScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", algorithm), iterations)


def new_credential(mechanism: str, password: str, iterations: int = ITERATIONS_MIN) -> ScramCredential:
    salt = new_nonce().encode()
    return credential(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def new_nonce() -> str:
    return environment.get().random.randbytes(16).hex()


def decoy_credential(name: str, like: ScramCredential, iterations: range) -> ScramCredential:
    """A credential that matches no password, with a salt of the same form as `like` and one of these
    iterations.

    It is derived from the name and the secrets of `like`: without these it cannot be recognized.
    """

    def derived(purpose: bytes) -> bytes:
        return hmac.digest(like.server_key, purpose + name.encode(), "sha512")

    form, drawn = like.salt, derived(b"salt")
    if _HEX_SALT.fullmatch(form):  # `new_credential`
        salt = drawn.hex()[: len(form)].encode()
    elif _JAVA_SALT.fullmatch(form):
        salt = _base36(int.from_bytes(drawn) % (1 << JAVA_SALT_BITS)).encode()
    else:
        salt = hashlib.shake_256(drawn).digest(len(form))
    count = iterations[int.from_bytes(derived(b"iterations")) % len(iterations)]
    size = len(like.stored_key)
    return ScramCredential(salt, derived(b"stored")[:size], derived(b"server")[:size], count)


def _base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = digits[digit] + text
    return text


class ScramServer:
    """The broker's side of one exchange."""

    def __init__(
        self,
        mechanism: str,
        lookup: Lookup,
        token_lookup: TokenLookup,
        decoy: Decoy,
        nonce: Callable[[], str] = new_nonce,
    ) -> None:
        self.complete = False
        self.authorization_id = ""
        self.expires_ms: int | None = None
        self.by_token = False
        self._mechanism = mechanism
        self._algorithm = MECHANISMS[mechanism]
        self._lookup = lookup
        self._token_lookup = token_lookup
        self._decoy = decoy
        self._new_nonce = nonce
        self._credential: ScramCredential | None = None
        self._is_known = False
        self._nonce = ""
        self._first = ""

    def evaluate(self, token: bytes, now_ms: int) -> bytes:
        message = token.decode("utf-8", "replace")
        if self._credential is None:
            return self._challenge(message).encode()
        return self._verify(message).encode()

    def _challenge(self, message: str) -> str:
        found = _CLIENT_FIRST.fullmatch(message)
        if found is None or self.complete:
            raise SaslFailed
        user = found["name"].replace("=2C", ",").replace("=3D", "=")
        extensions = dict(item.partition("=")[::2] for item in found["extensions"].split(",") if item)
        self.by_token = extensions.get("tokenauth", "").lower() == "true"
        decoy = self._decoy(user, self.by_token)  # also for existing users: it takes the same time
        if self.by_token:
            token = self._token_lookup(user)
            known, self.authorization_id, self.expires_ms = token or (None, "", None)
        else:
            known, self.authorization_id = self._lookup(user), user
        self._is_known = known is not None and known.iterations >= ITERATIONS_MIN
        shown = known if known is not None and self._is_known else decoy
        if found["authorization"] and found["authorization"] != user:
            raise SaslFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self._credential = shown
        self._nonce = found["nonce"] + self._new_nonce()
        salt = base64.b64encode(shown.salt).decode()
        answer = f"r={self._nonce},s={salt},i={shown.iterations}"
        self._first = f"{found['bare']},{answer}"
        return answer

    def _verify(self, message: str) -> str:
        known, self._credential = self._credential, None
        assert known is not None
        found = _CLIENT_FINAL.fullmatch(message)
        if found is None or not hmac.compare_digest(found["nonce"], self._nonce):
            raise SaslFailed
        signed = f"{self._first},{found['bare']}".encode()
        signature = hmac.digest(known.stored_key, signed, self._algorithm)
        proof = base64.b64decode(found["proof"])
        if len(proof) != len(signature):
            raise SaslFailed
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        fits = hmac.compare_digest(hashlib.new(self._algorithm, client_key).digest(), known.stored_key)
        if not (fits and self._is_known):
            raise SaslFailed
        self.complete = True
        return f"v={base64.b64encode(hmac.digest(known.server_key, signed, self._algorithm)).decode()}"


class ScramClient:
    """The client's side: `first`, then `final` with the broker's challenge, then `check` of its last
    message."""

    def __init__(
        self, mechanism: str, user: str, password: str, *, by_token: bool = False, nonce: str | None = None
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce or new_nonce()
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}{',tokenauth=true' if by_token else ''}"
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """The answer to the challenge; takes as long as `salted_password`. Raises SaslFailed."""
        message = challenge.decode("utf-8", "replace")
        found = _SERVER_FIRST.fullmatch(message)
        if found is None or not found["nonce"].startswith(self._nonce):
            raise SaslFailed("the broker's SCRAM challenge is invalid")
        iterations = int(found["iterations"])
        if iterations < ITERATIONS_MIN:
            raise SaslFailed(
                f"the broker requires {iterations} iterations of SCRAM, fewer than {ITERATIONS_MIN}"
            )
        algorithm = MECHANISMS[self._mechanism]
        salted = salted_password(self._mechanism, self._password, base64.b64decode(found["salt"]), iterations)
        own = credential(self._mechanism, salted, b"", iterations)
        bare = f"c=biws,r={found['nonce']}"
        signed = f"{self._bare},{message},{bare}".encode()
        signature = hmac.digest(own.stored_key, signed, algorithm)
        client_key = hmac.digest(salted, b"Client Key", algorithm)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = hmac.digest(own.server_key, signed, algorithm)
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def check(self, last: bytes) -> None:
        """Check that the broker has the credential. Raises SaslFailed."""
        found = _SERVER_FINAL.fullmatch(last.decode("utf-8", "replace"))
        try:
            signature = base64.b64decode((found and found["signature"]) or "")
        except binascii.Error:
            signature = b""
        if not hmac.compare_digest(signature, self._signature) or not signature:
            raise SaslFailed("the broker has not proved that it has the credential")
