"""`python -m bench.backlog PORT TOPIC FILE…`: a consumer that reads a topic from disk again and again.

The runner starts it as a process while it measures produce latencies. It fetches as a consumer with default
settings does (1 MiB a partition, one request in flight) and discards the records, so that it takes little of
the client's core, which it shares with the measured producer. FILE… are the topic's segments: they are
dropped from the page cache before each pass. On SIGTERM it prints its throughput in MiB a second.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import click

from bench.connection import RequestConnection, check_errors, decode_response
from bench.processes import make_cold
from ottla.protocol import frames
from ottla.protocol.messages import FetchRequest, FetchResponse
from ottla.protocol.records import LOG_OVERHEAD, parse_batch_header

FETCH_VERSION = 12


class Stopped(Exception):
    """SIGTERM was received."""


class BacklogReader:
    """Fetches one partition from its start to its end."""

    def __init__(self, port: int, topic: str) -> None:
        self._topic = topic
        self.connection = RequestConnection(port)

    def read_all(self) -> None:
        """One pass; returns at the end of the log."""
        offset = 0
        while (after := self._fetch(offset)) > offset:
            offset = after

    def _fetch(self, offset: int) -> int:
        """The offset after the records of one Fetch; `offset` itself at the end of the log."""
        wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=50 << 20,
            topics=[FetchRequest.FetchTopic(topic=self._topic, partitions=[wanted])],
        )
        self.connection.send(frames.encode_request(request, FETCH_VERSION, 1, "bench-backlog"))
        response = decode_response(FetchRequest.api_key, FETCH_VERSION, self.connection.receive())
        check_errors(response)
        assert isinstance(response, FetchResponse)
        partition = response.responses[0].partitions[0]
        return next_offset(memoryview(partition.records or b""), offset)


def next_offset(records: memoryview, offset: int) -> int:
    """The offset after the last whole batch in `records`; `offset` when there is none."""
    position = 0
    while position + LOG_OVERHEAD <= len(records):
        end = position + LOG_OVERHEAD + int.from_bytes(records[position + 8 : position + 12], "big")
        if end > len(records):
            break
        header = parse_batch_header(records, position)
        offset = header.base_offset + header.last_offset_delta + 1
        position = end
    return offset


def _stop(number: int, frame: object) -> None:
    raise Stopped


def main() -> None:
    port, topic, *files = sys.argv[1:]
    signal.signal(signal.SIGTERM, _stop)
    reader = BacklogReader(int(port), topic)
    started = time.monotonic()
    try:
        while True:
            make_cold(map(Path, files))
            reader.read_all()
    except Stopped:
        click.echo(f"{reader.connection.bytes_received / 2**20 / (time.monotonic() - started):.1f}")


if __name__ == "__main__":
    main()
