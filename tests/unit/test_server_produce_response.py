"""The packed Produce response is byte for byte the codec's, in every version it is used for."""

from __future__ import annotations

import pytest

from ottla.protocol import frames
from ottla.protocol.messages import ProduceResponse
from ottla.server.handlers.produce.handler import PACKED_FROM, pack_response


@pytest.mark.parametrize("version", range(PACKED_FROM, ProduceResponse.max_version + 1))
@pytest.mark.parametrize("partitions", [0, 1, 200])
def test_the_packed_produce_response_equals_the_codecs(version: int, partitions: int) -> None:
    response = ProduceResponse(
        throttle_time_ms=7,
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=name,
                partition_responses=[
                    ProduceResponse.PartitionProduceResponse(
                        index=index, base_offset=2**40 + index, log_append_time_ms=-1, log_start_offset=3
                    )
                    for index in range(partitions)
                ],
            )
            for name in ("tøpic", "x" * 249)
        ],
    )
    assert pack_response(response, 9) == frames.encode_response(response, version, 9)
