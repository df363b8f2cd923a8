"""Log-ins of the console by client certificate and at an OpenID provider, in Chromium: to Ottla and Apache
Kafka, with ACLs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from bench.apache_kafka import KafkaBroker
from ottla.client.blocking import AdminClient
from ottla.local.processes import free_port, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.security.acls import AclBinding, Entry, Operation, Permission, ResourcePattern, ResourceType
from tests.certificates import Authority, Certified
from tests.judges.browser import Visitor, chromium, console
from tests.judges.one_broker import one_broker
from tests.judges.openid_provider import AUDIENCE, CLIENT, SECRET, OpenIdProvider, openid_provider
from tests.judges.secured import OAUTH_MODULE, SCRAM_MODULE
from tests.oracles import needs_kafka_jars

pytestmark = [pytest.mark.timeout(300), pytest.mark.budget(60)]

CONSOLE = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": f'{SCRAM_MODULE} required username="console" password="own secret";',
    "ssl.principal.mapping.rules": "RULE:^CN=(.*?),OU=People.*$/$1/L",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def allow(principal: str, operation: Operation, kind: ResourceType, name: str) -> AclBinding:
    return AclBinding(ResourcePattern(kind, name), Entry(principal, "*", operation, Permission.ALLOW))


class Place(NamedTuple):
    address: str
    secured: str
    """The brokers' listener with SASL."""
    authority: Authority

    def visitor(self, browser: Browser, person: Certified | None) -> Visitor:
        files = {}
        if person is not None:
            files = {
                "origin": self.address.rstrip("/"),
                "cert": person.chain_pem.encode(),
                "key": person.key_pem().encode(),
            }
        return Visitor(
            browser, self.address, ignore_https_errors=True, client_certificates=[files] if files else None
        )


@contextmanager
def brokers(kind: str, folder: Path, settings: dict[str, str]) -> Iterator[str]:
    """The address of the listener without authentication."""
    if kind == "ottla":
        with one_broker(folder, settings) as broker:
            yield broker.bootstrap
        return
    needs_kafka_jars()
    zookeeper = EmbeddedZooKeeper(folder / "zookeeper")
    port = int(settings["listeners"].partition(",")[0].rpartition(":")[2])
    kafka = KafkaBroker(folder / "kafka", zookeeper.connect, port=port, settings=settings)
    try:
        zookeeper.start()
        kafka.start()
        yield kafka.bootstrap
    finally:
        kafka.stop()
        zookeeper.stop()


@pytest.fixture(scope="module", params=["ottla", "apache"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Anna may describe the topic `orders`, and the console may log in as her, but not as Bert."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority()
    pem = authority.write(folder / "authority.pem")
    own = authority.sign("console").write_pem(folder / "console.pem")
    secured = f"127.0.0.1:{free_port()}"
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()},SASL_PLAINTEXT://{secured}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
        "delegation.token.secret.key": "the secret of the brokers",
    }
    with brokers(request.param, folder, settings) as bootstrap:
        with AdminClient(bootstrap_servers=bootstrap) as admin:
            admin.set_scram_credential("console", "SCRAM-SHA-512", "own secret")
            for topic in ("orders", "private"):
                admin.create_topic(topic, partitions=1, replication_factor=1)
            admin.create_acls(
                [
                    allow("User:anna", Operation.DESCRIBE, ResourceType.TOPIC, "orders"),
                    allow("User:console", Operation.CREATE_TOKENS, ResourceType.USER, "User:anna"),
                ]
            ).raise_first()
        options = ("--tls-cert", str(own), "--tls-key", str(own), "--tls-client-ca", str(pem))
        options += ("-b", secured, "--name", "it", "--login", "certificate")
        with console(folder, *options, config=CONSOLE) as running:
            yield Place(running, secured, authority)


def tokens(place: Place) -> list[str]:
    """The owners of the delegation tokens, as the console's own user sees them."""
    own = {key: value for key, value in CONSOLE.items() if not key.startswith("ssl.")}
    with AdminClient({"bootstrap.servers": place.secured, **own}) as admin:
        return [each.owner for each in admin.describe_delegation_tokens()]


def test_a_client_certificate_acts_as_its_principal_and_acls_decide(browser: Browser, place: Place) -> None:
    person = place.visitor(browser, place.authority.sign("Anna", unit="People"))
    page = person.visit("/c/it/topics")
    expect(page.locator("h1")).to_have_text("Log in to it")
    expect(page.locator("dl")).to_contain_text("User:anna")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("h1")).to_have_text("Topics")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody")).to_contain_text("orders")
    page = person.visit("/c/it/topics/orders/settings")
    expect(page.locator(".problems")).to_contain_text("User:anna lacks DescribeConfigs on the topic orders")
    page = person.visit("/c/it/topics/private", status=404)
    assert tokens(place) == ["User:anna"]
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("h1")).to_have_text("Log in to it")
    assert wait_until(lambda: tokens(place) == [], timeout_s=20)
    person.close()


def test_the_console_cannot_log_in_for_those_that_the_brokers_do_not_allow(
    browser: Browser, place: Place
) -> None:
    person = place.visitor(browser, place.authority.sign("Bert", unit="People"))
    page = person.visit("/c/it/topics")
    page.get_by_role("button", name="Log in").click()
    command = "ottla acls add --allow User:console --operation create-tokens --user User:bert"
    expect(page.get_by_role("alert").locator("code")).to_have_text(command)
    assert person.findings() == []
    person.close()


def test_a_browser_without_a_certificate_sees_what_is_missing(browser: Browser, place: Place) -> None:
    person = place.visitor(browser, None)
    page = person.visit("/c/it/topics")
    expect(page.get_by_role("alert")).to_contain_text("presented no client certificate")
    person.close()


def test_a_certificate_of_another_authority_reaches_no_page(browser: Browser, place: Place) -> None:
    person = place.visitor(browser, Authority("Elsewhere").sign("Anna", unit="People"))
    with pytest.raises(Exception, match="ERR_"):
        person.page.goto("/c/it/topics")
    person.close()


# --- at an OpenID provider ---

VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


class Sso(NamedTuple):
    address: str
    provider: OpenIdProvider
    log: Path
    """Of the console."""


@pytest.fixture(scope="module", params=["ottla", "apache"])
def sso(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sso]:
    """Dora may describe the topic `orders`; access tokens live for 10 s."""
    folder = tmp_path_factory.mktemp("oidc")
    secured, port = f"127.0.0.1:{free_port()}", free_port()
    address = f"http://127.0.0.1:{port}"
    with openid_provider(folder, f"{address}/login/callback", access_token_s=10) as provider:
        listener = "listener.name.sasl_plaintext"
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{free_port()},SASL_PLAINTEXT://{secured}",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{listener}.oauthbearer.sasl.server.callback.handler.class": VALIDATOR,
            f"{listener}.oauthbearer.sasl.jaas.config": f"{OAUTH_MODULE} required;",
            f"{listener}.sasl.oauthbearer.jwks.endpoint.url": provider.keys_url,
            f"{listener}.sasl.oauthbearer.expected.audience": AUDIENCE,
            f"{listener}.sasl.oauthbearer.expected.issuer": provider.issuer,
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:ANONYMOUS",
            "connections.max.reauth.ms": "3600000",
        }
        with brokers(request.param, folder, settings) as bootstrap:
            with AdminClient(bootstrap_servers=bootstrap) as admin:
                for topic in ("orders", "private"):
                    admin.create_topic(topic, partitions=1, replication_factor=1)
                admin.create_acls(
                    [allow("User:dora", Operation.DESCRIBE, ResourceType.TOPIC, "orders")]
                ).raise_first()
            file = folder / "console.yaml"
            cluster = {
                "name": "it",
                "bootstrap": secured,
                "properties": {"security.protocol": "SASL_PLAINTEXT"},
                "login": "oidc",
                "oidc": {"issuer": provider.issuer, "client_id": CLIENT, "client_secret": SECRET},
            }
            file.write_text(json.dumps({"clusters": [cluster]}))
            with console(folder, "--config", str(file), "--port", str(port)) as running:
                assert running.rstrip("/") == address
                yield Sso(address, provider, folder / "console.log")


def log_in_at_provider(page: Page, name: str) -> None:
    page.get_by_role("link", name="Log in with 127.0.0.1").click()
    page.locator('input[name="login"]').fill(name)
    page.locator('input[name="password"]').fill("any")
    page.locator('button[type="submit"]').click()
    page.locator('button[type="submit"]').click()  # the consent


def test_a_person_of_the_provider_is_a_principal_of_the_brokers_while_tokens_are_renewed(
    browser: Browser, sso: Sso
) -> None:
    person = Visitor(browser, sso.address)
    page = person.visit("/c/it/topics?q=o")
    log_in_at_provider(page, "dora")
    expect(page).to_have_url(f"{sso.address}/c/it/topics?q=o")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody")).to_contain_text("orders")
    person.visit("/c/it/topics/private", status=404)
    page = person.visit("/c/it/topics/orders/settings")
    expect(page.locator(".problems")).to_contain_text("User:dora lacks DescribeConfigs on the topic orders")

    def grants() -> int:
        return sso.provider.log().count("grant.success OK")

    before = grants()  # the first token has ended once it was renewed twice
    assert wait_until(lambda: grants() >= before + 2, timeout_s=60), sso.provider.log()
    page = person.visit("/c/it/topics")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator(".problems")).to_have_count(0)
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("status")).to_contain_text("You are logged out of the console")
    person.check()
    assert wait_until(lambda: "grant.revoked OK " in sso.provider.log(), timeout_s=20)
    page.goto("/c/it/topics")
    expect(page.locator("h1")).to_have_text("Log in to it")
    assert "ey" not in "".join(re.findall(r"[A-Za-z0-9_-]{40,}", sso.log.read_text())), "a token in the log"
    person.close()


def test_a_person_who_cancels_at_the_provider_sees_why_there_is_no_log_in(browser: Browser, sso: Sso) -> None:
    person = Visitor(browser, sso.address)
    page = person.visit("/c/it/topics")
    page.get_by_role("link", name="Log in with 127.0.0.1").click()
    page.get_by_text("Cancel").click()
    expect(page.get_by_role("alert")).to_contain_text("did not log you in: it responded access_denied")
    assert person.findings() == []
    person.close()
