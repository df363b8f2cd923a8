"""AlterPartitionReassignments and ListPartitionReassignments, version 0 (KIP-455).

Behaviour: the controller's; any other broker answers NOT_CONTROLLER.
"""

from __future__ import annotations

from ottla.controller.controller import Controller
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ottla.server.dispatch.dispatcher import Request, Route


class ReassignmentsHandler:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def routes(self) -> list[Route]:
        return [
            Route(AlterPartitionReassignmentsRequest, self.alter, _alter_error),
            Route(ListPartitionReassignmentsRequest, self.list, _list_error),
        ]

    async def alter(self, request: Request) -> AlterPartitionReassignmentsResponse:
        message = request.decode(AlterPartitionReassignmentsRequest)
        return await self._controller.alter_partition_reassignments(message, request.version)

    async def list(self, request: Request) -> ListPartitionReassignmentsResponse:
        message = request.decode(ListPartitionReassignmentsRequest)
        return await self._controller.list_partition_reassignments(message, request.version)


def _alter_error(
    message: AlterPartitionReassignmentsRequest, version: int, code: ErrorCode, detail: str | None
) -> AlterPartitionReassignmentsResponse:
    row = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
    return AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=detail,
        responses=[
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    row(partition_index=p.partition_index, error_code=code, error_message=detail)
                    for p in topic.partitions
                ],
            )
            for topic in message.topics
        ],
    )


def _list_error(
    message: ListPartitionReassignmentsRequest, version: int, code: ErrorCode, detail: str | None
) -> ListPartitionReassignmentsResponse:
    row = ListPartitionReassignmentsResponse.OngoingPartitionReassignment
    return ListPartitionReassignmentsResponse(
        error_code=code,
        error_message=detail,
        topics=[
            ListPartitionReassignmentsResponse.OngoingTopicReassignment(
                name=topic.name, partitions=[row(partition_index=index) for index in topic.partition_indexes]
            )
            for topic in message.topics or []
        ],
    )
