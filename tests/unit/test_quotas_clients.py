"""Throttle times of clients, and which usage counts for which quota.
tests/interop/java/test_quota_arithmetic_like_kafka.py compares each number with Kafka's."""

from __future__ import annotations

import heapq

import pytest

from ottla.quotas.broker import BrokerQuotas
from ottla.quotas.clients import ClientQuotas
from ottla.quotas.levels import DEFAULT, SENSOR_EXPIRATION_MS, UNNAMED, QuotaEntity
from ottla.quotas.rates import Rate, Windows

NOW_MS = 1_000_000
ANONYMOUS = "ANONYMOUS"
EVERY_CLIENT = QuotaEntity(UNNAMED, DEFAULT)
EVERY_USER = QuotaEntity(DEFAULT, UNNAMED)


def quotas(*limits: tuple[QuotaEntity, float | None]) -> ClientQuotas:
    made = ClientQuotas(Windows())
    for entity, limit in limits:
        made.update(entity, limit)
    return made


def test_without_quotas_nothing_is_measured() -> None:
    made = quotas()
    assert not made.enabled
    made.update(EVERY_CLIENT, 10.0)
    made.update(EVERY_CLIENT, None)
    assert made.enabled
    assert made.record(ANONYMOUS, "c", 10**9, NOW_MS) == 0


def test_a_client_over_its_quota_is_throttled() -> None:
    made = quotas((EVERY_CLIENT, 1000.0))
    # A client that comes new may send ten seconds' worth: there were ten windows of silence.
    assert made.record(ANONYMOUS, "c", 10_000, NOW_MS) == 0
    assert made.record(ANONYMOUS, "c", 5000, NOW_MS) == 5000
    assert made.record(ANONYMOUS, "c", 0, NOW_MS + 11_000) == 0


@pytest.mark.parametrize(
    ("clients", "limit", "size"),
    [
        *((1, 50_000.0, 1000), (1, 500_000.0, 16_384), (1, 5e6, 65_536)),
        *((50, 50_000.0, 100), (50, 500_000.0, 2000), (50, 5e6, 20_000)),
    ],
)
def test_clients_that_obey_throttle_times_keep_their_shared_quota(
    clients: int, limit: float, size: int
) -> None:
    """Over whole cycles of eleven windows. Within one, Kafka's windows let clients be early: the bytes of
    eleven seconds can all be sent in the first. And each client has a request in flight when the limit is
    reached: together these are at most a fifth of a second's bytes here."""
    made = quotas((EVERY_USER, limit))
    end_ms, sent = NOW_MS + 20 * 11_000, 0
    due = [(NOW_MS, client) for client in range(clients)]
    while due[0][0] < end_ms:
        now_ms, client = due[0]
        wait_ms = made.record("anna", f"client-{client}", size, now_ms)
        sent += size
        heapq.heapreplace(due, (now_ms + wait_ms + 1, client))
    assert sent / (end_ms - NOW_MS) * 1000 == pytest.approx(limit, rel=0.05)


def test_clients_under_a_default_quota_do_not_share_it() -> None:
    made = quotas((EVERY_CLIENT, 100.0))
    assert made.record(ANONYMOUS, "greedy", 10**6, NOW_MS) > 0
    assert made.record(ANONYMOUS, "modest", 10, NOW_MS) == 0


def test_a_users_clients_share_the_users_quota() -> None:
    made = quotas((EVERY_USER, 100.0), (EVERY_CLIENT, 10**9))
    assert made.record("anna", "one", 10**6, NOW_MS) > 0
    assert made.record("anna", "two", 10, NOW_MS) > 0
    assert made.record("bert", "two", 10, NOW_MS) == 0


def test_a_changed_quota_applies_at_once_to_past_usage() -> None:
    made = quotas((EVERY_CLIENT, 10**6))
    assert made.record(ANONYMOUS, "c", 50_000, NOW_MS) == 0
    made.update(QuotaEntity(UNNAMED, "c"), 1000.0)
    assert made.record(ANONYMOUS, "c", 1, NOW_MS) == pytest.approx(40_000, abs=10)
    made.update(QuotaEntity(UNNAMED, "c"), None)
    assert made.record(ANONYMOUS, "c", 1, NOW_MS) == 0


def test_returned_usage_does_not_count() -> None:
    made = quotas((EVERY_CLIENT, 1000.0))
    assert made.record(ANONYMOUS, "c", 50_000, NOW_MS) > 0
    made.unrecord(ANONYMOUS, "c", 50_000, NOW_MS)
    assert made.record(ANONYMOUS, "c", 1000, NOW_MS) == 0


def test_one_fetch_may_bring_what_the_windows_hold() -> None:
    made = quotas((QuotaEntity(UNNAMED, "c"), 1000.0))
    assert made.max_burst(ANONYMOUS, "c") == 10_000
    assert made.max_burst(ANONYMOUS, "other") is None
    assert made.max_burst(ANONYMOUS, None) is None
    made.update(QuotaEntity(UNNAMED, "c"), 2.0**62)
    assert made.max_burst(ANONYMOUS, "c") == 2**31 - 1


def test_idle_clients_expire() -> None:
    made = quotas((EVERY_CLIENT, 1000.0))
    for n in range(100):
        made.record(ANONYMOUS, f"c{n}", 1, NOW_MS)
    assert len(made) == 100
    made.record(ANONYMOUS, "c0", 1, NOW_MS + SENSOR_EXPIRATION_MS)
    made.record(ANONYMOUS, "new", 1, NOW_MS + SENSOR_EXPIRATION_MS + 1)
    assert len(made) == 2


def test_a_rate_drops_usage_older_than_its_windows() -> None:
    for rate in (Rate(Windows()), Rate(Windows(), is_simple=True)):
        rate.record(1000, NOW_MS)
        assert rate.measure(NOW_MS + 5000)[0] > 0
        assert rate.measure(NOW_MS + 11_000)[0] == 0


def test_settings_become_quotas() -> None:
    broker = BrokerQuotas(1, Windows(), Windows(), Windows(), Windows())
    broker.client_config_changed(QuotaEntity("anna", DEFAULT), {"producer_byte_rate": "10"})
    assert broker.produce.limit_of("anna", "c") == 10.0
    assert broker.fetch.limit_of("anna", "c") is None
    broker.client_config_changed(QuotaEntity("anna", DEFAULT), {"consumer_byte_rate": "20"})
    assert broker.produce.limit_of("anna", "c") is None
    assert broker.fetch.limit_of("anna", "c") == 20.0


def test_only_throttled_replicas_over_the_limit_are_held_back() -> None:
    broker = BrokerQuotas(1, Windows(), Windows(), Windows(), Windows())
    assert not broker.leader.active
    broker.topic_config_changed("t", {"leader.replication.throttled.replicas": "0:1,1:2"})
    broker.topic_config_changed("u", {"leader.replication.throttled.replicas": "*"})
    assert broker.leader.active
    assert not broker.follower.active
    throttled = [(t, p) for t in ("t", "u", "v") for p in (0, 1) if broker.leader.is_throttled(t, p)]
    assert throttled == [("t", 0), ("u", 0), ("u", 1)]
    broker.leader.record(10**9, NOW_MS)
    assert not broker.leader.is_exceeded(NOW_MS), "without a rate nobody waits"
    broker.replication_rates_changed(1000, 1000, 1000)
    assert broker.leader.is_exceeded(NOW_MS)
    assert not broker.follower.is_exceeded(NOW_MS)
    assert not broker.leader.is_exceeded(NOW_MS + 12_000)
    broker.topic_config_changed("t", {})
    broker.topic_config_changed("u", {})
    assert not broker.leader.active
