"""Changes by the console in Chromium, on a broker of Ottla with ACLs; Kafka's own tools judge the outcome."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from ottla.client.admin_types import QuotaEntity
from ottla.client.blocking import AdminClient, Consumer, Producer
from ottla.local.processes import free_port
from ottla.security.acls import AclBinding, Entry, Operation, Permission, ResourcePattern, ResourceType
from tests.judges.browser import Visitor, chromium, console
from tests.judges.kafka_tools import Command, run_all
from tests.judges.one_broker import one_broker
from tests.judges.secured import PLAIN_MODULE
from tests.oracles import needs_kafka_jars

pytestmark = [pytest.mark.timeout(400), pytest.mark.budget(200)]

ACLS = "kafka.admin.AclCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
JAAS = f'{PLAIN_MODULE} required user_bert="berts word";'
SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}
T0_MS = 1_780_000_000_000
"""2026-05-28T20:26:40Z; record N is of N seconds later."""


class Place(NamedTuple):
    bootstrap: str
    secured: str
    """The address of the listener with SASL."""
    address: str
    directory: Path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A console with --writes over a broker: topic `orders` of 2 partitions with 100 records each."""
    directory = tmp_path_factory.mktemp("changes")
    secured = f"127.0.0.1:{free_port()}"
    listeners = f"PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://{secured}"
    with one_broker(directory, {"listeners": listeners, **SETTINGS}) as broker:
        with AdminClient(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("orders", partitions=2, replication_factor=1, config={"retention.ms": "-1"})
            for group in ("billing", "leaving", "rewound"):
                admin.alter_group_offsets(group, {("orders", 0): 60, ("orders", 1): 90}).raise_first()
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for number in range(200):
                stamp = T0_MS + number // 2 * 1000
                sent = producer.send("orders", b"x", partition=number % 2, timestamp_ms=stamp)
            sent.result(60)
        options = ("-b", broker.bootstrap, "--name", "it", "--writes")
        with console(directory, *options) as running:
            yield Place(broker.bootstrap, secured, running, directory)


@pytest.fixture
def visitor(browser: Browser, place: Place) -> Iterator[Visitor]:
    person = Visitor(browser, place.address)
    yield person
    person.close()


def audit(place: Place) -> str:
    return (place.directory / "console.log").read_text()


# --- groups ---

TARGETS = {
    "--to-earliest": "to=earliest",
    "--to-latest": "to=latest",
    "--to-current": "to=current",
    "--shift-by -70": "to=shift&shift.value=-70",
    "--to-offset 95": "to=offset&offset.value=95",
    "--to-offset 5000": "to=offset&offset.value=5000",
    "--to-datetime 2026-05-28T20:27:10.000": "to=time&time.value=2026-05-28T20:27:10",
    "--to-datetime 2026-05-29T20:27:10.000": "to=time&time.value=2026-05-29T20:27:10",
}


def offsets_in(page: Page) -> dict[int, int]:
    """The new offsets of the preview, by partition."""
    fields = page.locator("input.offset")
    found = {}
    for index in range(fields.count()):
        field = fields.nth(index)
        name = field.get_attribute("name")
        assert name is not None
        found[int(name.split(":")[1])] = int(field.input_value())
    return found


def test_the_preview_has_the_offsets_of_kafkas_tool(visitor: Visitor, place: Place) -> None:
    needs_kafka_jars()
    server = ["--bootstrap-server", place.bootstrap, "--timeout", "90000"]
    scope = ["--group", "billing", "--topic", "orders", "--reset-offsets", "--dry-run"]
    asked = [Command(GROUPS, [*server, *scope, *option.split()]) for option in TARGETS]
    printed = run_all(asked, place.directory)
    differing = {}
    for (option, query), shown in zip(TARGETS.items(), printed, strict=True):
        rows = re.findall(r"billing\s+orders\s+(\d+)\s+(\d+)", shown.out, re.MULTILINE)
        kafkas = {int(partition): int(offset) for partition, offset in rows}
        assert len(kafkas) == 2, shown
        ours = offsets_in(visitor.visit(f"/c/it/group/reset?id=billing&topic=orders&{query}"))
        if ours != kafkas:
            differing[option] = (kafkas, ours)
    assert not differing


def test_a_group_is_rewound_by_clicks_and_kafkas_tool_sees_it(visitor: Visitor, place: Place) -> None:
    needs_kafka_jars()
    page = visitor.visit("/c/it/group?id=rewound")
    page.get_by_role("link", name="Reset offsets").click()
    page.get_by_label("Records", exact=True).fill("-40")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("80 records are read again")).to_be_visible()
    visitor.check("preview")
    page.get_by_label("New offset of orders-1").fill("55")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("The offsets were edited")).to_be_visible()
    expect(page.get_by_text("75 records are read again")).to_be_visible()
    page.get_by_role("button", name="Apply").click()
    expect(page.locator(".flash")).to_contain_text("The offsets of 2 partitions are reset")
    (shown,) = run_all(
        [Command(GROUPS, ["--bootstrap-server", place.bootstrap, "--describe", "--group", "rewound"])],
        place.directory,
    )
    rows = re.findall(r"rewound\s+orders\s+(\d+)\s+(\d+)", shown.out, re.MULTILINE)
    assert sorted(rows) == [("0", "20"), ("1", "55")], shown
    assert "action=group.reset resource=rewound outcome=done partitions=2 again=75" in audit(place)


def test_an_active_group_is_not_reset_and_its_members_are_named(visitor: Visitor, place: Place) -> None:
    settings = {"bootstrap_servers": place.bootstrap, "group_id": "active", "client_id": "web-1"}
    with Consumer(**settings, auto_offset_reset="earliest") as consumer:  # type: ignore[arg-type]
        consumer.subscribe(["orders"])
        assert consumer.getone() is not None
        page = visitor.visit("/c/it/group/reset?id=active&other=orders&to=latest")
        expect(page.locator(".notice")).to_contain_text("Stop this member first")
        expect(page.locator(".notice")).to_contain_text("web-1 at 127.0.0.1")
        expect(page.get_by_role("button", name="Apply")).to_have_count(0)


def test_a_group_is_deleted_after_its_name_is_typed(visitor: Visitor, place: Place) -> None:
    page = visitor.visit("/c/it/group/delete?id=leaving")
    page.get_by_label("Type leaving to confirm").fill("leave")
    page.get_by_role("button", name="Delete the group").click()
    expect(page.locator(".flash")).to_contain_text("Nothing was deleted")
    page.get_by_role("button", name="Delete offsets in orders").click()
    expect(page.locator(".flash")).to_contain_text("The offsets of leaving in orders are deleted")
    with AdminClient(bootstrap_servers=place.bootstrap) as admin:
        assert admin.group_offsets("leaving") == {}
        admin.alter_group_offsets("leaving", {("orders", 0): 1}).raise_first()
        page = visitor.visit("/c/it/group/delete?id=leaving")
        page.get_by_label("Type leaving to confirm").fill("leaving")
        page.get_by_role("button", name="Delete the group").click()
        expect(page.locator(".flash")).to_contain_text("The group leaving is deleted")
        assert admin.describe_group("leaving").state == "Dead"


# --- ACLs, users, quotas ---


def test_an_acl_is_created_by_clicks_and_kafkas_tool_sees_it(visitor: Visitor, place: Place) -> None:
    needs_kafka_jars()
    page = visitor.visit("/c/it/acls")
    page.get_by_role("link", name="Create an ACL").click()
    page.get_by_label("Principal").fill("User:anna")
    page.get_by_label("Name matches").select_option("prefixed")
    page.get_by_label("Name", exact=True).fill("ord")
    page.locator('input[value="Read"]').check()
    page.locator('input[value="Write"]').check()
    page.get_by_role("button", name="Preview").click()
    says = "User:anna, from any host, may Read and Write topics that begin with ord."
    expect(page.locator(".statement")).to_contain_text(says)
    visitor.check("acls/new")
    page.get_by_role("button", name="Create 2 ACLs").click()
    expect(page.locator(".flash")).to_contain_text(f"Created: {says}")
    expect(page.locator("tbody tr")).to_have_count(2)
    visitor.check("acls")
    page.get_by_role("link", name="Delete: User:anna Write ord").click()
    visitor.check("acls/delete")
    page.get_by_role("button", name="Delete it").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    command = Command(ACLS, ["--bootstrap-server", place.bootstrap, "--list"])
    (listed,) = run_all([command], place.directory)
    assert "resourceType=TOPIC, name=ord, patternType=PREFIXED" in listed.out
    assert re.findall(r"\(principal=User:anna.*?\)", listed.out) == [
        "(principal=User:anna, host=*, operation=READ, permissionType=ALLOW)"
    ]


def test_a_user_is_created_and_its_password_is_in_no_log(visitor: Visitor, place: Place) -> None:
    page = visitor.visit("/c/it/users")
    expect(page.locator(".empty")).to_contain_text("No user has SCRAM credentials")
    page.get_by_role("link", name="Create a user").click()
    page.get_by_label("User", exact=True).fill("carl")
    page.get_by_label("Password", exact=True).fill("hush hush")
    page.get_by_label("Password again").fill("hush hush")
    visitor.check("users/set")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("tbody tr")).to_contain_text("SCRAM-SHA-512")
    visitor.check("users")
    with AdminClient(bootstrap_servers=place.bootstrap) as admin:
        assert admin.describe_user_scram_credentials()["carl"] == {"SCRAM-SHA-512": 4096}
    page.get_by_role("link", name="Delete carl").click()
    page.get_by_label("Type carl to confirm").fill("carl")
    visitor.check("users/delete")
    page.get_by_role("button", name="Delete the credential").click()
    expect(page.locator(".flash")).to_contain_text("credential of carl is deleted")
    assert "action=user.delete-credential resource=carl outcome=done" in audit(place)
    assert "hush" not in audit(place)


def test_a_quota_is_set_changed_and_removed(visitor: Visitor, place: Place) -> None:
    page = visitor.visit("/c/it/quotas")
    page.get_by_role("link", name="Set a quota").click()
    page.get_by_label("User", exact=True).fill("anna")
    page.get_by_label("Produce").fill("1048576")
    visitor.check("quotas/edit")
    page.get_by_role("button", name="Set these quotas").click()
    expect(page.locator("tbody tr")).to_contain_text("1.0 MiB/s")
    visitor.check("quotas")
    page.get_by_role("link", name="Change the quotas of user anna").click()
    page.get_by_label("Requests").fill("150")
    page.get_by_label("Produce").fill("")
    page.get_by_role("button", name="Set these quotas").click()
    with AdminClient(bootstrap_servers=place.bootstrap) as admin:
        assert admin.describe_client_quotas() == {QuotaEntity({"user": "anna"}): {"request_percentage": 150}}


# --- topics ---


def test_a_topic_is_created_changed_and_deleted(visitor: Visitor, place: Place) -> None:
    page = visitor.visit("/c/it/topics")
    page.get_by_role("link", name="Create a topic").click()
    page.get_by_label("Name", exact=True).fill("short-lived")
    page.get_by_label("Partitions").fill("2")
    page.get_by_label("Settings").fill("retention.ms=60000\nno.such.setting=1")
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".problems")).to_contain_text("no.such.setting")
    page.get_by_label("Settings").fill("retention.ms=60000")
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".flash")).to_contain_text("2 partitions and 1 replica each")
    visitor.check("new-topic")
    page.get_by_role("button", name="Create").click()
    expect(page.locator(".flash")).to_contain_text("The topic short-lived is created")
    with AdminClient(bootstrap_servers=place.bootstrap) as admin:
        page = visitor.visit("/c/it/topics/short-lived/setting?setting=retention.ms")
        expect(page.locator(".facts")).to_contain_text("60000")
        page.get_by_label("New value").fill("soon")
        page.get_by_role("button", name="Set it").click()
        expect(page.locator(".problems")).to_contain_text("retention.ms")
        page.get_by_label("New value").fill("120000")
        page.get_by_role("button", name="Set it").click()
        expect(page.locator(".flash")).to_contain_text("retention.ms is 120000")
        settings = admin.describe_topic_configs(["short-lived"])["short-lived"]
        assert settings["retention.ms"].value == "120000"
        page = visitor.visit("/c/it/topics/short-lived/manage")
        page.get_by_label("New number of partitions").fill("5")
        page.get_by_role("button", name="Add partitions").click()
        expect(page.locator(".flash")).to_contain_text("short-lived has 5 partitions")
        assert len(admin.describe_topics(["short-lived"])["short-lived"].partitions) == 5
        page.get_by_label("Type short-lived to confirm").fill("short-lived")
        page.get_by_role("button", name="Delete the topic").click()
        expect(page.locator(".flash")).to_contain_text("The topic short-lived is deleted")
        assert "short-lived" not in admin.list_topics()


def test_records_before_an_offset_are_deleted(visitor: Visitor, place: Place) -> None:
    with AdminClient(bootstrap_servers=place.bootstrap) as admin:
        admin.create_topic("shortened", partitions=2, replication_factor=1)
        with Producer(bootstrap_servers=place.bootstrap) as producer:
            for number in range(20):
                sent = producer.send("shortened", b"x", partition=number % 2)
                sent.result(60)
        page = visitor.visit("/c/it/topics/shortened/manage")
        page.get_by_label("Delete before, partition 0").fill("4")
        page.get_by_label("Delete before, partition 1").fill("end")
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_text("14 records at most are deleted")).to_be_visible()
        visitor.check("manage")
        page.get_by_role("button", name="Delete 14 records").click()
        expect(page.locator(".flash")).to_contain_text("Records of shortened are deleted")
        assert admin.start_offsets([("shortened", 0), ("shortened", 1)]) == {
            ("shortened", 0): 4,
            ("shortened", 1): 10,
        }


# --- rights ---


def test_a_user_without_the_rights_changes_nothing_and_reads_which_are_missing(
    browser: Browser, place: Place, tmp_path: Path
) -> None:
    security = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    with (
        AdminClient(bootstrap_servers=place.bootstrap) as admin,
        console(tmp_path, "-b", place.secured, "--name", "it", "--writes", config=security) as address,
    ):
        allowed = Entry("User:bert", "*", Operation.DESCRIBE, Permission.ALLOW)
        seen = ((ResourceType.TOPIC, "orders"), (ResourceType.GROUP, "billing"))
        admin.create_acls([AclBinding(ResourcePattern(*each), allowed) for each in seen]).raise_first()
        person = Visitor(browser, address)
        page = person.page
        page.goto("/c/it/group/reset?id=billing&topic=orders&to=earliest")
        page.get_by_label("User").fill("bert")
        page.get_by_label("Password").fill("berts word")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("button", name="Apply").click()
        expect(page.locator(".problems")).to_contain_text("User:bert lacks Read on the group billing")
        assert admin.group_offsets("billing") == {("orders", 0): 60, ("orders", 1): 90}
        page = person.visit("/c/it/topics/orders/manage")
        page.get_by_label("Type orders to confirm").fill("orders")
        page.get_by_role("button", name="Delete the topic").click()
        expect(page.locator(".flash")).to_contain_text("User:bert lacks Delete on the topic orders")
        assert "orders" in admin.list_topics()
        page = person.visit("/c/it/acls/new?principal=User:bert&name=orders&operation=All")
        page.get_by_role("button", name="Create 1 ACL").click()
        expect(page.locator(".problems").first).to_contain_text("User:bert lacks Alter on the cluster")
        for path in ("acls", "users", "quotas"):
            page = person.visit(f"/c/it/{path}")
            expect(page.locator(".problems")).to_contain_text("User:bert lacks Describe")
        person.close()
