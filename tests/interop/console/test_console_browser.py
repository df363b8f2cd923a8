"""Every page of the console in Chromium, against Ottla and Apache Kafka; hostile names, ACLs that forbid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect
from prometheus_client import CollectorRegistry

from ottla.client.blocking import AdminClient, Producer
from ottla.local.processes import free_port
from ottla.security.acls import (
    AclBinding,
    Entry,
    Operation,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla_console.registry import PAGES
from ottla_pipeline.progress import Status
from ottla_pipeline.status_port import StatusPort
from tests.judges.browser import Visitor, chromium, console
from tests.judges.one_broker import one_broker
from tests.judges.registries import Registry
from tests.judges.secured import PLAIN_MODULE

pytestmark = pytest.mark.timeout(300)

HOSTILE = "<script>alert(1)</script>\u202e/../?x=1&y#\u05e2"
GROUPS = ("billing", HOSTILE)
_RECORD = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}%s]}'
SCHEMAS = (_RECORD % "", _RECORD % ', {"name": "note", "type": "string", "default": ""}')
WINDOW = {"start": 1_780_000_000_000, "tier": "lake", "status": "missing", "missing": 17, "duplicated": 0}
URLS = {
    "": "",
    "topics": "topics",
    "topics/{name}": "topics/orders",
    "topics/{name}/records": "topics/orders/records",
    "topics/{name}/record": "topics/orders/record?partition=0&offset=5",
    "topics/{name}/groups": "topics/orders/groups",
    "topics/{name}/settings": "topics/orders/settings",
    "topics/{name}/acls": "topics/orders/acls",
    "topics/{name}/completeness": "topics/orders/completeness",
    "new-topic": "new-topic",
    "topics/{name}/manage": "topics/orders/manage?before:0=2",
    "topics/{name}/setting": "topics/orders/setting?setting=retention.ms",
    "groups": "groups",
    "group": "group?id=billing",
    "group/reset": "group/reset?id=billing&to=earliest&topic=orders",
    "group/delete": "group/delete?id=billing",
    "pipelines": "pipelines",
    "schemas": "schemas",
    "schema": "schema?name=orders-value",
    "acls": "acls",
    "acls/new": "acls/new?principal=User:anna&name=orders&operation=Read",
    "acls/delete": "acls/delete?principal=User:anna&host=*&permission=Allow&operation=Read&kind=topic"
    "&name=orders&pattern=Literal",
    "users": "users",
    "users/set": "users/set",
    "users/delete": "users/delete?user=anna",
    "quotas": "quotas",
    "quotas/edit": "quotas/edit",
    "topics/{name}/producers": "topics/orders/producers",
    "transactions": "transactions",
    "transactions/held": "transactions/held",
    "transaction": "transaction?id=payments-1",
    "reassignments": "reassignments",
    "brokers": "brokers",
    "resources": "resources",
    "partitions": "partitions",
    "brokers/{name}": "brokers/0",
    "brokers/{name}/settings": "brokers/0/settings",
}
"""By the path of each page, one that exists."""
ELSEWHERE = {"topics/{name}/record/content", "topics/{name}/produce"}
"""A file, and a form of consoles that write: test_console_records_browser.py."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module", params=["ottla", "apache"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A console over a cluster with a topic and groups."""
    bootstrap = (
        request.getfixturevalue("broker").bootstrap
        if request.param == "ottla"
        else request.getfixturevalue("apache_kafka")
    )
    folder = tmp_path_factory.mktemp("console")
    with AdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_topic("orders", partitions=3, replication_factor=1, config={"retention.ms": "86400000"})
        admin.set_scram_credential("anna", "SCRAM-SHA-512", "annas word")
        for group in GROUPS:
            admin.alter_group_offsets(group, {("orders", 0): 2}).raise_first()
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(10):
            producer.send("orders", f"record {number}".encode(), partition=0).result(60)
    settings = {
        "bootstrap.servers": bootstrap,
        "transactional.id": "payments-1",
        "transaction.timeout.ms": "600000",
    }
    with Producer(settings) as writer, Registry(bootstrap, folder) as registry, ExitStack() as stack:
        for schema in SCHEMAS:
            status, answer = registry.ask("POST", "/subjects/orders-value/versions", {"schema": schema})
            assert status == 200, answer
        job = Status("lake", "orders", state="Running", application_id="local-1")
        audit = {"completeUntil": 1_780_000_000_000, "missing": 17, "differing": 1, "windows": [WINDOW]}
        job.details["audit"] = {"topics": {"orders": audit}}
        port = StatusPort("127.0.0.1", 0, job.to_json, CollectorRegistry())
        stack.callback(port.close)
        options = ("-b", bootstrap, "--name", "it", "--schema-registry", registry.url)
        options += ("--pipeline", f"http://127.0.0.1:{port.port}")
        running = stack.enter_context(console(folder, *options))
        writer.begin_transaction()
        writer.send("orders", b"not yet", partition=1).result(60)
        yield running
        writer.abort_transaction()


@pytest.fixture
def visitor(browser: Browser, address: str) -> Iterator[Visitor]:
    person = Visitor(browser, address)
    yield person
    person.close()


def test_every_page_has_an_address_here() -> None:
    assert {page.path for page in PAGES if page.method == "GET"} == set(URLS) | ELSEWHERE


@pytest.fixture(scope="module")
def visitors(browser: Browser, address: str) -> Iterator[list[Visitor]]:
    """In light and dark, and on a phone."""
    phone = {"viewport": {"width": 390, "height": 800}, "has_touch": True}
    persons = [Visitor(browser, address, **options) for options in ({}, {"color_scheme": "dark"}, phone)]
    yield persons
    for person in persons:
        person.close()


@pytest.mark.parametrize("path", URLS)
def test_a_page_renders_without_a_finding_in_light_and_dark_and_on_a_phone(
    visitors: list[Visitor], path: str
) -> None:
    for person in visitors:
        page = person.visit(f"/c/it/{URLS[path]}")
        assert page.locator("h1").count() == 1


def test_the_overview_and_the_lists_show_the_cluster(visitor: Visitor) -> None:
    page = visitor.visit("/c/it/")
    expect(page.locator("tbody tr")).to_contain_text("controller", timeout=20_000)
    expect(page.locator("ol", has_text="billing")).to_contain_text("8", timeout=20_000)
    page = visitor.visit("/c/it/topics")
    row = page.locator("tr", has_text="orders")
    expect(row).to_contain_text("billing")
    page = visitor.visit("/c/it/topics/orders")
    expect(page.locator("tbody tr").first).to_contain_text("10")
    page = visitor.visit("/c/it/topics/orders/settings?q=retention.ms")
    expect(page.locator("tr", has_text="retention.ms").first).to_contain_text("86400000")


def test_an_open_transaction_is_seen_from_its_id_and_from_its_topic(visitor: Visitor) -> None:
    page = visitor.visit("/c/it/transactions")
    expect(page.locator("tr", has_text="payments-1")).to_contain_text("Ongoing")
    page.get_by_role("link", name="payments-1").click()
    expect(page.locator("section", has_text="Partitions")).to_contain_text("partition 1")
    page = visitor.visit("/c/it/topics/orders/producers")
    expect(page.locator("tbody tr", has_text="from offset 0")).to_have_count(1)


def test_a_cluster_without_an_authorizer_says_so_on_the_page_of_acls(visitor: Visitor) -> None:
    page = visitor.visit("/c/it/acls")
    expect(page.locator(".problems")).to_contain_text("the brokers have no authorizer")
    expect(page.locator("table")).to_have_count(0)


def test_offsets_lead_to_the_records_at_them(visitor: Visitor) -> None:
    page = visitor.visit("/c/it/group?id=billing")
    page.get_by_role("link", name="2", exact=True).click()
    expect(page.locator("h1")).to_have_text("Partition 0, offset 2")
    expect(page.locator("main")).to_contain_text("record 2")
    page = visitor.visit("/c/it/topics/orders")
    page.get_by_role("link", name="10", exact=True).click()
    expect(page.locator("h1")).to_have_text("Partition 0, offset 9")
    page = visitor.visit("/c/it/transaction?id=payments-1")
    page.get_by_role("link", name="0", exact=True).click()
    expect(page.locator("main")).to_contain_text("not yet")


def test_a_pipeline_is_listed_and_its_audit_leads_to_the_records_of_a_window(visitor: Visitor) -> None:
    page = visitor.visit("/c/it/pipelines")
    expect(page.locator("tbody tr")).to_contain_text("Running", timeout=20_000)
    page = visitor.visit("/c/it/topics/orders/completeness")
    expect(page.locator("section")).to_contain_text("17 records are missing", timeout=20_000)
    visitor.check("completeness")
    page.get_by_role("link", name="2026-05-28 20:26:40").click()
    expect(page.locator("#time")).to_have_value(re.compile("2026-05-28"))


def test_versions_of_a_schema_are_compared(visitor: Visitor) -> None:
    page = visitor.visit("/c/it/schemas")
    page.get_by_role("link", name="orders-value").click()
    expect(page.locator(".diff ins").first).to_contain_text("}")
    expect(page.locator(".diff")).to_contain_text('"name": "note"')
    expect(page.locator(".tiles")).to_contain_text("Backward")
    page.locator('select[name="version"]').select_option("1")
    page.locator('select[name="against"]').select_option("2")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".diff del", has_text="note")).to_have_count(1)
    visitor.check("schema")


def test_a_search_narrows_the_list_while_one_types_and_can_be_shared(visitor: Visitor) -> None:
    page = visitor.visit("/c/it/groups")
    expect(page.locator("tbody tr")).to_have_count(2, timeout=20_000)
    page.keyboard.press("/")
    page.keyboard.type("bill")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"q=bill"))
    visitor.check("groups?q=bill")
    again = visitor.visit(page.url)
    expect(again.locator("tbody tr")).to_have_count(1)


def test_a_page_refreshes_itself_and_keeps_the_focus(visitor: Visitor) -> None:
    page = visitor.visit("/c/it/topics")
    link = page.locator("tbody th a", has_text="orders")
    link.focus()
    with page.expect_response(lambda response: "hx-request" in response.request.headers, timeout=20_000):
        pass
    page.wait_for_timeout(300)  # the morph follows the response
    assert page.evaluate("document.activeElement.textContent") == "orders"
    assert visitor.errors == []


def test_a_hostile_group_is_shown_and_opened_as_text(visitor: Visitor) -> None:
    dialogs: list[str] = []
    visitor.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page = visitor.visit("/c/it/groups")
    expect(page.locator("tbody tr")).to_have_count(2, timeout=20_000)
    page.locator("tbody a", has_text="script").first.click()
    expect(page.locator("h1")).to_have_text("<script>alert(1)</script>\\u202e/../?x=1&y#\u05e2")
    assert f"id={quote(HOSTILE, safe='')}" in page.url.replace("+", "%20")
    expect(page.locator("section", has_text="Partitions")).to_contain_text("8")
    visitor.check("group")
    assert dialogs == []


def test_the_first_stop_of_the_keyboard_leads_to_the_content(visitor: Visitor) -> None:
    page = visitor.visit("/c/it/topics")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"


def test_favourites_are_chosen_by_a_star(visitor: Visitor) -> None:
    page = visitor.visit("/c/it/topics")
    page.get_by_role("button", name="Favourite: orders").click()
    expect(page.get_by_role("button", name="Favourite: orders")).to_have_attribute("aria-pressed", "true")
    page.get_by_label("Favourites").check()
    expect(page.locator("tbody tr")).to_have_count(1)


# --- rights ---

USERS = ("anna", "bert")
JAAS = f"{PLAIN_MODULE} required " + " ".join(f'user_{user}="{user}s word"' for user in USERS) + ";"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A console over a broker of ours with SASL and ACLs: anna may do everything, bert describe one topic."""
    folder: Path = tmp_path_factory.mktemp("secured")
    port = free_port()
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:{port}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS;User:anna",
    }
    with one_broker(folder, settings) as broker:
        with AdminClient(bootstrap_servers=broker.bootstrap) as admin:
            for topic in ("orders", "private"):
                admin.create_topic(topic, partitions=1, replication_factor=1)
            allowed = Entry("User:bert", "*", Operation.DESCRIBE, Permission.ALLOW)
            binding = AclBinding(ResourcePattern(ResourceType.TOPIC, "orders"), allowed)
            admin.create_acls([binding]).raise_first()
        security = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        options = ("-b", f"127.0.0.1:{port}", "--name", "it")
        with console(folder, *options, config=security) as running:
            yield running


def log_in(visitor: Visitor, user: str, password: str) -> None:
    page = visitor.page
    page.goto("/c/it/topics")
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_load_state()


def test_a_wrong_password_is_told_and_a_right_one_leads_to_the_page(browser: Browser, secured: str) -> None:
    person = Visitor(browser, secured)
    log_in(person, "anna", "guessed")
    expect(person.page.get_by_role("alert")).to_contain_text("refused this user and password")
    assert person.findings() == []
    log_in(person, "anna", "annas word")
    expect(person.page.locator("h1")).to_have_text("Topics")
    expect(person.page.locator("tbody tr")).to_have_count(2)
    person.page.get_by_role("button", name="Log out").click()
    expect(person.page.locator("h1")).to_have_text("Log in to it")
    person.close()


def test_acls_decide_what_is_shown_and_the_missing_right_is_named(browser: Browser, secured: str) -> None:
    person = Visitor(browser, secured)
    log_in(person, "bert", "berts word")
    expect(person.page.locator("tbody tr")).to_have_count(1)
    expect(person.page.locator("tbody")).to_contain_text("orders")
    page = person.visit("/c/it/topics/orders/settings")
    expect(page.locator(".problems")).to_contain_text("User:bert lacks DescribeConfigs on the topic orders")
    command = "ottla acls add --allow User:bert --operation describe-configs --topic orders"
    expect(page.locator(".problems code")).to_have_text(command)
    page = person.visit("/c/it/topics/orders/acls")
    expect(page.locator(".problems")).to_contain_text("User:bert lacks Describe on the cluster")
    page = person.visit("/c/it/brokers/0")
    expect(page.locator(".problems")).to_contain_text("User:bert lacks Describe on the cluster")
    page = person.visit("/c/it/topics/private", status=404)
    expect(page.locator(".empty")).to_contain_text("may not Describe it")
    page = person.visit("/c/it/group?id=secret")
    expect(page.locator(".problems").first).to_contain_text("User:bert lacks Describe on the group secret")
    person.close()
