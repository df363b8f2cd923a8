"""bench.requests: a broker that answers with errors is not a fast one."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click
import pytest
from click.testing import CliRunner

from bench import hostile
from bench.connection import RequestConnection
from bench.requests import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    Load,
    MeasuredBroker,
    fetch_frame,
    main,
    measure,
    produce_frame,
)
from ottla.protocol import frames
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchResponse, ProduceResponse
from ottla.protocol.types import Message


def produced(*codes: int) -> ProduceResponse:
    rows = [
        ProduceResponse.PartitionProduceResponse(index=at, error_code=code) for at, code in enumerate(codes)
    ]
    return ProduceResponse(
        responses=[ProduceResponse.TopicProduceResponse(name="t", partition_responses=rows)]
    )


def fetched(code: int, partition_code: int = 0) -> FetchResponse:
    row = FetchResponse.PartitionData(partition_index=0, error_code=partition_code, high_watermark=1)
    topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[row])
    return FetchResponse(error_code=code, responses=[topic])


@contextmanager
def broker_with(responses: list[tuple[Message, int]]) -> Iterator[int]:
    """The port of a broker that gives these responses, each in its version, to whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for response, version in responses:
                    connection.sendall(frames.encode_response(response, version, 1))
                while connection.recv(1 << 16):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        port: int = server.getsockname()[1]
        try:
            yield port
        finally:
            thread.join(timeout=60)
    assert not thread.is_alive()


def run(frame: bytes, responses: list[tuple[Message, int]], in_flight: int = 5) -> None:
    with broker_with(responses) as port:
        connection = RequestConnection(port)
        try:
            connection.run(frame, len(responses), in_flight)
        finally:
            connection.close()


@pytest.mark.parametrize("in_flight", [1, 5])
def test_a_produce_error_fails_the_benchmark_also_if_it_is_the_last_response(in_flight: int) -> None:
    good = [(produced(0), PRODUCE_VERSION)] * 7
    run(produce_frame(1), [*good, good[0]], in_flight)
    with pytest.raises(click.ClickException, match="ProduceResponse has error NOT_LEADER_OR_FOLLOWER"):
        run(
            produce_frame(1),
            [*good, (produced(ErrorCode.NOT_LEADER_OR_FOLLOWER), PRODUCE_VERSION)],
            in_flight,
        )


def test_an_error_of_any_partition_counts() -> None:
    with pytest.raises(click.ClickException, match="INVALID_RECORD"):
        run(produce_frame(1), [(produced(0, ErrorCode.INVALID_RECORD, 0), PRODUCE_VERSION)])


@pytest.mark.parametrize(
    "response", [fetched(ErrorCode.OFFSET_OUT_OF_RANGE), fetched(0, ErrorCode.OFFSET_OUT_OF_RANGE)]
)
def test_a_fetch_error_fails_the_benchmark(response: FetchResponse) -> None:
    run(fetch_frame(), [(fetched(0), FETCH_VERSION)])
    with pytest.raises(click.ClickException, match="FetchResponse has error OFFSET_OUT_OF_RANGE"):
        run(fetch_frame(), [(response, FETCH_VERSION)])


def test_a_fetch_without_records_fails_the_benchmark() -> None:
    with broker_with([(fetched(0), FETCH_VERSION)] * 3) as port:
        broker = MeasuredBroker("empty", os.getpid(), port)
        with pytest.raises(click.ClickException, match="3 fetches have brought"):
            measure(broker, Load("fetch, nothing", 3, fetch_frame()), 1)


def test_an_attack_that_the_broker_refuses_is_no_attack() -> None:
    def frame(code: int) -> bytes:
        return bytes(frames.encode_response(produced(code), hostile.BOMB_VERSION, 1))[4:]

    hostile.check_produced(frame(0))
    with pytest.raises(click.ClickException, match="refused the attack with MESSAGE_TOO_LARGE"):
        hostile.check_produced(frame(ErrorCode.MESSAGE_TOO_LARGE))


@pytest.mark.parametrize(
    "value", ["/usr/bin/python3.13", "now=/usr/bin/python3.13", "a/b=/usr/bin/python3.13"]
)
def test_an_interpreter_has_a_name_of_its_own(value: str) -> None:
    result = CliRunner().invoke(main, ["--interpreter", value])
    assert result.exit_code == 2
    assert f"{value}: expected NAME=PYTHON" in result.output
