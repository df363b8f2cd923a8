"""OAUTHBEARER with unsecured tokens, and what clients send."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from ottla.security.clients import login
from ottla.security.mechanisms import SaslFailed
from ottla.security.oauth import OAuthServer, TokenRefused, UnsecuredRules, first_message

ISSUED = 1_000_000_000


def unsecured(claims: str, header: str = '{"alg":"none"}') -> str:
    """An unsecured token of these JSON texts."""
    parts = (base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode() for text in (header, claims))
    return ".".join((*parts, ""))


NESTED = "[" * 100_000


@pytest.mark.parametrize(
    "token",
    [
        unsecured(NESTED),
        unsecured('{"sub":"dora","exp":9000000000}', NESTED),
        unsecured('{"sub":"dora","exp":Infinity}'),
        unsecured('{"sub":"dora","exp":NaN}'),
        unsecured('{"sub":"dora","exp":-1e999}'),
        unsecured('{"sub":"dora","iat":1e999,"exp":9000000000}'),
        unsecured(f'{{"sub":"dora","exp":{"9" * 10_000}}}'),
    ],
)
def test_a_token_that_cannot_be_read_is_refused(token: str) -> None:
    with pytest.raises(TokenRefused):
        UnsecuredRules.of({}).validate(token, ISSUED * 1000)


@pytest.mark.parametrize("exp", ["1e999", "9" * 4000, "1e300"])
def test_a_time_beyond_64_bits_is_clamped(exp: str) -> None:
    found = UnsecuredRules.of({}).validate(unsecured(f'{{"sub":"dora","exp":{exp}}}'), ISSUED * 1000)
    assert found.principal == "dora"
    assert (1 << 63) - 2000 < found.expires_ms < 1 << 63


def test_a_client_sends_the_present_token_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "a token"
    begin = login("OAUTHBEARER", "x.Login required;", file.as_uri())
    for token in ("eins", "zwei"):
        file.write_text(token + "\n")
        assert next(begin()) == first_message(token)


def test_a_client_with_unsecured_tokens_is_accepted_or_refused_with_a_reason() -> None:
    refused: list[str] = []
    begin = login("OAUTHBEARER", 'x.Login required unsecuredLoginStringClaim_sub="dora";')
    exchange = begin()
    server = OAuthServer(UnsecuredRules.of({}).validate, refused.append)
    now_ms = 4_000_000_000_000
    error = server.evaluate(next(exchange), now_ms)
    assert b"invalid_token" in error, "it was issued for an hour of today"
    with pytest.raises(SaslFailed, match="invalid_token"):
        server.evaluate(exchange.send(error), now_ms)
    assert refused == ["expired"]


@pytest.mark.parametrize("jaas", ["x.Login required;", None])
def test_a_login_without_required_options_is_refused(jaas: str | None) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI"):
        with pytest.raises(ValueError, match=r"sasl\."):
            login(mechanism, jaas)
