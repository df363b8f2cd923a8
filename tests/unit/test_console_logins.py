"""Log-ins of the console by client certificate and by OIDC, over a cluster and a provider in memory."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from ottla.client import errors
from ottla.protocol.errors import KafkaError
from ottla.security.https import HttpProblem
from ottla_console.command import console
from ottla_console.settings import Login, OpenIdClient, SettingsError, cluster_of, read_clusters
from ottla_console.web.client_certificates import certified
from tests.certificates import Authority
from tests.worlds.console_cluster import FakeCluster
from tests.worlds.openid_provider import CLIENT, ISSUER, SECRET, FakeProvider

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
        assert "The brokers refused the delegation token of the log-in" in refused.text
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


# --- at an OpenID provider ---


class Sso:
    """A fake cluster with log-in at a fake provider, and the wall clock."""

    def __init__(self) -> None:
        self.wall_ms = time.time_ns() // 1_000_000
        self.provider = FakeProvider(lambda: self.wall_ms)
        self.cluster = FakeCluster()
        self.cluster.security = {"security.protocol": "SASL_SSL"}
        self.cluster.login = "oidc"
        self.cluster.oidc = OpenIdClient(ISSUER, CLIENT, SECRET, ("openid", "email"), {"resource": "kafka"})

    @contextmanager
    def console(self, **settings: Any) -> Iterator[TestClient]:
        fetch = self.provider.fetch
        with self.cluster.console(tls=True, fetch=fetch, now_ms=lambda: self.wall_ms, **settings) as browser:
            yield browser

    def begin(self, browser: TestClient, after: str = "/c/test/topics") -> str:
        """The URL of the provider that the browser is sent to."""
        sent = browser.get("/c/test/login/provider", params={"next": after})
        assert sent.status_code == 303, sent.text
        return str(sent.headers["location"])

    def log_in(self, browser: TestClient, after: str = "/c/test/topics") -> Any:
        url = self.begin(browser, after)
        return self.come_back(browser, url)

    def come_back(self, browser: TestClient, url: str, **params: str) -> Any:
        state = parse_qs(urlsplit(url).query)["state"][0]
        given = {"code": self.provider.authorize(url), "state": state, **params}
        return browser.get("/login/callback", params=given, headers={"sec-fetch-site": "cross-site"})


def test_a_person_logs_in_at_the_provider_and_acts_by_the_access_token() -> None:
    world = Sso()
    with world.console() as browser:
        assert browser.get("/c/test/topics").headers["location"].startswith("/c/test/login?next=")
        form = browser.get("/c/test/login?next=/c/test/topics").text
        assert "Log in with sso.example" in form
        url = world.begin(browser)
        query = {name: found[0] for name, found in parse_qs(urlsplit(url).query).items()}
        assert url.startswith(f"{ISSUER}/authorize?tenant=7&")
        assert query["redirect_uri"] == "https://127.0.0.1/login/callback"
        assert (query["response_type"], query["scope"], query["resource"]) == (
            "code",
            "openid email",
            "kafka",
        )
        assert query["code_challenge_method"] == "S256"
        done = world.come_back(browser, url)
        assert (done.status_code, done.headers["location"]) == (303, "/c/test/topics")
        page = browser.get("/c/test/topics").text
        assert "User:anna" in page
        assert set(world.cluster.bearers) <= set(world.provider.issued)
        assert not any(each in page for each in world.provider.issued)


def test_a_log_in_at_the_provider_changes_the_session_id() -> None:
    world = Sso()
    with world.console() as browser:
        world.begin(browser)
        before = browser.cookies["__Host-ottla-console"]
        done = world.log_in(browser)
        assert browser.cookies["__Host-ottla-console"] != before
        assert "Secure" in done.headers["set-cookie"]
        assert "HttpOnly" in done.headers["set-cookie"]
        assert "SameSite=lax" in done.headers["set-cookie"]


@pytest.mark.parametrize(
    "after", ["//evil.example/", "https://evil.example/", "/c/test//x", "/login/callback"]
)
def test_a_log_in_at_the_provider_never_leads_to_another_site(after: str) -> None:
    world = Sso()
    with world.console() as browser:
        assert world.log_in(browser, after).headers["location"] == "/c/test/"


def test_an_answer_is_for_the_browser_that_has_begun_the_log_in_and_for_once() -> None:
    world = Sso()
    with world.console() as browser:
        url = world.begin(browser)
        kept = dict(browser.cookies)
        browser.cookies.clear()
        assert world.come_back(browser, url).status_code == 400, "another browser"
        browser.cookies.clear()
        browser.cookies.update(kept)
        assert world.come_back(browser, url, state="guessed").status_code == 400
        assert world.come_back(browser, url).status_code == 303
        assert world.come_back(browser, url).status_code == 400, "the state was used"


def test_an_answer_after_ten_minutes_is_too_late() -> None:
    world = Sso()
    clock = [0.0]
    with world.console(clock=clock) as browser:
        url = world.begin(browser)
        clock[0] += 601
        assert world.come_back(browser, url).status_code == 400


def test_a_page_elsewhere_cannot_begin_a_log_in() -> None:
    world = Sso()
    with world.console() as browser:
        asked = browser.get("/c/test/login/provider", headers={"sec-fetch-site": "cross-site"})
        assert asked.status_code == 200
        assert "Log in with sso.example" in asked.text


def test_the_answer_of_another_issuer_is_refused() -> None:
    world = Sso()
    with world.console() as browser:
        refused = world.come_back(browser, world.begin(browser), iss="https://evil.example")
        assert refused.status_code == 503
        assert "of another issuer" in refused.text
        assert world.come_back(browser, world.begin(browser), iss=ISSUER).status_code == 303


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"iss": "https://evil.example"}, "InvalidIssuerError"),
        ({"aud": "another"}, "InvalidAudienceError"),
        ({"aud": [CLIENT, "another"]}, "issued to another client"),
        ({"azp": "another"}, "issued to another client"),
        ({"nonce": "another"}, "belongs to another log-in"),
        ({"nonce": None}, "belongs to another log-in"),
        ({"exp": 1_000}, "ExpiredSignatureError"),
        ({"exp": None}, "MissingRequiredClaimError"),
        ({"sub": None}, "MissingRequiredClaimError"),
    ],
)
def test_an_id_token_that_is_not_for_this_log_in_is_refused(changes: dict[str, object], says: str) -> None:
    world = Sso()
    world.provider.changes = changes
    with world.console() as browser:
        refused = world.log_in(browser)
        assert refused.status_code == 503
        assert says in refused.text
        assert browser.get("/c/test/topics").status_code == 303
        assert world.cluster.clients == 0


def test_an_id_token_for_several_with_the_console_as_authorized_party_is_valid() -> None:
    world = Sso()
    world.provider.changes = {"aud": [CLIENT, "another"], "azp": CLIENT}
    with world.console() as browser:
        assert world.log_in(browser).status_code == 303


def test_an_id_token_of_a_key_that_is_not_the_providers_is_refused() -> None:
    world = Sso()
    world.provider.key = ec.generate_private_key(ec.SECP256R1())
    with world.console() as browser:
        assert "InvalidSignatureError" in world.log_in(browser).text


def test_new_keys_of_the_provider_are_fetched_but_not_at_every_log_in() -> None:
    world = Sso()
    clock = [0.0]
    with world.console(clock=clock) as browser:
        assert world.log_in(browser).status_code == 303
        world.provider.keys = {"two": ec.generate_private_key(ec.SECP256R1())}
        world.provider.key_id = "two"
        assert "signed by no key" in world.log_in(browser).text
        assert world.provider.requests.count("/keys") == 1
        clock[0] += 31
        assert world.log_in(browser).status_code == 303
        assert world.provider.requests.count("/keys") == 2
        assert world.provider.requests.count("/.well-known/openid-configuration") == 1


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"issuer": "https://evil.example"}, "not that of the issuer"),
        ({"token_endpoint": "http://sso.example/token"}, "no usable token_endpoint"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "no usable authorization_endpoint"),
        ({"jwks_uri": None}, "no usable jwks_uri"),
    ],
)
def test_a_discovery_document_that_cannot_be_used_is_refused(document: dict[str, object], says: str) -> None:
    world = Sso()
    world.provider.document |= document
    with world.console() as browser:
        refused = browser.get("/c/test/login/provider")
        assert refused.status_code == 503
        assert says in refused.text


def test_a_provider_that_is_away_or_refuses_is_named_without_what_it_sent() -> None:
    world = Sso()
    with world.console() as browser:
        world.provider.fail["/token"] = HttpProblem('HTTP 400 {"error":"invalid_grant","x":"a token"}', 400)
        refused = world.log_in(browser)
        assert refused.status_code == 401
        assert "/realm/token responded HTTP 400 invalid_grant" in refused.text
        assert "a token" not in refused.text
        world.provider.fail["/token"] = HttpProblem("connection refused")
        assert "no response of sso.example: connection refused" in world.log_in(browser).text
        denied = world.begin(browser)
        state = parse_qs(urlsplit(denied).query)["state"][0]
        back = browser.get("/login/callback", params={"error": "access_denied<b>", "state": state})
        assert back.status_code == 401
        assert "responded access_denied&lt;b&gt;" in back.text
        again = browser.get("/login/callback", params={"code": "x", "state": state})
        assert again.status_code == 400, "the state was used"


def test_a_provider_may_want_the_secret_in_the_form() -> None:
    world = Sso()
    world.provider.document["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    with world.console() as browser:
        assert world.log_in(browser).status_code == 303


def test_a_token_that_is_no_jwt_or_that_the_brokers_refuse_is_explained() -> None:
    world = Sso()
    world.provider.opaque = True
    with world.console() as browser:
        assert "not a JWT" in world.log_in(browser).text
        world.provider.opaque = False
        world.cluster.refuses_bearers = True
        refused = world.log_in(browser)
        assert refused.status_code == 401
        assert "The brokers refused the access token of the provider" in refused.text
        assert world.cluster.clients == 0
        assert len(world.provider.revoked) == 1


def test_a_log_in_ends_with_the_access_token_if_there_is_no_refresh_token() -> None:
    world = Sso()
    world.provider.refreshes = False
    with world.console() as browser:
        world.log_in(browser)
        assert browser.get("/c/test/topics").status_code == 200
        world.wall_ms += 601_000
        assert browser.get("/c/test/topics").status_code == 303


def test_the_access_token_is_renewed_while_the_session_lives() -> None:
    world = Sso()
    with world.console() as browser:
        world.log_in(browser)
        first = world.cluster.bearers[-1]
        world.wall_ms += 460_000
        (access,) = browser.console.accesses._open.values()  # type: ignore[attr-defined]
        browser.portal.call(access.credentials.token)
        second = browser.portal.call(access.credentials.token)
        assert second != first
        assert world.provider.requests.count("/token") == 2, "renewed once"
        world.wall_ms += 601_000
        assert browser.get("/c/test/topics").status_code == 200


def test_a_renewal_that_the_provider_refuses_ends_the_log_in() -> None:
    world = Sso()
    with world.console() as browser:
        world.log_in(browser)
        (access,) = browser.console.accesses._open.values()  # type: ignore[attr-defined]
        world.wall_ms += 460_000
        world.provider.fail["/token"] = HttpProblem("connection refused")
        assert browser.portal.call(access.credentials.token) in world.provider.issued, "still valid"
        world.provider.fail["/token"] = HttpProblem('HTTP 400 {"error":"invalid_grant"}', 400)
        with pytest.raises(KafkaError, match="the log-in has ended"):
            browser.portal.call(access.credentials.token)
        assert browser.get("/c/test/topics").status_code == 303


def test_a_renewal_that_gives_another_principal_ends_the_log_in() -> None:
    world = Sso()
    with world.console() as browser:
        world.log_in(browser)
        (access,) = browser.console.accesses._open.values()  # type: ignore[attr-defined]
        world.wall_ms += 460_000
        world.provider.subject = "root"
        with pytest.raises(KafkaError, match="the log-in has ended"):
            browser.portal.call(access.credentials.token)
        assert browser.get("/c/test/topics").status_code == 303


def test_a_log_out_revokes_the_refresh_token_and_offers_that_of_the_provider() -> None:
    world = Sso()
    with world.console() as browser:
        world.log_in(browser)
        csrf = token(browser.get("/c/test/topics").text)
        out = browser.post("/c/test/logout", data={"csrf": csrf}, headers=ORIGIN)
        page = browser.get(out.headers["location"]).text
        assert f'href="{ISSUER}/logout?client_id=ottla+console"' in page
        assert world.provider.revoked == [each for each in world.provider.issued if "refresh" in each]
        assert browser.get("/c/test/topics").status_code == 303


def test_no_token_code_or_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = Sso()
    caplog.set_level(logging.DEBUG)
    with world.console() as browser:
        world.log_in(browser)
        world.provider.fail["/revoke"] = HttpProblem("connection refused")
    assert "the refresh token of 'User:anna' was not revoked" in caplog.text
    ours = "\n".join(each.getMessage() for each in caplog.records if each.name.startswith("ottla"))
    assert not any(each in ours for each in (*world.provider.issued, SECRET))


_OIDC = """
clusters:
  - name: test
    bootstrap: broker-0:9092
    properties: {{security.protocol: {protocol}, sasl.oauthbearer.sub.claim.name: email}}
    login: oidc
    oidc: {{issuer: "{issuer}", client_id: console, client_secret: geheim, scopes: [{scopes}]}}
"""


def test_the_file_of_clusters_has_a_section_for_the_provider(tmp_path: Path) -> None:
    file = tmp_path / "console.yaml"
    file.write_text(_OIDC.format(protocol="SASL_SSL", issuer=ISSUER, scopes="openid, email"))
    (cluster,) = read_clusters(file)
    assert cluster.oidc == OpenIdClient(ISSUER, "console", "geheim", ("openid", "email"))
    assert "geheim" not in repr(cluster)


@pytest.mark.parametrize(
    ("protocol", "issuer", "scopes", "says"),
    [
        ("SSL", ISSUER, "openid", "needs security.protocol SASL"),
        ("SASL_SSL", "http://sso.example", "openid", "must be an https:// URL"),
        ("SASL_SSL", ISSUER, "email", "must have openid"),
    ],
)
def test_a_section_that_cannot_work_is_refused(
    tmp_path: Path, protocol: str, issuer: str, scopes: str, says: str
) -> None:
    file = tmp_path / "console.yaml"
    file.write_text(_OIDC.format(protocol=protocol, issuer=issuer, scopes=scopes))
    with pytest.raises(SettingsError, match=re.escape(says)):
        read_clusters(file)
    with pytest.raises(SettingsError, match="go together"):
        cluster_of("test", "broker-0:9092", {"security.protocol": "SASL_SSL"}, "oidc")


# --- the command ---


def write_properties(folder: Path) -> str:
    file = folder / "console.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in SCRAM.items()))
    return str(file)


def test_a_log_in_by_certificate_needs_an_authority_of_client_certificates(tmp_path: Path) -> None:
    pem = str(_AUTHORITY.sign("console").write_pem(tmp_path / "console.pem"))
    options = [
        "-b",
        "broker-0:9092",
        "--command-config",
        write_properties(tmp_path),
        "--login",
        "certificate",
    ]
    refused = CliRunner().invoke(console, [*options, "--tls-cert", pem, "--tls-key", pem])
    assert refused.exit_code == 2
    assert "login=certificate needs --tls-cert, --tls-key, --tls-client-ca" in refused.output
    alone = CliRunner().invoke(console, [*options, "--tls-client-ca", pem])
    assert alone.exit_code == 2
    assert "--tls-client-ca needs --tls-cert and --tls-key" in alone.output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--login", "oidc"], "login=oidc and a section oidc of --config go together"),
        (["--pipeline", "lake:9404"], "--pipeline lake:9404: must be http://HOST:PORT"),
    ],
)
def test_options_that_cannot_work_are_refused(options: list[str], says: str) -> None:
    refused = CliRunner().invoke(console, ["-b", "broker-0:9092", *options])
    assert refused.exit_code == 2
    assert says in refused.output


def test_authorities_of_the_provider_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "console.yaml"
    text = _OIDC.format(protocol="SASL_PLAINTEXT", issuer=ISSUER, scopes="openid")
    file.write_text(text.replace("scopes:", f'ca: "{tmp_path / "missing.pem"}", scopes:'))
    refused = CliRunner().invoke(console, ["--config", str(file)])
    assert refused.exit_code == 2
    assert "missing.pem" in refused.output
    assert "geheim" not in refused.output
