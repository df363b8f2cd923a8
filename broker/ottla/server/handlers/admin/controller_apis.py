"""Admin requests that the controller serves: CreateTopics 0 to 7, DeleteTopics 0 to 6, CreatePartitions 0 to
3, ElectLeaders 0 to 2, AlterPartitionReassignments and ListPartitionReassignments 0 (KIP-455), UpdateFeatures
0 to 1.

Behaviour: any other broker responds NOT_CONTROLLER, as Kafka in ZooKeeper mode without forwarding: clients
find the controller in Metadata. When a client's quota of mutations is exceeded (KIP-599), versions with
THROTTLING_QUOTA_EXCEEDED reject each topic with it; with older ones the connection is muted.
"""

from __future__ import annotations

from ottla.controller.controller import Controller
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
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
            Route(m.CreateTopicsRequest, self.create_topics, _create_topics_error),
            Route(m.DeleteTopicsRequest, self.delete_topics, _delete_topics_error),
            Route(m.CreatePartitionsRequest, self.create_partitions, _create_partitions_error),
            Route(m.ElectLeadersRequest, self.elect_leaders, _elect_leaders_error),
            Route(m.AlterPartitionReassignmentsRequest, self.alter_reassignments, _alter_reassignments_error),
            Route(m.ListPartitionReassignmentsRequest, self.list_reassignments, _list_reassignments_error),
            Route(m.UpdateFeaturesRequest, self.update_features, _update_features_error),
        ]

    async def create_topics(self, request: Request) -> m.CreateTopicsResponse:
        message = request.decode(m.CreateTopicsRequest)
        quota = self._throttle.mutations(request, CREATE_TOPICS_STRICT_FROM)
        response = await self._controller.create_topics(message, quota.record)
        response.throttle_time_ms = quota.answered(request)
        return response

    async def delete_topics(self, request: Request) -> m.DeleteTopicsResponse:
        message = request.decode(m.DeleteTopicsRequest)
        quota = self._throttle.mutations(request, DELETE_TOPICS_STRICT_FROM)
        response = await self._controller.delete_topics(message, request.version, quota.record)
        response.throttle_time_ms = quota.answered(request)
        return response

    async def create_partitions(self, request: Request) -> m.CreatePartitionsResponse:
        message = request.decode(m.CreatePartitionsRequest)
        quota = self._throttle.mutations(request, CREATE_PARTITIONS_STRICT_FROM)
        response = await self._controller.create_partitions(message, quota.record)
        response.throttle_time_ms = quota.answered(request)
        return response

    async def elect_leaders(self, request: Request) -> m.ElectLeadersResponse:
        message = request.decode(m.ElectLeadersRequest)
        response = await self._controller.elect_leaders(message)
        if response.error_code and request.version == 0:
            # It has the errors of partitions only.
            return _elect_leaders_error(message, 0, ErrorCode.of(response.error_code), None)
        return response

    async def alter_reassignments(self, request: Request) -> m.AlterPartitionReassignmentsResponse:
        message = request.decode(m.AlterPartitionReassignmentsRequest)
        return await self._controller.alter_partition_reassignments(message)

    async def list_reassignments(self, request: Request) -> m.ListPartitionReassignmentsResponse:
        message = request.decode(m.ListPartitionReassignmentsRequest)
        return await self._controller.list_partition_reassignments(message)

    async def update_features(self, request: Request) -> m.UpdateFeaturesResponse:
        message = request.decode(m.UpdateFeaturesRequest)
        return await self._controller.update_features(message, request.version)


def _create_topics_error(
    message: m.CreateTopicsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.CreateTopicsResponse:
    return m.CreateTopicsResponse(
        topics=[
            m.CreateTopicsResponse.CreatableTopicResult(name=t.name, error_code=code, error_message=detail)
            for t in message.topics
        ]
    )


def _delete_topics_error(
    message: m.DeleteTopicsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.DeleteTopicsResponse:
    result = m.DeleteTopicsResponse.DeletableTopicResult
    if version >= 6:
        return m.DeleteTopicsResponse(
            responses=[
                result(name=t.name, topic_id=t.topic_id, error_code=code, error_message=detail)
                for t in message.topics
            ]
        )
    return m.DeleteTopicsResponse(
        responses=[result(name=name, error_code=code, error_message=detail) for name in message.topic_names]
    )


def _create_partitions_error(
    message: m.CreatePartitionsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.CreatePartitionsResponse:
    return m.CreatePartitionsResponse(
        results=[
            m.CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=t.name, error_code=code, error_message=detail
            )
            for t in message.topics
        ]
    )


def _elect_leaders_error(
    message: m.ElectLeadersRequest, version: int, code: ErrorCode, detail: str | None
) -> m.ElectLeadersResponse:
    response = m.ElectLeadersResponse(
        replica_election_results=[
            m.ElectLeadersResponse.ReplicaElectionResult(
                topic=t.topic,
                partition_result=[
                    m.ElectLeadersResponse.PartitionResult(
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
    message: m.AlterPartitionReassignmentsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.AlterPartitionReassignmentsResponse:
    row = m.AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
    return m.AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=detail,
        responses=[
            m.AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
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
    message: m.ListPartitionReassignmentsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.ListPartitionReassignmentsResponse:
    row = m.ListPartitionReassignmentsResponse.OngoingPartitionReassignment
    return m.ListPartitionReassignmentsResponse(
        error_code=code,
        error_message=detail,
        topics=[
            m.ListPartitionReassignmentsResponse.OngoingTopicReassignment(
                name=topic.name, partitions=[row(partition_index=index) for index in topic.partition_indexes]
            )
            for topic in message.topics or []
        ],
    )


def _update_features_error(
    message: m.UpdateFeaturesRequest, version: int, code: ErrorCode, detail: str | None
) -> m.UpdateFeaturesResponse:
    return m.UpdateFeaturesResponse(error_code=code, error_message=detail)
