"""Log-ins of the console by client certificate, over a cluster in memory."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from ottla.client import errors
from ottla_console.settings import Login, SettingsError, cluster_of
from ottla_console.web.client_certificates import certified
from tests.certificates import Authority
from tests.worlds.console_cluster import FakeCluster

ORIGIN = {"origin": "https://127.0.0.1"}
_AUTHORITY = Authority()
ANNA, BERT = (
    _AUTHORITY.sign(name).certificate.public_bytes(Encoding.DER) for name in ("Anna", "</dd><b>Bert</b>")
)
SCRAM = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="console" password="own secret";',
    "ssl.principal.mapping.rules": "RULE:^CN=(.*?),OU=Tests.*$/$1/L",
}


class Browsers:
    """A fake cluster with log-in by certificate, and the certificate of the next request."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cluster.passwords["console"] = "own secret"
        self.cluster.security = dict(SCRAM)
        self.cluster.login = "certificate"
        self.certificate: bytes | None = ANNA

    @contextmanager
    def console(self, **settings: Any) -> Iterator[TestClient]:
        def around(app: Any) -> Any:
            async def serve(scope: Scope, receive: Receive, send: Send) -> None:
                await certified(app, self.certificate)(scope, receive, send)

            return serve

        with self.cluster.console(around=around, tls=True, **settings) as browser:
            yield browser


def token(page: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found, page
    return found[1]


def log_in(browser: TestClient, **fields: str) -> Any:
    data = {"csrf": token(browser.get("/c/test/login").text), **fields}
    return browser.post("/c/test/login", data=data, headers=ORIGIN)


def test_a_certificate_logs_in_as_its_principal_by_a_token_of_this_person() -> None:
    world = Browsers()
    with world.console() as browser:
        assert browser.get("/c/test/topics").headers["location"].startswith("/c/test/login?next=")
        form = browser.get("/c/test/login?next=/c/test/topics").text
        assert "CN=Anna,OU=Tests,O=Ottla,C=SI" in form
        assert "User:anna" in form
        done = log_in(browser, next="/c/test/topics")
        assert (done.status_code, done.headers["location"]) == (303, "/c/test/topics")
        (made,) = world.cluster.tokens.values()
        assert (made.owner, made.renewers) == ("User:anna", ("User:console",))
        assert made.expires_at_most_ms - made.issued_ms == 12 * 3600 * 1000
        page = browser.get("/c/test/topics").text
        assert "User:anna" in page
        assert made.token_id not in page


def test_a_log_in_by_certificate_changes_the_session_id_and_the_token_of_forms() -> None:
    world = Browsers()
    with world.console() as browser:
        before = browser.get("/c/test/login")
        id_before = browser.cookies["__Host-ottla-console"]
        log_in(browser)
        assert browser.cookies["__Host-ottla-console"] != id_before
        assert token(browser.get("/c/test/").text) != token(before.text)


@pytest.mark.parametrize("other", [None, BERT])
def test_the_cookie_alone_or_with_another_certificate_is_no_log_in(other: bytes | None) -> None:
    world = Browsers()
    with world.console() as browser:
        log_in(browser)
        assert browser.get("/c/test/").status_code == 200
        world.certificate = other
        assert browser.get("/c/test/").status_code == 303
        world.certificate = ANNA
        assert browser.get("/c/test/").status_code == 303, "the session has ended"
        browser.get("/healthz")
        assert world.cluster.tokens == {}


def test_a_log_out_and_the_end_of_a_session_delete_the_token() -> None:
    world = Browsers()
    clock = [0.0]
    with world.console(clock=clock, idle_s=600) as browser:
        log_in(browser)
        browser.post("/c/test/logout", data={"csrf": token(browser.get("/c/test/").text)}, headers=ORIGIN)
        browser.get("/healthz")
        assert world.cluster.tokens == {}
        log_in(browser)
        assert len(world.cluster.tokens) == 1
        clock[0] += 601
        assert browser.get("/c/test/").status_code == 303
        browser.get("/healthz")
        assert world.cluster.tokens == {}
        log_in(browser)
    assert world.cluster.tokens == {}, "the console has stopped"
    assert world.cluster.clients == 0


def test_a_log_in_ends_with_its_token() -> None:
    world = Browsers()
    world.cluster.token_ms_max = 0
    with world.console() as browser:
        log_in(browser)
        assert browser.get("/c/test/").status_code == 303


def test_brokers_may_hear_of_a_token_a_moment_later() -> None:
    world = Browsers()
    world.cluster.late_logins = 2
    with world.console() as browser:
        assert log_in(browser).status_code == 303
        assert "User:anna" in browser.get("/c/test/").text


def test_without_a_certificate_the_page_says_how_to_come_with_one() -> None:
    world = Browsers()
    world.certificate = None
    with world.console() as browser:
        form = browser.get("/c/test/login").text
        assert "presented no client certificate" in form
        assert '<button class="main"' not in form
        assert log_in(browser).status_code == 401
        assert world.cluster.tokens == {}


def test_a_certificate_that_no_rule_maps_is_refused_with_its_subject_as_text() -> None:
    world = Browsers()
    world.cluster.security["ssl.principal.mapping.rules"] = "RULE:^CN=Anna,.*$/anna/"
    world.certificate = BERT
    with world.console() as browser:
        form = browser.get("/c/test/login").text
        assert "gives no user" in form
        assert "<b>Bert" not in form
        assert log_in(browser).status_code == 401


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            errors.DelegationTokenAuthorizationFailedError(),
            "ottla acls add --allow User:console --operation create-tokens --user User:anna",
        ),
        (errors.DelegationTokenAuthDisabledError(), "delegation.token.secret.key"),
        (errors.SaslAuthenticationFailedError("no"), "refused the console&#39;s own user User:console"),
        (errors.UnsupportedVersionError("owner"), "does not support it"),
        (OSError("connection refused"), "connection refused"),
    ],
)
def test_a_token_that_cannot_be_made_is_explained(error: Exception, says: str) -> None:
    world = Browsers()
    world.cluster.fail["create_delegation_token"] = error
    with world.console() as browser:
        refused = log_in(browser)
        assert refused.status_code == 503
        assert says in refused.text
        assert browser.get("/c/test/").status_code == 303


def test_a_token_that_the_brokers_refuse_is_deleted_and_no_client_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ottla_console.cluster.credentials.DelegationToken.known_within_s", 0.0)
    world = Browsers()
    world.cluster.late_logins = 100
    with world.console() as browser:
        refused = log_in(browser)
        assert refused.status_code == 401
        assert "The brokers refused the log-in" in refused.text
        assert world.cluster.tokens == {}
        assert world.cluster.clients == 0


def test_a_token_that_cannot_be_deleted_is_reported_without_it(caplog: pytest.LogCaptureFixture) -> None:
    world = Browsers()
    caplog.set_level(logging.DEBUG)
    with world.console() as browser:
        log_in(browser)
        world.cluster.fail["expire_delegation_token"] = OSError("connection refused")
    assert "the delegation token of 'User:anna' was not deleted" in caplog.text
    (made,) = world.cluster.tokens.values()
    for secret in ("own secret", made.hmac.decode(), "aG1hYyBvZiB0b2tlbi0w"):
        assert secret not in caplog.text


def test_a_request_cannot_bring_a_certificate_by_a_header() -> None:
    world = Browsers()
    world.certificate = None
    pem = _AUTHORITY.sign("Anna").chain_pem.replace("\n", " ")
    forged = {"ssl-client-cert": pem, "x-forwarded-client-cert": pem, "ottla.client_certificate": pem}
    with world.console() as browser:
        assert "presented no client certificate" in browser.get("/c/test/login", headers=forged).text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"security.protocol": "SSL"}, "console's own user"),
        ({"sasl.mechanism": "PLAIN"}, "SCRAM-SHA-512 or SCRAM-SHA-256"),
        ({"sasl.jaas.config": "x required;"}, "username"),
        ({"ssl.principal.mapping.rules": "RULE:(/x/"}, "ssl.principal.mapping.rules"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(says)) as raised:
        cluster_of("test", "broker-0:9092", {**SCRAM, **changes}, "certificate")
    assert "own secret" not in str(raised.value)


def test_the_rules_of_the_mapping_are_no_property_of_clients() -> None:
    cluster = cluster_of("test", "broker-0:9092", SCRAM, "certificate")
    assert cluster.login is Login.CERTIFICATE
    assert "ssl.principal.mapping.rules" not in cluster.properties
