"""OAUTHBEARER accepts tokens that a key of the key set has signed, and no others."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from ottla.security.clients import login
from ottla.security.mechanisms import SaslFailed
from ottla.security.oauth import (
    BearerToken,
    OAuthServer,
    SignedRules,
    TokenRefused,
    UnsecuredRules,
    first_message,
    parse_key_set,
    unsecured_token,
)

KEY, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
ISSUED, ENDS = 1_000_000_000, 9_000_000_000
CLAIMS = {"sub": "dora", "iss": "us", "aud": ["kafka"], "iat": ISSUED, "exp": ENDS}
RULES = SignedRules(("kafka",), "us", 30, "sub")


def key_set(**keys: ec.EllipticCurvePrivateKey) -> bytes:
    return json.dumps(
        {
            "keys": [
                json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
                | {"kid": name, "alg": "ES256"}
                for name, key in keys.items()
            ]
        }
    ).encode()


def signed(key: ec.EllipticCurvePrivateKey = KEY, kid: str | None = "one", **changes: object) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    return jwt.encode(claims, key, algorithm="ES256", headers={"kid": kid} if kid else None)


def test_a_token_of_a_known_key_is_accepted() -> None:
    keys = parse_key_set(key_set(one=KEY, two=OTHER))
    assert RULES.validate(signed(), keys.get) == BearerToken("dora", ENDS * 1000)
    assert RULES.validate(signed(OTHER, "two", aud="kafka"), keys.get).principal == "dora"
    only = parse_key_set(key_set(one=KEY))
    assert RULES.validate(signed(kid=None), only.get).principal == "dora", "there is but one"


@pytest.mark.parametrize(
    "token",
    [
        signed(OTHER),
        signed(kid="three"),
        signed(aud="other"),
        signed(aud=None),
        signed(iss="them"),
        signed(exp=ISSUED + 1),
        signed(exp=None),
        signed(iat=None),
        signed(sub=None),
        signed(sub=" "),
        jwt.encode(CLAIMS, "secret" * 10, algorithm="HS256", headers={"kid": "one"}),
        unsecured_token(CLAIMS),
        "",
        "a.b",
        signed()[:-2],
    ],
)
def test_other_tokens_are_refused(token: str) -> None:
    with pytest.raises(TokenRefused):
        RULES.validate(token, parse_key_set(key_set(one=KEY, two=OTHER)).get)


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


def jws(claims: str, header: str = '{"alg":"ES256","kid":"one"}') -> str:
    """A token of these JSON texts, signed by KEY."""
    signing = unsecured(claims, header).rstrip(".")
    signature = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256).sign(signing.encode(), KEY)
    return f"{signing}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


@pytest.mark.parametrize(
    "token",
    [
        jws("{}", NESTED),
        jws(NESTED),
        jws('{"sub":"dora","iss":"us","aud":"kafka","iat":1000000000,"exp":1e999}'),
        jws('{"sub":"dora","iss":"us","aud":"kafka","iat":1e999,"exp":9000000000}'),
        jws('{"sub":"dora","iss":"us","aud":"kafka","iat":1000000000,"exp":NaN}'),
        jws('{"sub":"dora","iss":"us","aud":[[]],"iat":1000000000,"exp":9000000000}'),
        jws('{"sub":"dora","iss":["us"],"aud":"kafka","iat":1000000000,"exp":9000000000}'),
    ],
)
def test_a_signed_token_that_cannot_be_read_is_refused(token: str) -> None:
    with pytest.raises(TokenRefused):
        RULES.validate(token, parse_key_set(key_set(one=KEY)).get)


def test_a_signed_time_beyond_64_bits_is_clamped() -> None:
    claims = '{"sub":"dora","iss":"us","aud":"kafka","iat":1000000000,"exp":%s}'
    keys = parse_key_set(key_set(one=KEY))
    assert (1 << 63) - 2000 < RULES.validate(jws(claims % ("9" * 300)), keys.get).expires_ms < 1 << 63
    assert RULES.validate(jws(claims % '"9000000000"'), keys.get).expires_ms == ENDS * 1000


@pytest.mark.parametrize("data", [b"", b"{}", b'{"keys": 7}', b'{"keys": []}', b"[]", b"\xff"])
def test_an_invalid_key_set_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a key set"):
        parse_key_set(data)


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
