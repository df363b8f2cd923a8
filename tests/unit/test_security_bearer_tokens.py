"""A client obtains its OAuth tokens in time, keeps them while they are valid, and says why it has none."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ottla.client import errors
from ottla.client.core.config import ClientConfig
from ottla.environment import SYSTEM, environment
from ottla.protocol.errors import KafkaError
from ottla.security import https
from ottla.security.bearer_tokens import RefreshRules, Token, TokenSource, token_source
from ottla.security.clients import login
from ottla.security.oauth import first_message, unsecured_token
from tests.worlds.clocks import run_in_virtual_time

RULES = RefreshRules(0.8, 0.05, 60, 300)
URL = "sasl.oauthbearer.token.endpoint.url"
ACCOUNT = {"clientId": "shop", "clientSecret": "geheim: ?"}
BASIC = "Basic c2hvcDpnZWhlaW06ID8="


@pytest.mark.parametrize(
    ("rules", "issued_s", "expires_s", "chance", "refresh_s"),
    [
        (RULES, 1000, 4600, 0.0, 1000 + 2880),  # 80 % of an hour
        (RULES, 1000, 4600, 1.0, 1000 + 3060),
        (RULES, 500, 4100, 0.0, 500 + 2880),
        (RULES, 1000, 2000, 0.0, 1700),  # 300 s before the end
        (RULES, 1000, 1361, 0.0, 1061),  # 300 s before the end
        (RULES, 1000, 1361, 1.0, 1061),
        (RULES, 1000, 1359, 0.0, 1000 + 287.2),  # too short for both
        (RULES._replace(least_s=900, buffer_s=0), 1000, 2000, 0.0, 1900),
        (RULES._replace(factor=0.5, jitter=0), 1000, 4600, 1.0, 2800),
    ],
)
def test_a_token_is_refreshed_by_kafkas_rules(
    rules: RefreshRules, issued_s: int, expires_s: int, chance: float, refresh_s: float
) -> None:
    found = rules.refresh_at(1_000_000, issued_s * 1000, expires_s * 1000, lambda: chance)
    assert found == pytest.approx(refresh_s * 1000)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("window.factor", "0.4"),
        ("window.factor", "often"),
        ("window.jitter", "0.3"),
        ("min.period.seconds", "901"),
        ("buffer.seconds", "-1"),
    ],
)
def test_a_refresh_setting_out_of_its_range_is_refused(name: str, text: str) -> None:
    settings = {f"sasl.login.refresh.{name}": text}
    with pytest.raises(ValueError, match=rf"sasl\.login\.refresh\.{name}={text}: must be from"):
        RefreshRules.of(settings.get)
    assert RefreshRules.of({}.get) == RULES


class Clock:
    """The wall clock of a test, in seconds."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    @contextmanager
    def used(self) -> Iterator[None]:
        wall = dataclasses.replace(
            SYSTEM, wall_ms=lambda: int(self.now_s * 1000), monotonic_s=lambda: self.now_s
        )
        before = environment.set(wall)
        try:
            yield
        finally:
            environment.reset(before)


def at_its_time(scenario: Callable[[Clock], Coroutine[Any, Any, None]]) -> None:
    clock = Clock()
    with clock.used():
        run_in_virtual_time(scenario(clock))


def jwt_until(expires_s: float) -> str:
    return unsecured_token({"sub": "dora", "iat": expires_s - 600, "exp": expires_s})


def test_a_token_is_kept_until_it_is_to_be_refreshed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(clock: Clock) -> None:
        problems: list[Exception] = []
        given: list[str] = []

        async def retrieve() -> Token:
            if problems:
                raise problems[0]
            given.append(jwt_until(clock.now_s + 600))
            return Token(given[-1], {})

        source = TokenSource(retrieve, RULES)
        for now_s, tokens in ((1000, 1), (1299, 1), (1300, 2), (1300, 2)):
            clock.now_s = now_s
            await source.prepare()
            assert source.token.value == given[-1]
            assert len(given) == tokens

        problems.append(OSError("the server is away"))
        clock.now_s = 1600
        await source.prepare()
        assert source.token.value == given[-1]
        assert "the present one is used: the server is away" in caplog.text
        for now_s, warnings in ((1609, 1), (1610, 2)):
            clock.now_s = now_s
            await source.prepare()
            assert caplog.text.count("the present one") == warnings, "10 s after a failure"
        clock.now_s = 1900
        with pytest.raises(OSError, match="away"):
            await source.prepare()
        problems.clear()
        await source.prepare()
        assert len(given) == 3

    with caplog.at_level(logging.WARNING):
        at_its_time(scenario)


def test_connections_share_one_retrieval_and_a_cancelled_one_disturbs_no_other() -> None:
    async def scenario(clock: Clock) -> None:
        begun = 0

        async def retrieve() -> Token:
            nonlocal begun
            begun += 1
            await asyncio.sleep(1)
            return Token(jwt_until(clock.now_s + 600), {})

        source = TokenSource(retrieve, RULES)
        first, *others = (asyncio.create_task(source.prepare()) for _ in range(5))
        await asyncio.sleep(0.5)
        first.cancel()
        await asyncio.gather(*others)
        assert begun == 2
        with pytest.raises(asyncio.CancelledError):
            await first

    at_its_time(scenario)


@pytest.mark.parametrize(
    ("token", "obtained"),
    [
        (Token("opaque", {}), 2),
        (Token("opaque", {}, 600_000), 1),
        (Token(unsecured_token({"exp": "x"}), {}), 2),
        (Token(unsecured_token({"exp": 1600}), {}), 1),
        (Token(unsecured_token({"exp": 1e999}), {}), 2),
    ],
)
def test_a_token_that_does_not_tell_its_life_is_used_once(token: Token, obtained: int) -> None:
    async def scenario(clock: Clock) -> None:
        count = 0

        async def retrieve() -> Token:
            nonlocal count
            count += 1
            return token

        source = TokenSource(retrieve, RULES)
        await source.prepare()
        await source.prepare()
        assert count == obtained

    at_its_time(scenario)


# --- the application's own --------------------------------------------------------------------------------


class Provider:
    """In aiokafka's form."""

    async def token(self) -> str:
        await asyncio.sleep(0)
        return "of an object"

    def extensions(self) -> dict[str, str]:
        return {"traceId": "7"}


class Called:
    async def __call__(self) -> str:
        await asyncio.sleep(0)
        return "callable"


async def of_coroutine_function() -> str:
    await asyncio.sleep(0)
    return "of-a-coroutine"


@pytest.mark.parametrize(
    ("provider", "first"),
    [
        (lambda: "of-a-function", first_message("of-a-function")),
        (of_coroutine_function, first_message("of-a-coroutine")),
        (lambda: of_coroutine_function(), first_message("of-a-coroutine")),
        (Called(), first_message("callable")),
    ],
)
def test_an_application_gives_its_tokens_by_a_function(provider: Any, first: bytes) -> None:
    assert asyncio.run(_first_of(provider)) == first


def test_an_application_gives_its_tokens_by_an_object_with_extensions() -> None:
    class Dashed(Provider):
        async def token(self) -> str:
            return (await super().token()).replace(" ", "-")

    assert asyncio.run(_first_of(Dashed())) == first_message("of-an-object", {"traceId": "7"})


async def _first_of(provider: Any) -> bytes:
    config = ClientConfig.of(
        bootstrap_servers="x:1",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=provider,
    )
    security = config.security()
    assert security is not None
    assert security.login is not None
    assert security.login.prepare is not None
    await security.login.prepare()
    return next(security.login.begin())


@pytest.mark.parametrize(
    ("provider", "kind", "text"),
    [
        (lambda: 7, KafkaError, "did not return a token as text"),
        (lambda: "", KafkaError, "did not return a token as text"),
        (lambda: {}["no"], KafkaError, "sasl.oauth.token.provider: KeyError"),
        (lambda: open("/nowhere/token").read(), OSError, "/nowhere"),  # noqa: SIM115
    ],
)
def test_a_failure_of_the_application_is_told(provider: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as problem:
        asyncio.run(_first_of(provider))
    assert text in str(problem.value)


@pytest.mark.parametrize("provider", [7, "tokens"])
def test_a_source_without_tokens_is_refused(provider: object) -> None:
    with pytest.raises(errors.ConfigError, match=r"sasl\.oauth\.token\.provider"):
        ClientConfig.of(bootstrap_servers="x:1", sasl_oauth_token_provider=provider)


def test_tokens_of_another_mechanism_are_refused() -> None:
    with pytest.raises(errors.ConfigError, match="for OAUTHBEARER only"):
        ClientConfig.of(
            bootstrap_servers="x:1",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_oauth_token_provider=lambda: "x",
        )


# --- an OAuth server --------------------------------------------------------------------------------------


class FakeServer:
    """Takes the place of HTTP: answers, or statuses of errors, in order; the last one for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: bytes | int) -> None:
        self.answers, self.asked = list(answers), list[dict[str, Any]]()
        monkeypatch.setattr(https, "request", self.request)

    def request(self, url: str, **how: Any) -> bytes:
        self.asked.append({"url": url, **how})
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int):
            raise https.HttpProblem(f"HTTP {answer} nothing", answer)
        return answer


async def _value(options: dict[str, str], **settings: str) -> str:
    given = {URL: "http://idp/token", "sasl.login.retry.backoff.ms": "1"}
    given |= {name.replace("_", "."): text for name, text in settings.items()}
    source = token_source(options, given.get, None)
    await source.prepare()
    return source.token.value


def test_a_token_is_asked_for_by_client_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(monkeypatch, 503, 0, b'{"access_token": "a.b.c", "expires_in": 60}')
    assert asyncio.run(_value({**ACCOUNT, "scope": "read write"})) == "a.b.c"
    assert len(server.asked) == 3, "failures that may pass"
    assert {asked["body"] for asked in server.asked} == {b"grant_type=client_credentials&scope=read+write"}
    assert server.asked[0]["headers"]["Authorization"] == BASIC
    assert server.asked[0]["timeout_s"] == 5
    asyncio.run(
        _value(
            ACCOUNT,
            sasl_oauthbearer_header_urlencode="true",
            sasl_login_connect_timeout_ms="1000",
            sasl_login_read_timeout_ms="20000",
        )
    )
    assert server.asked[3]["headers"]["Authorization"] == "Basic c2hvcDpnZWhlaW0lM0ErJTNG"
    assert server.asked[3]["body"] == b"grant_type=client_credentials"
    assert server.asked[3]["timeout_s"] == 20


@pytest.mark.parametrize(
    "answer",
    [400, 401, 404, b"", b"[]", b"7", b'{"token": "x"}', b'{"access_token": 7}', b'{"access_token": " "}'],
)
def test_a_permanent_error_is_raised_at_once(monkeypatch: pytest.MonkeyPatch, answer: bytes | int) -> None:
    server = FakeServer(monkeypatch, answer)
    with pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED") as problem:
        asyncio.run(_value(ACCOUNT))
    assert URL in str(problem.value)
    assert "geheim" not in str(problem.value)
    assert len(server.asked) == 1


def test_a_server_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(monkeypatch, 503)
    with pytest.raises(OSError, match="http://idp/token: HTTP 503"):
        asyncio.run(_value(ACCOUNT, sasl_login_retry_backoff_max_ms="20"))
    assert 2 <= len(server.asked) <= 5


@pytest.mark.parametrize(
    ("options", "settings", "text"),
    [
        ({}, {URL: "http://idp/token"}, "clientId is not set"),
        ({"clientId": "shop", "clientSecret": " "}, {URL: "http://idp/token"}, "clientSecret is not set"),
        (ACCOUNT, {URL: "ftp://idp/token"}, "must be https://, http:// or file:"),
        (ACCOUNT, {URL: "http://idp", "sasl.login.read.timeout.ms": "x"}, "must be a whole number"),
        (ACCOUNT, {"sasl.login.callback.handler.class": "org.example.Own"}, "Java classes are not supported"),
        (
            ACCOUNT,
            {
                "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
                "OAuthBearerLoginCallbackHandler"
            },
            "token.endpoint.url: not set",
        ),
    ],
)
def test_settings_without_a_source_of_tokens_are_refused(
    options: dict[str, str], settings: dict[str, str], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        token_source(options, settings.get, None)


def test_a_client_needs_no_jaas_for_a_file() -> None:
    assert login("OAUTHBEARER", None, {URL: "file:///run/token"}.get).prepare is not None
