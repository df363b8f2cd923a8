"""SASL's DIGEST-MD5 (RFC 2831) from the client's side: how one logs in to ZooKeeper with a password.

Called by the connection to ZooKeeper. Only authentication (`qop=auth`), which is what ZooKeeper does, and own
code: the library that kazoo would use has not been released since 2019, for what is two hashes here. TLS is
what keeps the rest of the conversation to ourselves.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Generator, Mapping
from typing import Final

from ottla.security.mechanisms import SaslFailed

SERVICE, HOST = "zookeeper", "zk-sasl-md5"
"""What ZooKeeper's servers and clients have as service, host and realm, wherever they are."""

_VALUE: Final = r""""((?:\\.|[^"\\])*)"|([^\s,"]+)"""
_DIRECTIVE: Final = re.compile(rf"\s*([a-zA-Z-]+)\s*=\s*(?:{_VALUE})\s*(?:,|$)", re.DOTALL)
_COUNT: Final = "00000001"


def log_in(
    user: str, password: str, *, uri: str = f"{SERVICE}/{HOST}", nonce: str | None = None
) -> Generator[bytes, bytes | None, None]:
    """The client's half: yields what is to be sent and is sent what was answered; at its end the server has
    let us in, and has shown that it knows the password too. Raises SaslFailed. `nonce` is for tests."""
    challenge = yield b""
    if not challenge:
        raise SaslFailed("the server knows no DIGEST-MD5: its JAAS file has no such section for servers")
    said = _directives(challenge)
    ours = nonce or secrets.token_urlsafe(24)
    realm = said.get("realm", HOST)
    if "nonce" not in said or "auth" not in said.get("qop", "auth").split(","):
        raise SaslFailed("the server wants another kind of DIGEST-MD5 than qop=auth")
    secret = _secret(user, realm, password) + f":{said['nonce']}:{ours}".encode()
    proof = _proof(secret, said["nonce"], ours, f"AUTHENTICATE:{uri}")
    words = (
        f'charset=utf-8,username="{_escaped(user)}",realm="{_escaped(realm)}",nonce="{_escaped(said["nonce"])}",'
        f'nc={_COUNT},cnonce="{ours}",digest-uri="{uri}",response={proof},qop=auth'
    )
    last = yield words.encode()
    if _directives(last or b"").get("rspauth") != _proof(secret, said["nonce"], ours, f":{uri}"):
        raise SaslFailed("the server has not shown that it knows the password: the login was in vain")


def _directives(text: bytes) -> Mapping[str, str]:
    found = _DIRECTIVE.findall(text.decode("utf-8", "replace"))
    return {name.lower(): re.sub(r"\\(.)", r"\1", quoted) or word for name, quoted, word in found}


def _escaped(text: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", text)


def _secret(user: str, realm: str, password: str) -> bytes:
    """The hash that servers may keep instead of the password; each part is in Latin-1 where it can be."""
    return _md5(b":".join(map(_narrow, (user, realm, password)))).digest()


def _narrow(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _proof(secret: bytes, nonce: str, cnonce: str, action: str) -> str:
    parts = (_md5(secret).hexdigest(), nonce, _COUNT, cnonce, "auth", _md5(action.encode()).hexdigest())
    return _md5(":".join(parts).encode()).hexdigest()


def _md5(data: bytes) -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)
