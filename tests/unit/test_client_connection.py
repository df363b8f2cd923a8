"""The client's connection against a minimal server over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
import threading
import warnings
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from ottla.protocol import frames
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.messages import (
    ApiVersionsResponse,
    DeleteGroupsRequest,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
)
from ottla.security.clients import ClientSecurity
from ottla.security.tls import TlsSettings, server_context
from ottla.wire.connection import BrokerConnection, ConnectionLost, UnsupportedApi, close_all
from tests.certificates import Authority

Answer = Callable[[frames.RequestHeader], bytes | None]
"""None: silence; nothing: the end of the connection."""
Key = ApiVersionsResponse.ApiVersion
VERSIONS = ApiVersionsResponse(
    api_keys=[Key(api_key=18, max_version=3), Key(api_key=3, min_version=0, max_version=99)]
)


def answer_versions(header: frames.RequestHeader) -> bytes:
    return frames.encode_response(VERSIONS, header.api_version, header.correlation_id)


async def with_server(
    answer: Answer, use: Callable[[BrokerConnection], Awaitable[None]], chunk: int = 1 << 20
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                header = frames.parse_request_header(memoryview(await reader.readexactly(size)))
                reply = answer_versions(header) if header.api_key == 18 else answer(header)
                if reply is None:
                    continue
                if not reply:
                    break
                for start in range(0, len(reply), chunk):
                    writer.write(reply[start : start + chunk])
                    await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        connection = await BrokerConnection.open("127.0.0.1", server.sockets[0].getsockname()[1])
        try:
            await use(connection)
        finally:
            connection.close()


def metadata(header: frames.RequestHeader) -> bytes:
    broker = MetadataResponse.MetadataResponseBroker(host="h" * 30_000)
    response = MetadataResponse(brokers=[broker] * 7, controller_id=header.correlation_id)
    return frames.encode_response(response, header.api_version, header.correlation_id)


@pytest.mark.parametrize("chunk", [997, 65_536])
def test_a_response_arrives_whole_however_it_is_cut(chunk: int) -> None:
    async def use(connection: BrokerConnection) -> None:
        response = await connection.request(MetadataRequest())
        assert [len(broker.host) for broker in response.brokers] == [30_000] * 7

    asyncio.run(with_server(metadata, use, chunk))


@pytest.mark.parametrize("chunk", [997, 65_536, 1 << 22])
def test_fetch_responses_stay_in_the_buffer_on_request(chunk: int) -> None:
    sizes = [10, 70_000, 300, 500_000, 1_000_000, 3_000_000, 70_000, 0]

    def records(header: frames.RequestHeader) -> bytes:
        number = header.correlation_id - 1
        data = FetchResponse.PartitionData(
            partition_index=number, records=bytes([number]) * sizes[number], high_watermark=-1
        )
        response = FetchResponse(
            responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[data])]
        )
        return frames.encode_response(response, header.api_version, header.correlation_id)

    found: list[tuple[int, bytes]] = []

    async def use(connection: BrokerConnection) -> None:
        done = asyncio.Event()

        def answered(response: FetchResponse) -> None:
            (data,) = response.responses[0].partitions
            found.append((data.partition_index, bytes(data.records or b"")))
            if len(found) == len(sizes):
                done.set()

        for _ in sizes:
            connection.send(FetchRequest(), 11, 60, answered)
        kept = await connection.request(MetadataRequest())
        await done.wait()
        assert [len(broker.host) for broker in kept.brokers] == [30_000] * 7

    def answer(header: frames.RequestHeader) -> bytes:
        return records(header) if header.api_key == FetchRequest.api_key else metadata(header)

    asyncio.run(with_server(answer, use, chunk))
    assert found == [(number, bytes([number]) * size) for number, size in enumerate(sizes)]


def test_a_borrowed_response_outlives_later_responses() -> None:
    def records(header: frames.RequestHeader) -> bytes:
        data = FetchResponse.PartitionData(records=bytes([header.correlation_id]) * 1000, high_watermark=-1)
        response = FetchResponse(
            responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[data])]
        )
        return frames.encode_response(response, header.api_version, header.correlation_id)

    async def use(connection: BrokerConnection) -> None:
        responses = [await connection.request(FetchRequest(), version=11) for _ in range(5)]
        kept = [bytes(response.responses[0].partitions[0].records) for response in responses]
        assert kept == [bytes([number]) * 1000 for number in range(1, 6)]

    asyncio.run(with_server(records, use))


def test_an_aborted_connection_is_reset_and_drops_what_was_not_received() -> None:
    """The bytes for a server that does not read are in this side's kernel: a mere close delivers them."""

    async def scenario() -> None:
        arrived: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        arrived = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            writer.write(answer_versions(frames.parse_request_header(await reader.readexactly(size))))
            cast(asyncio.Transport, writer.transport).pause_reading()
            arrived.set_result((reader, writer))

        async with await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 10) as server:
            connection = await BrokerConnection.open("127.0.0.1", server.sockets[0].getsockname()[1])
            reader, writer = await arrived
            topics = [MetadataRequest.MetadataRequestTopic(name="t" * 30_000) for _ in range(2000)]
            with pytest.raises(TimeoutError):
                await connection.request(MetadataRequest(topics=topics), timeout_s=0.05)
            connection.abort()
            cast(asyncio.Transport, writer.transport).resume_reading()
            with pytest.raises(ConnectionResetError):
                await reader.read()

    asyncio.run(scenario())


def test_pipelined_requests_get_their_own_answers() -> None:
    async def use(connection: BrokerConnection) -> None:
        responses = await asyncio.gather(*(connection.request(MetadataRequest()) for _ in range(5)))
        ids = [response.controller_id for response in responses]
        assert ids == sorted(ids)
        assert len(set(ids)) == 5

    asyncio.run(with_server(metadata, use))


def test_requests_in_flight_end_when_the_broker_goes() -> None:
    async def use(connection: BrokerConnection) -> None:
        with pytest.raises(ConnectionLost):
            await connection.request(MetadataRequest())
        with pytest.raises(ConnectionLost):
            await connection.request(MetadataRequest())
        assert connection.closed

    asyncio.run(with_server(lambda header: b"", use))


def test_a_missing_response_is_a_timeout() -> None:
    async def use(connection: BrokerConnection) -> None:
        with pytest.raises(TimeoutError):
            await connection.request(MetadataRequest(), timeout_s=0.01)

    asyncio.run(with_server(lambda header: None, use))


def test_versions_are_negotiated_and_an_unsupported_api_is_named() -> None:
    async def use(connection: BrokerConnection) -> None:
        assert connection.version_of(MetadataRequest.api_key) == MetadataRequest.max_version
        with pytest.raises(UnsupportedApi, match="DeleteGroupsRequest"):
            await connection.request(DeleteGroupsRequest(groups_names=["g"]))

    asyncio.run(with_server(metadata, use))


def test_a_frame_of_invalid_size_closes_the_connection() -> None:
    async def use(connection: BrokerConnection) -> None:
        with pytest.raises(ConnectionLost):
            await connection.request(MetadataRequest())

    asyncio.run(with_server(lambda header: b"\xff\xff\xff\xff", use))


def test_each_request_has_its_own_timeout() -> None:
    async def use(connection: BrokerConnection) -> None:
        begun = asyncio.get_running_loop().time()
        ended: list[str] = []
        slow = asyncio.ensure_future(connection.request(MetadataRequest(), timeout_s=0.2))
        slow.add_done_callback(lambda _: ended.append("slow"))
        await asyncio.sleep(0)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await connection.request(MetadataRequest(), timeout_s=0.01)
            ended.append("quick")
        with pytest.raises(TimeoutError):
            await slow
        assert ended[0] == "quick"
        assert asyncio.get_running_loop().time() - begun >= 0.2

    asyncio.run(with_server(lambda header: None, use))


def test_a_response_with_a_foreign_correlation_id_closes_the_connection() -> None:
    async def use(connection: BrokerConnection) -> None:
        with pytest.raises(ConnectionLost, match="answered request 12345, where request 1 was next"):
            await connection.request(MetadataRequest())
        assert connection.closed

    asyncio.run(with_server(lambda header: struct.pack(">ii", 4, 12345), use))


def test_a_response_callback_may_send_the_next_request() -> None:
    async def use(connection: BrokerConnection) -> None:
        loop = asyncio.get_running_loop()
        received: list[object] = []
        done = loop.create_future()

        def answered(response: object) -> None:
            received.append(response)
            if len(received) < 3:
                connection.send(MetadataRequest(), 9, 30, answered)
            else:
                done.set_result(None)

        connection.send(MetadataRequest(), 9, 30, answered)
        await done
        assert all(isinstance(response, MetadataResponse) for response in received)
        lost = loop.create_future()
        connection.send(MetadataRequest(), 9, 30, lost.set_result)
        connection.close()
        assert isinstance(await lost, ConnectionLost)
        with pytest.raises(ConnectionLost):
            connection.send(MetadataRequest(), 9, 30, answered)

    asyncio.run(with_server(metadata, use))


def test_a_malformed_response_fails_its_request() -> None:
    async def use(connection: BrokerConnection) -> None:
        with pytest.raises(MalformedMessage):
            await connection.request(MetadataRequest())
        assert not connection.closed

    asyncio.run(with_server(lambda header: struct.pack(">iiB", 5, header.correlation_id, 0), use))


@pytest.mark.parametrize("reads", [True, False], ids=["the broker reads", "the connection is aborted"])
def test_a_request_without_a_response_is_sent_when_all_of_it_is_in_the_socket(reads: bool) -> None:
    async def scenario() -> None:
        may_read, served = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            writer.write(answer_versions(frames.parse_request_header(await reader.readexactly(size))))
            await may_read.wait()
            if reads:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                await reader.readexactly(size)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            served.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            connection = await BrokerConnection.open("127.0.0.1", server.sockets[0].getsockname()[1])
            topics = [MetadataRequest.MetadataRequestTopic(name="t" * 30_000)] * 1_000
            written = asyncio.get_running_loop().create_future()
            connection.send_without_response(MetadataRequest(topics=topics), 9, written.set_result)
            for _ in range(10):
                await asyncio.sleep(0)
            assert not written.done(), "30 MB are more than a socket holds"
            if not reads:
                connection.abort()
            may_read.set()
            assert (await written is None) is reads
            await close_all([connection])
            await served.wait()

    asyncio.run(scenario())


@pytest.mark.parametrize("responds", [True, False], ids=["the broker closes", "the broker is silent"])
def test_a_tls_connection_is_closed_before_the_event_loop_ends(
    responds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not responds:
        monkeypatch.setattr("ottla.wire.connection._CLOSE_TIMEOUT_S", 0.1)
    authority = Authority()
    trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority.pem}
    security = ClientSecurity.of_properties({"security.protocol": "SSL", **trusted})
    broker = authority.sign("broker")
    context = server_context(
        TlsSettings.of(
            {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.key": broker.key_pem(),
                "ssl.keystore.certificate.chain": broker.chain_pem,
            }.get
        )
    )
    end_of_test = threading.Event()

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            accepted, _ = server.accept()
            with context.wrap_socket(accepted, server_side=True) as connection:
                (size,) = struct.unpack(">i", connection.recv(4))
                connection.sendall(answer_versions(frames.parse_request_header(connection.recv(size))))
                assert connection.recv(1) == b""  # the client's close_notify
                end_of_test.wait(0.1 if responds else 30)

        async def use() -> None:
            host, port = server.getsockname()
            connection = await BrokerConnection.open(host, port, security=security)
            connection.close()
            await close_all([connection])  # the second close, as Network.close's

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                asyncio.run(use())
                gc.collect()
        finally:
            end_of_test.set()
            thread.join()
    assert [str(each.message) for each in warned] == []
