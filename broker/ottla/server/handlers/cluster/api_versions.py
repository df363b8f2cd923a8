"""ApiVersions, and the APIs that it advertises although they have no use here: SASL after authentication, and
what needs KRaft."""

from __future__ import annotations

import re

from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.server.dispatch.dispatcher import Dispatcher, Request, Route

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]*[a-zA-Z0-9])?")


class ApiVersionsHandler:
    """ApiVersions, versions 0 to 4: the versions of every API that has a route.

    From version 3 the client's software name and version must have Kafka's form (INVALID_REQUEST), and the
    fields about features say: no finalized features (epoch -1), no migration. The dispatcher responds to an
    unknown version (version 0 body, UNSUPPORTED_VERSION, the supported range). Left out: supported features
    (none of Kafka 3.9's applies without KRaft).
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def routes(self) -> list[Route]:
        return [Route(m.ApiVersionsRequest, self.handle, _api_versions_error)]

    def handle(self, request: Request) -> None:
        message = request.decode(m.ApiVersionsRequest)
        response = m.ApiVersionsResponse(
            api_keys=[
                m.ApiVersionsResponse.ApiVersion(
                    api_key=route.api_key, min_version=route.min_version, max_version=route.max_version
                )
                for route in self._dispatcher.routes()
            ]
        )
        if request.version >= 3 and not (
            _SOFTWARE_NAME.fullmatch(message.client_software_name)
            and _SOFTWARE_NAME.fullmatch(message.client_software_version)
        ):
            response = m.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        request.respond(response)


def _api_versions_error(
    message: m.ApiVersionsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.ApiVersionsResponse:
    return m.ApiVersionsResponse(error_code=code)


class SaslHandler:
    """SaslHandshake 0 and 1, SaslAuthenticate 0 to 2, out of place: ILLEGAL_SASL_STATE.

    `ottla.server.network.authenticator` handles these requests while a connection authenticates. Here they
    arrive from a listener without SASL, or in a session that cannot reauthenticate. ApiVersions names both
    APIs because they have routes; clients expect that.
    """

    def routes(self) -> list[Route]:
        return [
            Route(m.SaslHandshakeRequest, self.handshake, _handshake_error),
            Route(m.SaslAuthenticateRequest, self.authenticate, _authenticate_error),
        ]

    def handshake(self, request: Request) -> None:
        request.respond(m.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))

    def authenticate(self, request: Request) -> None:
        request.respond(
            m.SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received after successful authentication",
            )
        )


def _handshake_error(
    message: m.SaslHandshakeRequest, version: int, code: ErrorCode, detail: str | None
) -> m.SaslHandshakeResponse:
    return m.SaslHandshakeResponse(error_code=code)


def _authenticate_error(
    message: m.SaslAuthenticateRequest, version: int, code: ErrorCode, detail: str | None
) -> m.SaslAuthenticateResponse:
    return m.SaslAuthenticateResponse(error_code=code, error_message=detail)


class UnsupportedApisHandler:
    """APIs that Kafka 3.9 advertises in ZooKeeper mode and does not support there.

    - Envelope, version 0 (KIP-590): nothing is forwarded to a ZooKeeper controller; the connection is closed.
    - ConsumerGroupHeartbeat and ConsumerGroupDescribe, version 0 (KIP-848): the new group coordinator needs
      KRaft; UNSUPPORTED_VERSION, after which clients use the classic protocol.
    """

    def routes(self) -> list[Route]:
        return [
            Route(m.EnvelopeRequest, self.close, _envelope_error),
            Route(m.ConsumerGroupHeartbeatRequest, self.heartbeat, _heartbeat_error),
            Route(m.ConsumerGroupDescribeRequest, self.describe, _describe_error),
        ]

    def close(self, request: Request) -> None:
        request.connection.close("Envelope is not supported with a ZooKeeper-based controller")

    def heartbeat(self, request: Request) -> None:
        message = request.decode(m.ConsumerGroupHeartbeatRequest)
        request.respond(_heartbeat_error(message, 0, ErrorCode.UNSUPPORTED_VERSION, None))

    def describe(self, request: Request) -> None:
        message = request.decode(m.ConsumerGroupDescribeRequest)
        request.respond(_describe_error(message, 0, ErrorCode.UNSUPPORTED_VERSION, None))


def _envelope_error(
    message: m.EnvelopeRequest, version: int, code: ErrorCode, detail: str | None
) -> m.EnvelopeResponse:
    return m.EnvelopeResponse(error_code=code)


def _heartbeat_error(
    message: m.ConsumerGroupHeartbeatRequest, version: int, code: ErrorCode, detail: str | None
) -> m.ConsumerGroupHeartbeatResponse:
    return m.ConsumerGroupHeartbeatResponse(error_code=code)


def _describe_error(
    message: m.ConsumerGroupDescribeRequest, version: int, code: ErrorCode, detail: str | None
) -> m.ConsumerGroupDescribeResponse:
    return m.ConsumerGroupDescribeResponse(
        groups=[
            m.ConsumerGroupDescribeResponse.DescribedGroup(group_id=group, error_code=code)
            for group in message.group_ids
        ]
    )
