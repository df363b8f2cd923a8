"""DIGEST-MD5 with the example of RFC 2831; tests/interop runs it against ZooKeeper's own server."""

from __future__ import annotations

import pytest

from ottla.security.digest_md5 import log_in
from ottla.security.mechanisms import SaslFailed

CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'
PROOF = "d388dad90d4bbd760a152321f2143af7"
REPLY = b"rspauth=ea40f60335c427b5527b84dbabcdfffd"


def test_a_client_makes_the_exchange_of_the_rfc() -> None:
    exchange = log_in("chris", "secret", uri="imap/elwood.innosoft.com", nonce="OA6MHXh6VqTrRk")
    assert next(exchange) == b""
    words = exchange.send(CHALLENGE).decode()
    assert f"response={PROOF}," in words
    assert 'digest-uri="imap/elwood.innosoft.com"' in words
    with pytest.raises(StopIteration):
        exchange.send(REPLY)


@pytest.mark.parametrize("reply", [None, b"", b"rspauth=ea40f60335c427b5527b84dbabcdfffe"])
def test_a_server_with_an_invalid_proof_is_refused(reply: bytes | None) -> None:
    exchange = log_in("chris", "secret", uri="imap/elwood.innosoft.com", nonce="OA6MHXh6VqTrRk")
    next(exchange)
    exchange.send(CHALLENGE)
    with pytest.raises(SaslFailed, match="has not proved"):
        exchange.send(reply)


@pytest.mark.parametrize(
    ("challenge", "says"),
    [
        (None, "does not support DIGEST-MD5"),
        (b"realm=x", "another qop"),
        (b'nonce="a",qop="auth-conf"', "another qop"),
    ],
)
def test_an_invalid_challenge_is_refused(challenge: bytes | None, says: str) -> None:
    exchange = log_in("chris", "secret")
    next(exchange)
    with pytest.raises(SaslFailed, match=says):
        exchange.send(challenge)
