"""An OpenID provider in memory, behind the function that fetches URLs.

provider = FakeProvider()
code = provider.authorize(url)          # a person logs in: url is where the console sends the browser
provider.fetch(...)                     # HTTP of the console: discovery, keys, tokens, revocation
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives.asymmetric import ec

from ottla.security.https import HttpProblem
from tests.judges.oidc import public_jwk, sign

ISSUER = "https://sso.example/realm"
CLIENT, SECRET = "ottla console", "geheim: ?"
ACCESS_S = 600


class FakeProvider:
    """See the module. `changes` replaces claims of ID tokens, or removes them by None."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.keys = {"one": ec.generate_private_key(ec.SECP256R1())}
        self.document: dict[str, Any] = {
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/authorize?tenant=7",
            "token_endpoint": f"{ISSUER}/token",
            "jwks_uri": f"{ISSUER}/keys",
            "revocation_endpoint": f"{ISSUER}/revoke",
            "end_session_endpoint": f"{ISSUER}/logout",
        }
        self.changes: dict[str, object] = {}
        self.subject = "anna"
        self.refreshes = True
        self.opaque = False
        self.key_id = "one"
        self.key: ec.EllipticCurvePrivateKey | None = None
        """Of ID tokens, in place of those in `keys`."""
        self.fail: dict[str, HttpProblem] = {}
        """By path."""
        self.requests: list[str] = []
        """Paths."""
        self.issued: list[str] = []
        """Access tokens, refresh tokens, ID tokens and codes."""
        self.revoked: list[str] = []
        self._codes: dict[str, Mapping[str, str]] = {}

    def authorize(self, url: str) -> str:
        """Log in with the parameters that the browser has brought; returns the code."""
        query = {name: found[0] for name, found in parse_qs(urlsplit(url).query).items()}
        code = self._made("code")
        self._codes[code] = query
        return code

    def fetch(
        self,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        options: Mapping[str, str],
        timeout_s: float,
    ) -> bytes:
        path = url.removeprefix(ISSUER)
        self.requests.append(path)
        if path in self.fail:
            raise self.fail[path]
        if path == "/.well-known/openid-configuration":
            return json.dumps(self.document).encode()
        if path == "/keys":
            return json.dumps({"keys": [public_jwk(key, kid=kid) for kid, key in self.keys.items()]}).encode()
        form = {name: found[0] for name, found in parse_qs((body or b"").decode()).items()}
        self._authenticate(form, headers or {})
        if path == "/revoke":
            self.revoked.append(form["token"])
            return b""
        assert path == "/token", path
        return json.dumps(self._tokens(form)).encode()

    def _authenticate(self, form: Mapping[str, str], headers: Mapping[str, str]) -> None:
        account = base64.b64encode(b"ottla+console:geheim%3A+%3F").decode()
        if self.document.get("token_endpoint_auth_methods_supported") == ["client_secret_post"]:
            known = (form.get("client_id"), form.get("client_secret")) == (CLIENT, SECRET)
        else:
            known = headers.get("Authorization") == f"Basic {account}"
        if not known:
            raise HttpProblem('HTTP 401 {"error":"invalid_client"}', 401)

    def _tokens(self, form: Mapping[str, str]) -> dict[str, object]:
        refused = HttpProblem('HTTP 400 {"error":"invalid_grant","error_description":"no"}', 400)
        nonce = ""
        if form["grant_type"] == "authorization_code":
            asked = self._codes.pop(form["code"], None)
            digest = sha256(form["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            if asked is None or asked["code_challenge"] != challenge:
                raise refused
            if asked["redirect_uri"] != form["redirect_uri"] or asked["code_challenge_method"] != "S256":
                raise refused
            nonce = asked["nonce"]
        elif form["refresh_token"] not in self.issued or form["refresh_token"] in self.revoked:
            raise refused
        now_s = self._now_ms() // 1000
        claims: dict[str, object] = {
            "iss": ISSUER,
            "sub": self.subject,
            "aud": CLIENT,
            "iat": now_s,
            "exp": now_s + 300,
            "nonce": nonce,
            **self.changes,
        }
        known = {name: value for name, value in claims.items() if value is not None}
        access = {"sub": self.subject, "iat": now_s, "exp": now_s + ACCESS_S, "jti": len(self.issued)}
        key = self.key or self.keys[self.key_id]
        found: dict[str, object] = {
            "token_type": "Bearer",
            "access_token": self._made("opaque") if self.opaque else self._kept(sign(key, "one", access)),
            "id_token": self._kept(sign(key, self.key_id, known)),
        }
        if self.refreshes:
            found["refresh_token"] = self._made("refresh")
        return found

    def _made(self, kind: str) -> str:
        return self._kept(f"{kind}-{len(self.issued)}-secret")

    def _kept(self, text: str) -> str:
        self.issued.append(text)
        return text
