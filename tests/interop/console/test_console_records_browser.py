"""The records of a topic in Chromium over a real broker: paging, filters, hostile values, the live tail."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from playwright.sync_api import Browser, Page, expect

from ottla.client import TopicPartition
from ottla.client.blocking import AdminClient, Consumer, Producer
from ottla.local.processes import free_port
from ottla.security.acls import AclBinding, Entry, Operation, Permission, ResourcePattern, ResourceType
from tests.judges.browser import Visitor, chromium, console
from tests.judges.one_broker import OneBroker, one_broker
from tests.judges.registries import Registry, message_class
from tests.judges.secured import PLAIN_MODULE

pytestmark = [pytest.mark.timeout(300), pytest.mark.budget(120)]

LARGE = 20_000_000
RECORDS = 400
HOSTILE = (
    b"<script>alert(1)</script>",
    "\u202eright to left \u05e2\u05d1\u05e8\u05d9\u05ea".encode(),
    b"\xff\xfe\x00invalid\x80" * 9,
    json.dumps({"<img src=x onerror=alert(1)>": "\u2028</pre>"}).encode(),
    b"y" * 10_000_000,
    None,
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OneBroker, str]]:
    """A broker with topics, and a console that masks a field."""
    folder: Path = tmp_path_factory.mktemp("records")
    with one_broker(folder, {"message.max.bytes": str(LARGE)}) as broker:
        with AdminClient(bootstrap_servers=broker.bootstrap) as admin:
            for topic, partitions in (("orders", 3), ("hostile", 1), ("live", 1), ("empty", 1)):
                config = {"max.message.bytes": str(LARGE)}
                admin.create_topic(topic, partitions=partitions, replication_factor=1, config=config)
        with Producer(bootstrap_servers=broker.bootstrap, max_request_size=LARGE) as producer:
            for number in range(RECORDS):
                value = {"id": number, "customer": {"id": number % 7, "card": f"4111-{number}"}}
                sent = producer.send(
                    "orders", json.dumps(value).encode(), key=b"order-%d" % number, partition=number % 3,
                    timestamp_ms=1_700_000_000_000 + 1000 * number, headers=[("trace", b"%x" % number)],
                )  # fmt: skip
            sent.result(60)
            for hostile in HOSTILE:
                producer.send(
                    "hostile", hostile, key=hostile and hostile[:40], headers=[("<b>", b"\xff")]
                ).result(60)
        options = ("-b", broker.bootstrap, "--name", "it", "--mask", "$.customer.card")
        with console(folder, *options) as address:
            yield broker, address


@pytest.fixture
def visitor(browser: Browser, running: tuple[OneBroker, str]) -> Iterator[Visitor]:
    person = Visitor(browser, running[1])
    yield person
    person.close()


def ids(page: Page) -> list[str]:
    return page.locator("table.records tbody tr").evaluate_all("rows => rows.map(each => each.id)")


def test_pages_lead_through_all_records_and_back(visitor: Visitor) -> None:
    page = visitor.visit("/c/it/topics/orders")
    page.locator(".tabs").get_by_role("link", name="Records").click()
    page.wait_for_load_state()
    first, found = ids(page), []
    assert len(first) == 50
    for _ in range(-(-RECORDS // 50)):
        found += ids(page)
        older = page.get_by_role("link", name="Older").first
        if not older.count():
            break
        older.click()
        page.wait_for_load_state()
    assert len(found) == len(set(found)) == RECORDS
    visitor.check("the last page")
    for _ in range(-(-RECORDS // 50) - 1):
        page.get_by_role("link", name="Newer").first.click()
        page.wait_for_load_state()
    assert ids(page) == first


def test_a_record_is_found_by_its_key_and_time_and_the_link_can_be_shared(visitor: Visitor) -> None:
    page = visitor.visit("/c/it/topics/orders/records")
    page.get_by_label("From", exact=True).select_option("Time")
    page.get_by_label("Time (UTC)", exact=True).fill("2023-11-14T22:15:00")
    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("Key is").fill("order-123")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("table.records tbody tr")).to_have_count(1)
    expect(page.get_by_role("status")).to_contain_text("1 record found; scanned 300 of 300")
    assert "partition" not in page.url  # what is not chosen is not in the URL
    again = visitor.visit(page.url)
    expect(again.locator("table.records tbody tr")).to_contain_text("order-123")
    again.locator("table.records tbody th a").click()
    expect(again.locator("h1")).to_have_text("Partition 0, offset 41")
    visitor.check("record")


def test_a_filter_by_json_path_is_saved_in_the_browser_and_used_again(visitor: Visitor) -> None:
    page = visitor.visit("/c/it/topics/orders/records?rows=100")
    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("JSON path").fill("$.customer.id")
    page.get_by_label("equals").fill("3")
    page.get_by_label("Save as").fill("customer 3")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_label("Saved filters")).to_have_value("customer 3")
    expect(page.locator("table.records tbody tr")).to_have_count(57)
    visitor.check("saved")
    page = visitor.visit("/c/it/topics/orders/records?rows=100")
    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("Saved filters").select_option("customer 3")
    expect(page.locator("table.records tbody tr")).to_have_count(57)
    assert "equals=3" in page.url


def test_the_link_of_the_newest_records_shows_them_also_when_there_are_newer_ones(visitor: Visitor) -> None:
    page = visitor.visit("/c/it/topics/orders/records")
    shown = ids(page)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("link", name="Copy link").click()
    expect(page.get_by_role("link", name="Link copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert "at=" in link
    assert ids(visitor.visit(link)) == shown


def test_a_masked_field_is_on_no_page(visitor: Visitor) -> None:
    for query in ("?rows=200", "?v=text", "?v=hex"):
        page = visitor.visit(f"/c/it/topics/orders/records{query}")
        assert "4111" not in page.content()
    page = visitor.visit("/c/it/topics/orders/records?q=4111")
    expect(page.locator(".empty")).to_contain_text("No record matches")
    page.goto("/c/it/topics/orders/record?partition=0&offset=0")
    expect(page.locator("pre.whole").last).to_contain_text('"card": "•••"')
    assert "4111" not in page.content()


def test_hostile_values_are_shown_as_text(
    browser: Browser, running: tuple[OneBroker, str], tmp_path: Path
) -> None:
    with console(tmp_path, "-b", running[0].bootstrap, "--name", "it") as address:
        person = Visitor(browser, address)
        dialogs: list[str] = []
        person.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        for options in ("", "?v=hex", "?v=text&k=hex", "?v=json", "?v=schema"):
            page = person.visit(f"/c/it/topics/hostile/records{options}")
            expect(page.locator("table.records tbody tr")).to_have_count(len(HOSTILE))
            for fold in page.locator("details.content > summary").all():
                fold.click()
            person.check(f"folds {options}")
        expect(page.locator("#r-0-5")).to_contain_text("tombstone")
        page = person.visit("/c/it/topics/hostile/records")
        expect(page.locator("#r-0-0")).to_contain_text("<script>alert(1)</script>")
        expect(page.locator("#r-0-1")).to_contain_text("\\u202e")
        expect(page.locator("#r-0-4")).to_contain_text("9.5 MiB")
        for offset in range(len(HOSTILE)):
            person.visit(f"/c/it/topics/hostile/record?partition=0&offset={offset}")
        page = person.visit("/c/it/topics/hostile/record?partition=0&offset=4")
        with page.expect_download() as download:
            page.get_by_role("link", name="Download").last.click()
        assert download.value.path().stat().st_size == 10_000_000
        assert dialogs == []
        person.close()


def test_a_live_tail_follows_what_is_written_and_can_be_stopped(
    visitor: Visitor, running: tuple[OneBroker, str]
) -> None:
    page = visitor.visit("/c/it/topics/live/records")
    expect(page.locator(".empty")).to_contain_text("no records")
    page.get_by_role("link", name="Live", exact=True).click()
    expect(page.locator(".records-bar")).to_contain_text("live, every 2 s")
    with Producer(bootstrap_servers=running[0].bootstrap) as producer:
        for number in range(3):
            producer.send("live", b"news", key=b"%d" % number).result(60)
            expect(page.locator(f"#r-0-{number}")).to_contain_text("news", timeout=20_000)
    visitor.check("live")
    page.get_by_role("link", name="Stop").click()
    expect(page.locator(".records-bar")).not_to_contain_text("live, every")
    expect(page.locator("#live")).not_to_have_attribute("hx-get", re.compile("."))
    long_ago = int(time.time() * 1000) - 6 * 60_000
    page = visitor.visit(f"/c/it/topics/live/records?live={long_ago}")
    expect(page.locator(".records-bar")).to_contain_text("live tail ended")


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("topics/empty/records", 200, "The topic has no records."),
        ("topics/gone/records", 404, "There is no topic of this name"),
        ("topics/orders/records?from=offset&offset=9999&partition=1", 200, "Offset 9,999 is out of range"),
        ("topics/orders/records?path=$.[", 200, "JSON path"),
        ("topics/orders/record?partition=0&offset=9999", 404, "no record at offset 9,999"),
    ],
)
def test_empty_and_wrong_views_say_what_to_do(visitor: Visitor, path: str, status: int, text: str) -> None:
    page = visitor.visit(f"/c/it/{path}", status=status)
    expect(page.locator("#live")).to_contain_text(text)


def test_transactions_are_shown_with_their_ends_and_aborted_records_left_out_on_demand(
    visitor: Visitor, running: tuple[OneBroker, str]
) -> None:
    bootstrap = running[0].bootstrap
    with AdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_topic("ledger", partitions=1, replication_factor=1)
    with Producer(bootstrap_servers=bootstrap, transactional_id="ledger-1") as producer:
        producer.begin_transaction()
        producer.send("ledger", b"lost").result(60)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("ledger", b"kept").result(60)
        producer.commit_transaction()
    page = visitor.visit("/c/it/topics/ledger/records?from=oldest")
    expect(page.locator("table.records tbody tr")).to_have_count(4)
    expect(page.locator("#r-0-0")).to_contain_text("lost")
    expect(page.locator("#r-0-1")).to_contain_text("transaction abort")
    expect(page.locator("#r-0-3")).to_contain_text("transaction commit")
    page.get_by_label("Committed only").check()
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#r-0-2")).to_contain_text("kept")
    expect(page.locator("#r-0-0")).to_have_count(0)
    page = visitor.visit("/c/it/topics/ledger/record?partition=0&offset=1")
    expect(page.locator("#live")).to_contain_text("ends a transaction with abort")


# --- a registry, written to by the serializers of confluent-kafka ---

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "at", "type": ["null", "bytes"], "default": None}],
}
PROTO = 'syntax = "proto3"; package shop; message Item { string sku = 1; int32 qty = 2; }'
JSON_SCHEMA = {"title": "Note", "type": "object", "properties": {"text": {"type": "string"}}}


def test_values_of_a_registry_are_decoded_and_produced(
    browser: Browser, running: tuple[OneBroker, str], tmp_path: Path
) -> None:
    bootstrap = running[0].bootstrap
    context = SerializationContext("typed", MessageField.VALUE)
    with Registry(bootstrap, tmp_path) as registry, AdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_topic("typed", partitions=1, replication_factor=1)
        client = registry.client()
        item = message_class(tmp_path, {"item.proto": PROTO}, "shop.Item")
        by_record = {"subject.name.strategy": lambda context, name: f"{context.topic}-{name}"}
        values = [
            ProtobufSerializer(item, client, {"use.deprecated.format": False, **by_record})(
                item(sku="A1", qty=3), context
            ),
            JSONSerializer(json.dumps(JSON_SCHEMA), client, conf=by_record)({"text": "héllo"}, context),
            b"\0\0\0\1\0not there",
            AvroSerializer(client, json.dumps(AVRO))({"id": 7, "at": b"\xff"}, context),
        ]
        with Producer(bootstrap_servers=bootstrap) as producer:
            for value in values:
                producer.send("typed", value).result(60)
        options = ("-b", bootstrap, "--name", "it", "--schema-registry", registry.url, "--writes")
        with console(tmp_path, *options) as address:
            person = Visitor(browser, address)
            page = person.visit("/c/it/topics/typed/records?from=oldest")
            for offset, text in enumerate(
                ('"sku": "A1", "qty": 3', '"text": "héllo"', "not there", '"id": 7, "at": "ff"')
            ):
                expect(page.locator(f"#r-0-{offset}")).to_contain_text(text)
            page.locator("#r-0-3 summary").first.click()
            expect(page.locator("#r-0-3")).to_contain_text("Avro, schema")
            page = person.visit("/c/it/topics/typed/records?path=$.sku&equals=A1")
            expect(page.locator("table.records tbody tr")).to_have_count(1)
            page = person.visit("/c/it/topics/typed/produce")
            page.get_by_label("Value as").select_option("Schema registry")
            page.get_by_label("Value", exact=True).fill('{"id": "wrong"}')
            page.get_by_role("button", name="Produce").click()
            expect(page.get_by_role("alert")).to_contain_text("does not fit the schema")
            assert person.findings() == []
            page.get_by_label("Key", exact=True).fill("new")
            page.get_by_label("Value", exact=True).fill('{"id": 8}')
            page.get_by_role("button", name="Produce").click()
            expect(page.get_by_role("status")).to_contain_text("Produced to partition 0 at offset 4")
            expect(page.locator("pre.whole").last).to_contain_text('"id": 8')
            person.close()
        with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([("typed", 0)])
            consumer.seek(("typed", 0), 4)
            (written,) = consumer.poll(30)[TopicPartition("typed", 0)]
        assert AvroDeserializer(client)(written.value, context) == {"id": 8, "at": None}
        assert written.key == b"new"


def test_acls_decide_who_reads_and_writes(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    jaas = f'{PLAIN_MODULE} required user_bert="berts word";'
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:{port}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with one_broker(tmp_path, settings) as broker, AdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("orders", partitions=1, replication_factor=1)
        allow(admin, Operation.DESCRIBE)
        security = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        options = ("-b", f"127.0.0.1:{port}", "--name", "it", "--writes")
        with console(tmp_path, *options, config=security) as address:
            person = Visitor(browser, address)
            page = person.page
            page.goto("/c/it/topics/orders/produce")
            page.get_by_label("User").fill("bert")
            page.get_by_label("Password").fill("berts word")
            page.get_by_role("button", name="Log in").click()
            page.get_by_label("Value", exact=True).fill("first")
            page.get_by_role("button", name="Produce").click()
            expect(page.locator(".problems")).to_contain_text("User:bert lacks Write on the topic orders")
            with Producer(bootstrap_servers=broker.bootstrap) as producer:
                producer.send("orders", b"by another").result(60)
            page = person.visit("/c/it/topics/orders/records")
            expect(page.locator(".problems")).to_contain_text("User:bert lacks Read on the topic orders")
            command = "ottla acls add --allow User:bert --operation read --topic orders"
            expect(page.locator(".problems code")).to_have_text(command)
            allow(admin, Operation.READ, Operation.WRITE)
            page = person.visit("/c/it/topics/orders/records")
            expect(page.locator("table.records")).to_contain_text("by another")
            page = person.visit("/c/it/topics/orders/produce")
            page.get_by_label("Value", exact=True).fill("second")
            page.get_by_role("button", name="Produce").click()
            expect(page.get_by_role("status")).to_contain_text("Produced to partition 0 at offset 1")
            person.close()


def allow(admin: AdminClient, *operations: Operation) -> None:
    pattern = ResourcePattern(ResourceType.TOPIC, "orders")
    entries = [Entry("User:bert", "*", each, Permission.ALLOW) for each in operations]
    admin.create_acls([AclBinding(pattern, each) for each in entries]).raise_first()
