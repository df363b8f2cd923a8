"""What people open a console for, from the overview by clicks alone, over a cluster in memory.

The others of the ten tasks are in the files beside this one, over real clusters: a record by its key and
time, a group rewound, a setting changed, versions of a schema compared.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect

from ottla.client.admin_types import PartitionDescription, TopicPartition
from ottla.local.processes import wait_until
from ottla.security.acls import AclBinding, Entry, Operation, Permission, ResourcePattern, ResourceType
from tests.judges.browser import Visitor, chromium
from tests.worlds.console_cluster import FakeCluster
from tests.worlds.console_kubernetes import FakeKubernetes

pytestmark = [pytest.mark.timeout(180), pytest.mark.budget(20)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def cluster() -> FakeCluster:
    """A roll is under way; topic-00002 has a replica that is behind, topic-00001 an open transaction, and
    broker 2 leads the busy topic-00000."""
    made = FakeCluster()
    made.kubernetes = FakeKubernetes()
    made.credentials["shop"] = {"SCRAM-SHA-512": 4096}
    made.topics["topic-00002"] = made.topic("topic-00002", isr=(0, 1))
    busy = tuple(PartitionDescription(p, 2, 1, (0, 1, 2), (0, 1, 2)) for p in range(3))
    made.topics["topic-00000"] = made.topics["topic-00000"].__class__(
        "topic-00000", made.topics["topic-00000"].topic_id, False, busy
    )
    for user, operation in (("shop", Operation.WRITE), ("billing", Operation.READ)):
        entry = Entry(f"User:{user}", "*", operation, Permission.ALLOW)
        made.acls.append(AclBinding(ResourcePattern(ResourceType.TOPIC, "topic-00001"), entry))
    return made


@pytest.fixture(scope="module")
def address(cluster: FakeCluster) -> Iterator[str]:
    """The console in a thread."""
    config = uvicorn.Config(
        cluster.application(writes=True).app, host="127.0.0.1", port=0, log_config=None, lifespan="on"
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[method-assign,attr-defined]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        assert wait_until(lambda: server.started, timeout_s=60)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def visitor(browser: Browser, address: str) -> Iterator[Visitor]:
    """At the overview, where everything begins."""
    person = Visitor(browser, address)
    person.visit("/c/test/")
    yield person
    person.close()


def follow(page: Page, *links: str) -> None:
    """Click on links by their whole text."""
    for text in links:
        page.get_by_role("link", name=text, exact=True).first.click()
        page.wait_for_load_state()


def test_why_the_cluster_is_not_ready_is_on_the_overview_and_its_conditions_are_a_click_away(
    visitor: Visitor,
) -> None:
    card = visitor.page.locator("section", has_text="BrokerCluster kafka/demo")
    expect(card).to_contain_text("1 of 3 brokers are updated")
    expect(card).to_contain_text("Broker 1 waits for broker 2, which is starting on revision abc")
    expect(card).to_contain_text("6 of 24")
    expect(card).to_contain_text("partitions cannot shrink")
    follow(visitor.page, "Resources")
    expect(visitor.page.locator("tr", has_text="FullyReplicated")).to_contain_text("UnderReplicated")
    visitor.check("resources")


def test_which_partitions_are_not_in_sync_and_since_when(visitor: Visitor) -> None:
    follow(visitor.page, "Not in sync")
    rows = visitor.page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("over")
    expect(rows.first.get_by_role("link", name="2", exact=True)).to_be_visible()
    visitor.check("partitions")


def test_who_reads_a_topic_and_how_far_behind(visitor: Visitor) -> None:
    follow(visitor.page, "Topics", "topic-00001")
    visitor.page.get_by_role("navigation", name="Parts").get_by_role("link", name="Groups").click()
    expect(visitor.page.locator("tbody tr", has_text="group-0000")).to_contain_text("30")
    visitor.check("groups")


def test_who_may_write_to_a_topic(visitor: Visitor) -> None:
    follow(visitor.page, "Topics", "topic-00001")
    visitor.page.get_by_role("navigation", name="Parts").get_by_role("link", name="ACLs").click()
    expect(visitor.page.locator(".facts div", has_text="May write")).to_contain_text("User:shop")
    expect(visitor.page.locator(".facts div", has_text="May write")).not_to_contain_text("billing")
    visitor.check("acls")


def test_which_producer_holds_the_last_stable_offset_back(visitor: Visitor) -> None:
    follow(visitor.page, "Transactions", "payments-1", "topic-00001")
    notice = visitor.page.locator(".notice")
    expect(notice).to_contain_text("The last stable offset is held back")
    expect(notice).to_contain_text("producer 4000, payments-1")
    expect(notice).to_contain_text("wait for 988 records")
    visitor.check("producers")


def test_which_transaction_hangs(visitor: Visitor, cluster: FakeCluster) -> None:
    known, unknown = TopicPartition("topic-00001", 0), TopicPartition("topic-00002", 1)
    cluster.held |= {known: 12, unknown: 12}
    follow(visitor.page, "Transactions", "Which partitions do transactions hold back, and does one hang?")
    rows = visitor.page.locator("tbody tr")
    expect(rows.first).to_contain_text("topic-00002")
    expect(rows.first).to_contain_text("hangs")
    expect(rows.nth(1)).to_contain_text("open")
    expect(visitor.page.locator(".notice")).to_contain_text(
        "ottla transactions abort --topic topic-00002 --partition 1 --start-offset 12"
    )
    visitor.check("held")


def test_what_may_a_user_do_and_what_quota_does_it_have(visitor: Visitor) -> None:
    follow(visitor.page, "Users")
    visitor.page.get_by_role("link", name="ACLs of").first.click()
    expect(visitor.page.get_by_text("Those that apply to")).to_be_visible()
    follow(visitor.page, "its quotas")
    expect(visitor.page.get_by_text("Those that can apply to user")).to_be_visible()
    visitor.check("quotas")


def test_which_broker_is_hottest(visitor: Visitor, cluster: FakeCluster) -> None:
    follow(visitor.page, "Brokers")
    for partition in cluster.ends:
        cluster.ends[partition] += 300 if partition.topic == "topic-00000" else 50
    first = visitor.page.locator("tbody tr").first
    expect(first).to_contain_text("hottest", timeout=30_000)
    expect(first.locator("th a")).to_have_text("2")
    visitor.check("brokers")
