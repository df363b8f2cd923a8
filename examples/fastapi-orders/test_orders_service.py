"""The service with a real broker: `pytest`. The fixtures `ottla_broker` and `ottla_topic` are Ottla's."""

from __future__ import annotations

import time
from collections.abc import Iterator

import orders_service
import pytest
from fastapi.testclient import TestClient
from orders_service import create_app

from ottla.testing import DevBroker


@pytest.fixture
def service(
    ottla_broker: DevBroker, ottla_topic: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TestClient]:
    monkeypatch.setattr(orders_service, "TOPIC", ottla_topic)
    with TestClient(create_app(ottla_broker.bootstrap)) as client:
        wait_until_ready(client)
        yield client


def wait_until_ready(client: TestClient) -> None:
    deadline = time.monotonic() + 30
    while client.get("/readyz").status_code != 200:
        assert time.monotonic() < deadline, client.get("/readyz").text
        time.sleep(0.02)


def orders_of(client: TestClient, customer: str, count: int) -> list[object]:
    """The customer's orders, once the view has so many."""
    deadline = time.monotonic() + 30
    while len(found := client.get(f"/customers/{customer}/orders").json()) < count:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return list(found)


def test_an_order_is_written_and_read_back(
    service: TestClient, ottla_broker: DevBroker, ottla_topic: str
) -> None:
    response = service.post("/orders", json={"customer": "ada", "amount": 30})
    assert (response.status_code, response.json()["offset"]) == (201, 0)
    (record,) = ottla_broker.records(ottla_topic)
    assert (record.key, record.value) == (b"ada", b'{"amount":30}')
    assert orders_of(service, "ada", 1) == [{"amount": 30}]
    assert orders_of(service, "bob", 0) == []


def test_a_service_that_starts_again_has_all_orders(service: TestClient, ottla_broker: DevBroker) -> None:
    for amount in (1, 2, 3):
        service.post("/orders", json={"customer": "ada", "amount": amount})
    with TestClient(create_app(ottla_broker.bootstrap)) as restarted:
        wait_until_ready(restarted)
        assert restarted.get("/customers/ada/orders").json() == [{"amount": n} for n in (1, 2, 3)]


@pytest.mark.parametrize(
    "order", [{"customer": "ada"}, {"customer": "", "amount": 1}, {"customer": "ada", "amount": 0}]
)
def test_an_invalid_order_is_refused(service: TestClient, order: dict[str, object]) -> None:
    assert service.post("/orders", json=order).status_code == 422


def test_a_moved_leader_is_not_seen_by_clients(service: TestClient, ottla_broker: DevBroker) -> None:
    moved = ottla_broker.fail("PRODUCE", "NOT_LEADER_OR_FOLLOWER", times=2)
    assert service.post("/orders", json={"customer": "ada", "amount": 30}).status_code == 201
    assert moved.hits == 2


def test_a_broker_that_does_not_respond_is_an_error_that_says_so(
    service: TestClient, ottla_broker: DevBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders_service, "DELIVERY_TIMEOUT_MS", 500)
    with TestClient(create_app(ottla_broker.bootstrap)) as impatient:
        wait_until_ready(impatient)
        ottla_broker.fail("PRODUCE", "NOT_ENOUGH_REPLICAS", times=1_000)
        response = impatient.post("/orders", json={"customer": "ada", "amount": 30})
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert service.get("/healthz").status_code == 200
