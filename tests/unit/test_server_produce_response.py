"""The packed Produce response is byte for byte the codec's, in every version it is used for."""

from __future__ import annotations

import pytest

from ottla.protocol import frames
from ottla.protocol.messages import ProduceResponse
from ottla.server.handlers.produce.handler import PACKED_FROM, Row, pack_response, response_of
from ottla.storage.log import LogAppendInfo


@pytest.mark.parametrize("version", range(PACKED_FROM, ProduceResponse.max_version + 1))
@pytest.mark.parametrize("partitions", [0, 1, 200])
def test_the_packed_produce_response_equals_the_codecs(version: int, partitions: int) -> None:
    rows = [
        (index, LogAppendInfo(2**40 + index, 2**40 + index, 5, index % 3 - 1, 3, False))
        for index in range(partitions)
    ]
    topics: list[tuple[str, list[Row]]] = [("tøpic", [*rows]), ("x" * 249, [*rows])]
    expected = frames.encode_response(response_of(topics, 7), version, 9)
    assert pack_response(topics, 7, 9) == expected
