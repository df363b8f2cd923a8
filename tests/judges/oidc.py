"""An OAuth server for tests: keys, a token endpoint and a key set over HTTP or HTTPS, in a thread.

`with OAuthServer() as server`: `server.issue(sub="dora")` signs a token itself, clients get theirs by
client_credentials from `server.token_url`, and brokers the public keys from `server.jwks_url`. Every request
is in `server.requests`.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self, cast
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

ISSUER, AUDIENCE = "https://oidc.example/realm", "kafka"
CLIENT, SECRET = "shop", "geheim: ?"
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def public_jwk(key: Key, **more: str) -> dict[str, str]:
    """The entry of a key set."""
    kind: Any = (
        jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    )
    return {**json.loads(kind.to_jwk(key.public_key())), "use": "sig", **more}


def sign(key: Key, kid: str | None, claims: dict[str, object], algorithm: str | None = None) -> str:
    usual = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
    headers = None if kid is None else {"kid": kid}
    return jwt.encode(claims, cast(Any, key), algorithm=algorithm or usual, headers=headers)


class Asked(NamedTuple):
    """A request to the server."""

    path: str
    authorization: str
    form: dict[str, str]


class OAuthServer:
    """See the module. `lifetime_s` is that of tokens of the token endpoint."""

    def __init__(self, certificate: Path | None = None, host: str = "127.0.0.1") -> None:
        """`certificate`: key and chain in one PEM file, for HTTPS."""
        self.keys: dict[str, Key] = {
            "rsa-1": rsa.generate_private_key(65537, 2048),
            "ec-1": ec.generate_private_key(ec.SECP256R1()),
        }
        self.lifetime_s = 600.0
        self.signs_with = "rsa-1"
        self.failures = 0
        """So many of the next token requests get a 503."""
        self.requests: list[Asked] = []
        server = self
        self._scheme = "http" if certificate is None else "https"

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(Asked(self.path, "", {}))
                known = self.path == "/jwks"
                self._answer(200 if known else 404, server.key_set() if known else {})

            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                form = {name: found[0] for name, found in parse_qs(text).items()}
                asked = Asked(self.path, self.headers.get("Authorization", ""), form)
                server.requests.append(asked)
                self._answer(*server.answer(asked))

            def _answer(self, status: int, content: object) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer((host, 0), Handler)
        self._http.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def jwks_url(self) -> str:
        return f"{self._scheme}://localhost:{self.port}/jwks"

    @property
    def token_url(self) -> str:
        return f"{self._scheme}://localhost:{self.port}/token"

    def rotate(self, kid: str, key: Key) -> None:
        """From now on tokens of the token endpoint are signed by this key, the only one of the key set."""
        self.keys = {kid: key}
        self.signs_with = kid

    def key_set(self) -> dict[str, object]:
        return {"keys": [public_jwk(key, kid=kid) for kid, key in self.keys.items()]}

    def issue(self, kid: str | None = None, **changes: object) -> str:
        """A token; a claim is left out by None."""
        name = kid or self.signs_with
        now_s = int(time.time())
        usual = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": CLIENT,
            "iat": now_s,
            "exp": int(now_s + self.lifetime_s),
        }
        claims = {claim: value for claim, value in {**usual, **changes}.items() if value is not None}
        return sign(self.keys[name], name, claims)

    def answer(self, asked: Asked) -> tuple[int, object]:
        if self.failures:
            self.failures -= 1
            return 503, {"error": "temporarily_unavailable"}
        accounts = [base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()]
        if asked.path != "/token" or asked.form.get("grant_type") != "client_credentials":
            return 400, {"error": "invalid_request"}
        if asked.authorization.removeprefix("Basic ") not in accounts:
            return 401, {"error": "invalid_client", "error_description": "unknown client, or a wrong secret"}
        scope = {"scope": asked.form["scope"]} if "scope" in asked.form else {}
        return 200, {
            "access_token": self.issue(**scope),
            "token_type": "Bearer",
            "expires_in": int(self.lifetime_s),
            **scope,
        }
