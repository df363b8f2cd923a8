"""APIs that Kafka 3.9 advertises in ZooKeeper mode, and does not serve there: neither do we.

- Envelope, version 0 (KIP-590): brokers forward nothing to a ZooKeeper controller; the connection is closed.
- ConsumerGroupHeartbeat and ConsumerGroupDescribe, version 0 (KIP-848): the new group coordinator needs
  KRaft; UNSUPPORTED_VERSION, upon which clients fall back to the classic protocol.
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    EnvelopeRequest,
    EnvelopeResponse,
)
from ottla.server.dispatch.dispatcher import Request, Route


class UnsupportedApisHandler:
    def routes(self) -> list[Route]:
        return [
            Route(EnvelopeRequest, self.close, _envelope_error),
            Route(ConsumerGroupHeartbeatRequest, self.heartbeat, _heartbeat_error),
            Route(ConsumerGroupDescribeRequest, self.describe, _describe_error),
        ]

    def close(self, request: Request) -> None:
        request.connection.close("an Envelope, though nothing is forwarded to a controller of ZooKeeper mode")

    def heartbeat(self, request: Request) -> None:
        message = request.decode(ConsumerGroupHeartbeatRequest)
        request.respond(_heartbeat_error(message, 0, ErrorCode.UNSUPPORTED_VERSION, None))

    def describe(self, request: Request) -> None:
        message = request.decode(ConsumerGroupDescribeRequest)
        request.respond(_describe_error(message, 0, ErrorCode.UNSUPPORTED_VERSION, None))


def _envelope_error(
    message: EnvelopeRequest, version: int, code: ErrorCode, detail: str | None
) -> EnvelopeResponse:
    return EnvelopeResponse(error_code=code)


def _heartbeat_error(
    message: ConsumerGroupHeartbeatRequest, version: int, code: ErrorCode, detail: str | None
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=code)


def _describe_error(
    message: ConsumerGroupDescribeRequest, version: int, code: ErrorCode, detail: str | None
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[
            ConsumerGroupDescribeResponse.DescribedGroup(group_id=group, error_code=code)
            for group in message.group_ids
        ]
    )
