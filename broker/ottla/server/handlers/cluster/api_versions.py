"""ApiVersions, versions 0 to 4.

Behaviour: advertises what has a route, and nothing else. From version 3 the client's software name and
version must have Kafka's form (INVALID_REQUEST), and the ZooKeeper-mode fields say: no finalized features
(epoch -1), no migration. An unknown version is answered by the dispatcher (version 0 body, error 35, the
range served).

Left out on purpose: supported features (none of Kafka's 3.9 applies without KRaft).
"""

from __future__ import annotations

import re

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from ottla.server.dispatch.dispatcher import Dispatcher, Request, Route

_SOFTWARE_WORD = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]*[a-zA-Z0-9])?")


class ApiVersionsHandler:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def routes(self) -> list[Route]:
        return [Route(ApiVersionsRequest, self.handle, _error)]

    def handle(self, request: Request) -> None:
        message = request.decode(ApiVersionsRequest)
        response = ApiVersionsResponse(
            api_keys=[
                ApiVersionsResponse.ApiVersion(
                    api_key=route.api_key, min_version=route.min_version, max_version=route.max_version
                )
                for route in self._dispatcher.routes()
            ]
        )
        if request.version >= 3 and not (
            _SOFTWARE_WORD.fullmatch(message.client_software_name)
            and _SOFTWARE_WORD.fullmatch(message.client_software_version)
        ):
            response = ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        request.respond(response)


def _error(
    message: ApiVersionsRequest, version: int, code: ErrorCode, detail: str | None
) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=code)
