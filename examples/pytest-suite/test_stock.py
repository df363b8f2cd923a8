"""The suite: a real broker in each test, faults on demand. `pytest`; `pytest -n 2` with pytest-xdist."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from stock import Stock

from ottla.testing import DevBroker

Sell = Callable[..., None]


@pytest.fixture
def sell(ottla_broker: DevBroker, ottla_topic: str) -> Sell:
    """Writes sales: `sell(tea=2)`; or the bytes of a record."""

    def write(*records: bytes, **articles: int) -> None:
        producer = Producer({"bootstrap.servers": ottla_broker.bootstrap})
        sales = (json.dumps({"article": name, "sold": sold}).encode() for name, sold in articles.items())
        for record in (*records, *sales):
            producer.produce(ottla_topic, record)
        assert producer.flush(30) == 0

    return write


@pytest.fixture
def stock(ottla_broker: DevBroker, ottla_topic: str) -> Iterator[Stock]:
    for suffix in ("reorders", "dead"):
        ottla_broker.create_topic(f"{ottla_topic}-{suffix}")
    made = Stock(
        ottla_broker.bootstrap,
        ottla_topic,
        reorders=f"{ottla_topic}-reorders",
        dead_letters=f"{ottla_topic}-dead",
        initial={"tea": 10, "milk": 10},
    )
    yield made
    made.close()


def reorders(broker: DevBroker, topic: str) -> list[bytes | None]:
    return [record.key for record in broker.records(f"{topic}-reorders")]


def test_sales_reduce_the_stock(stock: Stock, sell: Sell, ottla_broker: DevBroker, ottla_topic: str) -> None:
    sell(tea=2, milk=1)
    stock.process(2)
    assert stock.articles == {"tea": 8, "milk": 9}
    assert reorders(ottla_broker, ottla_topic) == []


def test_a_low_article_is_ordered(
    stock: Stock, sell: Sell, ottla_broker: DevBroker, ottla_topic: str
) -> None:
    sell(tea=8)
    stock.process(1)
    assert reorders(ottla_broker, ottla_topic) == [b"tea"]


@pytest.mark.parametrize("record", [b"not JSON", b"{}", b'{"article": "tea", "sold": "many"}', b"[]"])
def test_a_record_that_is_no_sale_stops_nothing(
    stock: Stock, sell: Sell, ottla_broker: DevBroker, ottla_topic: str, record: bytes
) -> None:
    sell(record, tea=1)
    stock.process(2)
    assert stock.articles["tea"] == 9
    (dead,) = ottla_broker.records(f"{ottla_topic}-dead")
    assert dead.value == record


@pytest.mark.parametrize("error", ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"])
def test_a_coordinator_that_moves_is_found_again(
    stock: Stock, sell: Sell, ottla_broker: DevBroker, error: str
) -> None:
    moved = ottla_broker.fail("JOIN_GROUP", error)
    sell(tea=1)
    stock.process(1)
    assert moved.hits == 1


def test_an_order_whose_response_is_lost_is_written_once(
    stock: Stock, sell: Sell, ottla_broker: DevBroker, ottla_topic: str
) -> None:
    sell(tea=8)
    lost = ottla_broker.drop("PRODUCE", after=True)
    stock.process(1)
    assert lost.hits == 1
    assert reorders(ottla_broker, ottla_topic) == [b"tea"]


def test_a_broker_that_is_killed_keeps_everything(stock: Stock, sell: Sell, ottla_broker: DevBroker) -> None:
    sell(tea=1)
    stock.process(1)
    ottla_broker.kill()
    ottla_broker.start()
    sell(tea=1)
    stock.process(1)
    assert stock.articles["tea"] == 8
