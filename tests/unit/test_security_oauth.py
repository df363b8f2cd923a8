"""OAUTHBEARER with unsecured tokens, and what clients send."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from ottla.security.clients import Login, login
from ottla.security.mechanisms import SaslFailed
from ottla.security.oauth import (
    OAuthServer,
    TokenRefused,
    UnsecuredRules,
    first_message,
    jwt_parts,
    unsecured_token,
)

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


async def first_of(found: Login) -> bytes:
    """The first message of a login."""
    assert found.prepare is not None
    await found.prepare()
    return next(found.begin())


def test_a_client_sends_the_present_token_of_its_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "a token"
        settings = {"sasl.oauthbearer.token.endpoint.url": file.as_uri()}
        for jaas, extensions in ((None, {}), ('x.Login required extension_traceId="7";', {"traceId": "7"})):
            found = login("OAUTHBEARER", jaas, settings.get)
            for token in ("eins", "zwei", unsecured_token({"exp": 9_000_000_000})):
                file.write_text(token + "\n")
                assert await first_of(found) == first_message(token, extensions)
            file.unlink()
            assert await first_of(found) == first_message(token, extensions), "it is still valid"

    asyncio.run(scenario())


def test_a_client_with_unsecured_tokens_is_accepted_or_refused_with_a_reason() -> None:
    refused: list[str] = []
    found = login("OAUTHBEARER", 'x.Login required unsecuredLoginStringClaim_sub="dora";', {}.get)
    exchange = asyncio.run(first_of(found)), found.begin()
    first = next(exchange[1])
    assert first == exchange[0]
    server = OAuthServer(UnsecuredRules.of({}).validate, refused.append)
    now_ms = 4_000_000_000_000
    error = server.evaluate(first, now_ms)
    assert b"invalid_token" in error, "it was issued for an hour of today"
    with pytest.raises(SaslFailed, match="invalid_token"):
        server.evaluate(exchange[1].send(error), now_ms)
    assert refused == ["expired"]


def test_the_claims_of_an_unsecured_token_are_options() -> None:
    jaas = (
        'x.Login required unsecuredLoginPrincipalClaimName="user" unsecuredLoginStringClaim_user="dora"'
        ' unsecuredLoginNumberClaim_age="7" unsecuredLoginListClaim_scope=",read,write"'
        ' unsecuredLoginListClaim_none="" unsecuredLoginLifetimeSeconds="60" unsecuredLoginExtension_a="b";'
    )
    first = asyncio.run(first_of(login("OAUTHBEARER", jaas, {}.get))).decode()
    _, auth, extension, *_ = first.split("\x01")
    assert extension == "a=b"
    _, claims, _ = jwt_parts(auth.removeprefix("auth=Bearer "))
    assert claims.pop("exp") - claims.pop("iat") == pytest.approx(60)
    assert claims == {"user": "dora", "age": 7, "scope": ["read", "write"], "none": []}


def test_a_first_message_has_no_characters_that_end_its_parts() -> None:
    for token, extensions in (
        ("a\x01auth=Bearer b", {}),
        ("", {}),
        ("a b", {}),
        ("a", {"auth": "Bearer b"}),
        ("a", {"key": "a\x01b=c"}),
        ("a", {"k3y": "a"}),
        ("a", {"key": ""}),
    ):
        with pytest.raises(SaslFailed, match="characters"):
            first_message(token, extensions)


@pytest.mark.parametrize("jaas", ["x.Login required;", None])
def test_a_login_without_required_options_is_refused(jaas: str | None) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI"):
        with pytest.raises(ValueError, match=r"sasl\."):
            login(mechanism, jaas, {}.get)
