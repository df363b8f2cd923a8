"""UpdateFeatures, versions 0 and 1: the controller's; any other broker answers NOT_CONTROLLER."""

from __future__ import annotations

from ottla.controller.controller import Controller
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import UpdateFeaturesRequest, UpdateFeaturesResponse
from ottla.server.dispatch.dispatcher import Request, Route


class FeaturesHandler:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def routes(self) -> list[Route]:
        return [Route(UpdateFeaturesRequest, self.update, _error)]

    async def update(self, request: Request) -> UpdateFeaturesResponse:
        message = request.decode(UpdateFeaturesRequest)
        return await self._controller.update_features(message, request.version)


def _error(
    message: UpdateFeaturesRequest, version: int, code: ErrorCode, detail: str | None
) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=code, error_message=detail)
