"""Interceptors see and change records in order; their exceptions have no other effect."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from ottla.client.interceptors import ConsumerInterceptors, ProducerInterceptors


class Marks:
    """A producer's and consumer's interceptor that adds its mark to each record."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.seen: list[Any] = []

    def on_send(self, record: str) -> str:
        return record + self.mark

    def on_acknowledgement(self, metadata: Any, error: BaseException | None) -> None:
        self.seen.append((metadata, error))

    def on_consume(self, records: str) -> str:
        return records + self.mark

    def on_commit(self, offsets: Mapping[Any, Any]) -> None:
        self.seen.append(offsets)

    def close(self) -> None:
        self.seen.append("closed")


class Fails(Marks):
    def on_send(self, record: str) -> str:
        raise RuntimeError("on purpose")

    on_consume = on_send

    def on_acknowledgement(self, metadata: Any, error: BaseException | None) -> None:
        raise RuntimeError("on purpose")

    def on_commit(self, offsets: Mapping[Any, Any]) -> None:
        raise RuntimeError("on purpose")

    def close(self) -> None:
        raise RuntimeError("on purpose")


def test_producer_interceptors_are_called_in_order_and_a_failing_one_is_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, last = Marks("1"), Marks("2")
    chain = ProducerInterceptors([first, Fails("x"), last])
    assert chain.on_send("record") == "record12"
    problem = OSError("gone")
    chain.on_acknowledgement("metadata", None)
    chain.on_acknowledgement("metadata", problem)
    chain.close()
    assert last.seen == first.seen == [("metadata", None), ("metadata", problem), "closed"]
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert logged == [
        f"the interceptor Fails failed in {method}"
        for method in ("on_send", "on_acknowledgement", "on_acknowledgement", "close")
    ]


def test_consumer_interceptors_are_called_in_order_and_a_failing_one_is_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, last = Marks("1"), Marks("2")
    chain = ConsumerInterceptors([first, Fails("x"), last])
    assert chain.on_consume("records") == "records12"
    chain.on_commit({"orders-0": 5})
    chain.close()
    assert last.seen == [{"orders-0": 5}, "closed"]
    assert len(caplog.records) == 3


def test_no_interceptors_are_falsy() -> None:
    assert not ProducerInterceptors()
    assert not ConsumerInterceptors()
    assert ProducerInterceptors([Marks("1")])
