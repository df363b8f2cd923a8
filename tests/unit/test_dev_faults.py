"""Fault rules of the development broker, and the requests that they match."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.dev.control import Control, fault_of
from ottla.dev.faults import Fault, Faults, topics_of
from ottla.protocol import messages as m
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.types import Message
from ottla.server.dispatch.dispatcher import Request


def request(message: Message, client_id: str = "app") -> Request:
    route = SimpleNamespace(api_key=ApiKey(message.api_key), request_class=type(message))
    return cast(Request, SimpleNamespace(route=route, client_id=client_id, decode=lambda _: message))


def produce(topic: str) -> m.ProduceRequest:
    return m.ProduceRequest(acks=-1, topic_data=[m.ProduceRequest.TopicProduceData(name=topic)])


def test_a_fault_applies_to_a_count_of_requests_of_its_api() -> None:
    faults = Faults(0)
    fault = faults.add(Fault("error", ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2))
    assert faults.match(request(m.HeartbeatRequest())) is None
    assert [faults.match(request(produce("a"))) for _ in range(3)] == [fault, fault, None]
    assert fault.hits == 2
    always = faults.add(Fault("delay", None, times=None))
    assert all(faults.match(request(m.HeartbeatRequest())) is always for _ in range(5))
    faults.remove(always.id)
    assert faults.match(request(m.HeartbeatRequest())) is None


def test_a_fault_chooses_by_topic_and_by_client() -> None:
    faults = Faults(0)
    faults.add(Fault("error", topic="orders", client_id="billing", times=None))
    assert faults.match(request(produce("orders"), "billing"))
    assert not faults.match(request(produce("orders"), "other"))
    assert not faults.match(request(produce("returns"), "billing"))
    fetch = m.FetchRequest(topics=[m.FetchRequest.FetchTopic(topic="orders")])
    assert not faults.match(request(fetch, "billing")), "in a session it would not be named"


def test_requests_of_the_broker_and_of_the_control_socket_are_exempt() -> None:
    faults = Faults(0)
    faults.add(Fault("drop", times=None))
    assert faults.match(request(produce("a"), "broker-1"))
    for spared in ("broker-0", "ottla.testing"):
        assert faults.match(request(produce("a"), spared)) is None


@pytest.mark.parametrize(
    "message",
    [
        produce("orders"),
        m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="orders")]),
        m.CreateTopicsRequest(topics=[m.CreateTopicsRequest.CreatableTopic(name="orders")]),
        m.DeleteTopicsRequest(topic_names=["orders"]),
        m.ListOffsetsRequest(topics=[m.ListOffsetsRequest.ListOffsetsTopic(name="orders")]),
        m.OffsetCommitRequest(topics=[m.OffsetCommitRequest.OffsetCommitRequestTopic(name="orders")]),
        m.OffsetFetchRequest(
            groups=[
                m.OffsetFetchRequest.OffsetFetchRequestGroup(
                    group_id="g",
                    topics=[m.OffsetFetchRequest.OffsetFetchRequestTopics(name="orders")],
                )
            ]
        ),
        m.AddPartitionsToTxnRequest(
            transactions=[
                m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                    transactional_id="t",
                    topics=[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="orders")],
                )
            ]
        ),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_request_names_its_topics(message: Message) -> None:
    assert topics_of(message) == {"orders"}


def test_a_rule_uses_kafkas_names() -> None:
    fault = fault_of(
        {
            "effect": "error",
            "api": "produce",
            "error": "NOT_LEADER_OR_FOLLOWER",
            "times": 2,
            "topic": "orders",
        }
    )
    assert fault == Fault("error", ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2, topic="orders")
    assert fault_of({"effect": "error", "api": 1, "error": 6}).api == ApiKey.FETCH


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        ({"effect": "explode"}, "effect: explode; allowed: error, delay, drop, drop_answer"),
        ({"effect": "error", "api": "PUT", "error": 6}, "api: PUT does not exist in Kafka 3.9"),
        ({"effect": "error", "error": "NONE"}, "error: NONE is not an error"),
        (
            {"effect": "error", "error": "NOT_LEADER"},
            "error: NOT_LEADER does not exist in Kafka 3.9 (did you mean NOT_LEADER_OR_FOLLOWER?)",
        ),
        ({"effect": "error", "error": 4711}, "error: 4711 does not exist in Kafka 3.9"),
        ({"effect": "delay", "delay_s": -1}, "delay_s: -1.0; must be a number from 0"),
        ({"effect": "drop", "times": 0}, "times: 0; must be a whole number from 1, or null for all requests"),
        (
            {"effect": "drop", "api": "FETCH", "topic": "orders"},
            "topic: not supported for FETCH, which has topics once per session; use client_id instead",
        ),
    ],
)
def test_an_invalid_rule_is_refused_with_the_reason(order: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        fault_of(order)
    assert str(raised.value) == problem


def test_rules_are_applied() -> None:
    control = Control(Path("never-opened"), Faults(0), "127.0.0.1:9092")
    assert control.handle_command({"do": "about"})["bootstrap"] == "127.0.0.1:9092"
    number = control.handle_command({"do": "fault", "effect": "drop", "api": "FETCH", "times": 3})["id"]
    assert control.handle_command({"do": "hits", "id": number}) == {"hits": 0, "left": 3}
    assert control.handle_command({"do": "heal"}) == {}
    assert control.handle_command({"do": "hits", "id": number}) == {"hits": 0, "left": 0}
    with pytest.raises(ValueError, match="do: dance; allowed: about, fault, hits, heal"):
        control.handle_command({"do": "dance"})


def test_the_control_socket_is_the_users_own_from_the_moment_it_is_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    path = tmp_path / "control"
    bind = asyncio.start_unix_server

    async def start(*args: Any, **settings: Any) -> asyncio.Server:
        server = await bind(*args, **settings)
        modes.append(stat.S_IMODE(path.stat().st_mode))
        return server

    async def scenario() -> None:
        control = Control(path, Faults(0), "127.0.0.1:9092")
        await control.start()
        try:
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b'{"do": "about"}\n')
            assert b"127.0.0.1:9092" in await asyncio.wait_for(reader.readline(), 60)
            writer.close()
        finally:
            await control.stop()
        assert not path.exists()

    monkeypatch.setattr(asyncio, "start_unix_server", start)
    before = os.umask(0)
    try:
        asyncio.run(scenario())
    finally:
        os.umask(before)
    assert modes == [0o600]
