"""CreateTopics 0 to 7, DeleteTopics 0 to 6, CreatePartitions 0 to 3, ElectLeaders 0 to 2.

Behaviour: the controller's. Any other broker answers NOT_CONTROLLER, as in this generation of Kafka without
forwarding: clients find the controller in Metadata. A client whose quota of mutations is used up (KIP-599) is
refused, topic by topic, in the versions that have an error for it; before, its connection falls silent.
"""

from __future__ import annotations

from ottla.controller.controller import Controller
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from ottla.server.dispatch.dispatcher import Request, Route
from ottla.server.dispatch.throttling import ClientThrottle

CREATE_TOPICS_STRICT_FROM = 6
DELETE_TOPICS_STRICT_FROM = 5
CREATE_PARTITIONS_STRICT_FROM = 3


class TopicsHandler:
    def __init__(self, controller: Controller, throttle: ClientThrottle) -> None:
        self._controller = controller
        self._throttle = throttle

    def routes(self) -> list[Route]:
        return [
            Route(CreateTopicsRequest, self.create_topics, _create_topics_error),
            Route(DeleteTopicsRequest, self.delete_topics, _delete_topics_error),
            Route(CreatePartitionsRequest, self.create_partitions, _create_partitions_error),
            Route(ElectLeadersRequest, self.elect_leaders, _elect_leaders_error),
        ]

    async def create_topics(self, request: Request) -> CreateTopicsResponse:
        message = request.decode(CreateTopicsRequest)
        quota = self._throttle.mutations(request, CREATE_TOPICS_STRICT_FROM)
        response = await self._controller.create_topics(message, request.version, quota.record)
        response.throttle_time_ms = quota.answered(request)
        return response

    async def delete_topics(self, request: Request) -> DeleteTopicsResponse:
        message = request.decode(DeleteTopicsRequest)
        quota = self._throttle.mutations(request, DELETE_TOPICS_STRICT_FROM)
        response = await self._controller.delete_topics(message, request.version, quota.record)
        response.throttle_time_ms = quota.answered(request)
        return response

    async def create_partitions(self, request: Request) -> CreatePartitionsResponse:
        message = request.decode(CreatePartitionsRequest)
        quota = self._throttle.mutations(request, CREATE_PARTITIONS_STRICT_FROM)
        response = await self._controller.create_partitions(message, request.version, quota.record)
        response.throttle_time_ms = quota.answered(request)
        return response

    async def elect_leaders(self, request: Request) -> ElectLeadersResponse:
        return await self._controller.elect_leaders(request.decode(ElectLeadersRequest), request.version)


def _create_topics_error(
    message: CreateTopicsRequest, version: int, code: ErrorCode, detail: str | None
) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreateTopicsResponse.CreatableTopicResult(name=t.name, error_code=code, error_message=detail)
            for t in message.topics
        ]
    )


def _delete_topics_error(
    message: DeleteTopicsRequest, version: int, code: ErrorCode, detail: str | None
) -> DeleteTopicsResponse:
    result = DeleteTopicsResponse.DeletableTopicResult
    if version >= 6:
        return DeleteTopicsResponse(
            responses=[
                result(name=t.name, topic_id=t.topic_id, error_code=code, error_message=detail)
                for t in message.topics
            ]
        )
    return DeleteTopicsResponse(
        responses=[result(name=name, error_code=code, error_message=detail) for name in message.topic_names]
    )


def _create_partitions_error(
    message: CreatePartitionsRequest, version: int, code: ErrorCode, detail: str | None
) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=t.name, error_code=code, error_message=detail
            )
            for t in message.topics
        ]
    )


def _elect_leaders_error(
    message: ElectLeadersRequest, version: int, code: ErrorCode, detail: str | None
) -> ElectLeadersResponse:
    response = ElectLeadersResponse(
        replica_election_results=[
            ElectLeadersResponse.ReplicaElectionResult(
                topic=t.topic,
                partition_result=[
                    ElectLeadersResponse.PartitionResult(
                        partition_id=p, error_code=code, error_message=detail
                    )
                    for p in t.partitions
                ],
            )
            for t in message.topic_partitions or []
        ]
    )
    if version >= 1:
        response.error_code = code
    return response
