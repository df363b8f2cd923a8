"""Offsets on the console's pages lead to the records at them."""

from __future__ import annotations

import html
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

from ottla.client.admin_types import ProducerState, TopicPartition
from tests.worlds.console_cluster import FakeCluster


def links(browser: TestClient, path: str) -> set[tuple[str, str, int, int, str]]:
    """Text, topic, partition, offset and direction of the links to records."""
    page = html.unescape(browser.get(f"/c/test/{path}").text)
    found = set()
    for href, text in re.findall(r'<a href="([^"]+/record\?[^"]+)"[^>]*>([^<]*)</a>', page):
        parts = urlsplit(href)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        topic = parts.path.split("/")[-2]
        found.add((text, topic, int(query["partition"]), int(query["offset"]), query.get("dir", "")))
    return found


def test_committed_and_end_offsets_of_a_group_lead_to_records() -> None:
    cluster = FakeCluster()
    cluster.committed["group-0001"][TopicPartition("topic-00001", 2)] = 1000  # all is read
    with cluster.console() as browser:
        found = links(browser, "group?id=group-0001")
    assert ("989", "topic-00001", 0, 989, "") in found
    assert ("1,000", "topic-00001", 0, 1000, "older") in found
    assert not any(each[1:4] == ("topic-00001", 2, 1000) and not each[4] for each in found)


def test_first_and_end_offsets_of_partitions_lead_to_records_unless_they_are_empty() -> None:
    cluster = FakeCluster()
    cluster.starts[TopicPartition("topic-00001", 0)] = 17
    cluster.starts[TopicPartition("topic-00001", 1)] = 1000
    with cluster.console() as browser:
        browser.get("/c/test/topics/topic-00001")
        found = links(browser, "topics/topic-00001")
    assert ("17", "topic-00001", 0, 17, "") in found
    assert ("1,000", "topic-00001", 0, 1000, "older") in found
    assert not any(partition == 1 for _, _, partition, _, _ in found)


def test_the_begin_of_an_open_transaction_leads_to_its_first_record() -> None:
    with FakeCluster().console() as browser:
        assert links(browser, "topics/topic-00001/producers") == {
            ("12", "topic-00001", partition, 12, "") for partition in range(3)
        }
        assert links(browser, "transaction?id=payments-1") == {("12", "topic-00001", 0, 12, "")}


def test_another_producer_in_the_partition_is_not_that_of_the_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = ProducerState(4001, 1, 17, 1_000, 0, 12)
    ended = ProducerState(4000, 1, 17, 1_000, 0, -1)
    with FakeCluster().console() as browser:

        async def describe(self: object, partitions: object) -> object:
            from ottla.client.admin_types import Results

            return Results({TopicPartition("topic-00001", 0): (other, ended)})

        monkeypatch.setattr("tests.worlds.console_cluster.FakeAdmin.describe_producers", describe)
        assert links(browser, "transaction?id=payments-1") == set()


def test_the_preview_of_a_reset_leads_to_the_records_before_and_after() -> None:
    with FakeCluster().console() as browser:
        found = links(browser, "group/reset?id=group-0001&to=earliest&topic=topic-00001")
    assert ("989", "topic-00001", 0, 989, "") in found
    assert ("0", "topic-00001", 0, 0, "") in found
