"""A blocking connection to a broker for encoded requests, with a check of the responses' error codes.

Called by the benchmarks that measure single requests. A response with an error code ends the benchmark: an
error costs little and would look like speed.
"""

from __future__ import annotations

import socket
from struct import Struct

import click

from ottla.protocol import codec, frames
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import FetchResponse, HeartbeatResponse, OffsetCommitResponse, ProduceResponse
from ottla.protocol.types import Message

SIZE = Struct(">i")
_RESPONSE_BYTES_MAX = 4 << 20


class RequestConnection:
    """A connection that may keep several requests in flight."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(_RESPONSE_BYTES_MAX))
        self.bytes_received = 0

    def send(self, frame: bytes) -> None:
        self._sock.sendall(frame)

    def receive(self) -> memoryview:
        """The next response, without its size; valid until the next call. Raises ClickException if the broker
        closes the connection."""
        self._fill(SIZE.size)
        (size,) = SIZE.unpack_from(self._buffer)
        self._fill(size)
        return self._buffer[:size]

    def _fill(self, count: int) -> None:
        filled = 0
        while filled < count:
            received = self._sock.recv_into(self._buffer[filled:count])
            if received == 0:
                raise click.ClickException("the broker closed the connection")
            filled += received
        self.bytes_received += count

    def run(self, frame: bytes, requests: int, in_flight: int) -> None:
        """Sends the same request so many times. Raises ClickException for a response with an error code."""
        header = frames.parse_request_header(memoryview(frame)[SIZE.size :])
        sent = min(in_flight, requests)
        for _ in range(sent):
            self.send(frame)
        for _ in range(requests):
            response = self.receive()
            if sent < requests:  # before the check, so that the broker does not wait for it
                self.send(frame)
                sent += 1
            check_errors(decode_response(header.api_key, header.api_version, response))

    def close(self) -> None:
        self._sock.close()


def decode_response(api_key: int, version: int, frame: memoryview | bytes) -> Message:
    """A response from its frame, without the size."""
    body = frames.response_body_offset(api_key, version, frame)
    return codec.decode(frames.RESPONSES[api_key], version, frame, body)


def error_codes(response: Message) -> list[int]:
    """The error codes of a response of these kinds, and of its partitions."""
    if isinstance(response, ProduceResponse):
        return [row.error_code for topic in response.responses for row in topic.partition_responses]
    if isinstance(response, OffsetCommitResponse):
        return [row.error_code for topic in response.topics for row in topic.partitions]
    if isinstance(response, HeartbeatResponse):
        return [response.error_code]
    assert isinstance(response, FetchResponse), type(response)
    rows = [row.error_code for topic in response.responses for row in topic.partitions]
    return [response.error_code, *rows]


def check_errors(response: Message) -> None:
    """Raises ClickException for a response with an error code."""
    for code in filter(None, error_codes(response)):
        raise click.ClickException(f"{type(response).__name__} has error {ErrorCode.of(code).name}")
