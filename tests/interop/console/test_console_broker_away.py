"""A broker that is killed while a page is open: the page says so, and shows what is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from ottla.client.blocking import AdminClient
from ottla.local.cluster import LocalCluster
from tests.judges.browser import Visitor, chromium, console

pytestmark = [pytest.mark.timeout(300), pytest.mark.budget(60)]


@pytest.fixture
def visitor(cluster: LocalCluster, tmp_path: Path) -> Iterator[Visitor]:
    with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("orders", partitions=3, replication_factor=3)
    options = ("-b", cluster.bootstrap, "--name", "it")
    with chromium() as browser, console(tmp_path, *options) as address:
        yield Visitor(browser, address)


def test_an_open_page_follows_a_broker_that_goes_away_and_comes_back(
    cluster: LocalCluster, visitor: Visitor
) -> None:
    page = visitor.visit("/c/it/")
    expect(page.locator("tbody tr")).to_have_count(3, timeout=30_000)
    cluster.brokers[2].kill()
    expect(page.locator(".state")).to_contain_text("Broker 2 is away", timeout=60_000)
    row = page.locator("tbody tr").nth(2)
    expect(row).to_contain_text("away")
    page = visitor.visit("/c/it/topics/orders")
    expect(page.locator("tbody")).to_contain_text("not in sync", timeout=60_000)
    assert visitor.visit("/c/it/brokers/2").locator("h1").inner_text().startswith("Broker 2")
    cluster.brokers[2].start()
    page = visitor.visit("/c/it/topics/orders")
    expect(page.locator("tbody")).not_to_contain_text("not in sync", timeout=90_000)
