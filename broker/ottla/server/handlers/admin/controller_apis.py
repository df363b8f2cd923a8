"""Admin requests that the controller serves: CreateTopics 0 to 7, DeleteTopics 0 to 6, CreatePartitions 0 to
3, ElectLeaders 0 to 2, AlterPartitionReassignments and ListPartitionReassignments 0 (KIP-455), UpdateFeatures
0 to 1.

Behaviour: any other broker responds NOT_CONTROLLER, as Kafka in ZooKeeper mode without forwarding: clients
find the controller in Metadata. When a client's quota of mutations is exceeded (KIP-599), versions with
THROTTLING_QUOTA_EXCEEDED reject each topic with it; with older ones the connection is muted.
"""

from __future__ import annotations

from ottla.controller.controller import Controller
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.server.dispatch.dispatcher import Request, Route
from ottla.server.dispatch.throttling import ClientThrottle

CREATE_TOPICS_STRICT_FROM = 6
DELETE_TOPICS_STRICT_FROM = 5
CREATE_PARTITIONS_STRICT_FROM = 3


class ControllerApisHandler:
    """See the module."""

    def __init__(self, controller: Controller, throttle: ClientThrottle) -> None:
        self._controller = controller
        self._throttle = throttle

    def routes(self) -> list[Route]:
        return [
            Route(CreateTopicsRequest, self.create_topics, _create_topics_error),
            Route(DeleteTopicsRequest, self.delete_topics, _delete_topics_error),
            Route(CreatePartitionsRequest, self.create_partitions, _create_partitions_error),
            Route(ElectLeadersRequest, self.elect_leaders, _elect_leaders_error),
            Route(AlterPartitionReassignmentsRequest, self.alter_reassignments, _alter_reassignments_error),
            Route(ListPartitionReassignmentsRequest, self.list_reassignments, _list_reassignments_error),
            Route(UpdateFeaturesRequest, self.update_features, _update_features_error),
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

    async def alter_reassignments(self, request: Request) -> AlterPartitionReassignmentsResponse:
        message = request.decode(AlterPartitionReassignmentsRequest)
        return await self._controller.alter_partition_reassignments(message, request.version)

    async def list_reassignments(self, request: Request) -> ListPartitionReassignmentsResponse:
        message = request.decode(ListPartitionReassignmentsRequest)
        return await self._controller.list_partition_reassignments(message, request.version)

    async def update_features(self, request: Request) -> UpdateFeaturesResponse:
        message = request.decode(UpdateFeaturesRequest)
        return await self._controller.update_features(message, request.version)


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


def _alter_reassignments_error(
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


def _list_reassignments_error(
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


def _update_features_error(
    message: UpdateFeaturesRequest, version: int, code: ErrorCode, detail: str | None
) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=code, error_message=detail)
