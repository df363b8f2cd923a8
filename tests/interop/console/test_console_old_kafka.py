"""The console over Apache Kafka 2.1: pages that it can fill, and sentences where its APIs came later."""

from __future__ import annotations

import html
import re
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from urllib.error import HTTPError

import pytest

from ottla.client.blocking import AdminClient, Producer
from ottla.local.processes import wait_until
from tests.interop.console.test_console_browser import URLS
from tests.judges.browser import console
from tests.judges.kafka_21 import kafka_21

pytestmark = [pytest.mark.timeout(300), pytest.mark.budget(40)]

OLDER = {
    "users": "2.7",
    "quotas": "2.6",
    "reassignments": "2.4",
    "topics/orders/producers": "3.0",
    "transactions": "3.0",
    "transaction?id=payments-1": "3.0",
}
"""Pages of what Kafka 2.1 does not have, with the version that has introduced it."""


class Reader:
    """Reads pages in one session."""

    def __init__(self, address: str) -> None:
        self._root = f"{address.rstrip('/')}/c/it/"
        self._open = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar())).open

    def text(self, path: str) -> str:
        try:
            with self._open(self._root + path.replace(" ", "%20"), timeout=30) as answer:
                page = answer.read().decode()
        except HTTPError as problem:
            with problem:
                page = problem.read().decode()
            if problem.code != 404:
                raise
        return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("old")
    with kafka_21(folder) as bootstrap:
        with AdminClient(bootstrap_servers=bootstrap) as admin:
            admin.create_topic("orders", partitions=3, replication_factor=1)
            admin.alter_group_offsets("billing", {("orders", 0): 2}).raise_first()
        with Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(10):
                producer.send("orders", f"record {number}".encode(), partition=0).result(60)
        with console(folder, "-b", bootstrap, "--name", "it", "--writes") as address:
            yield Reader(address)


def test_what_kafka_2_1_has_is_shown(reader: Reader) -> None:
    assert wait_until(lambda: "billing 8" in reader.text("topics"), timeout_s=60)
    assert "record 5" in reader.text("topics/orders/record?partition=0&offset=5")
    assert "retention.ms" in reader.text("topics/orders/settings?q=retention")
    assert "retention.ms" in reader.text("topics/orders/setting?setting=retention.ms")
    assert re.search(r"Lag 8 ", reader.text("group?id=billing"))
    assert "/data" in reader.text("brokers/0")


def test_no_page_fails_and_what_came_later_is_a_sentence(reader: Reader) -> None:
    for path in (*URLS.values(), "topics/orders/produce"):
        page = reader.text(path)
        assert "Failed:" not in page, (path, page)
        assert "UNSUPPORTED_VERSION" not in page, (path, page)
        if path in OLDER:
            assert f"the brokers are older than Apache Kafka {OLDER[path]}, which has introduced it" in page
            assert page.count("Not supported") == 1, (path, page)
