"""AlterPartition 0-3, ElectLeaders 0-2, AlterPartitionReassignments and ListPartitionReassignments 0.

Called through `Controller`. A response follows the writes; the requests to the brokers are sent after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.controller import isr, leadership, reassignment
from ottla.controller.active_controller import ActiveController, ControllerInterface, run_or_error
from ottla.controller.context import ControllerContext, ReplicaAssignment
from ottla.controller.effects import Effects
from ottla.metadata.znodes import TopicPartition
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError

PREFERRED, UNCLEAN = 0, 1


async def alter_partition(
    controller: ControllerInterface, request: m.AlterPartitionRequest, version: int
) -> m.AlterPartitionResponse:
    async def work(active: ActiveController) -> m.AlterPartitionResponse:
        effects = Effects()
        response = isr.alter_partition(active.context, effects, request, version)
        if not effects.empty:
            await active.apply(effects)
        return response

    return await run_or_error(controller, work, lambda error: m.AlterPartitionResponse(error_code=error))


# ElectLeaders


async def elect_leaders(
    controller: ControllerInterface, request: m.ElectLeadersRequest
) -> m.ElectLeadersResponse:
    async def work(active: ActiveController) -> m.ElectLeadersResponse:
        if request.election_type not in (PREFERRED, UNCLEAN):
            return m.ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
        context, effects = active.context, Effects()
        is_all = request.topic_partitions is None
        response = m.ElectLeadersResponse()
        for topic, partitions in _partitions_to_elect(context, request).items():
            result = m.ElectLeadersResponse.ReplicaElectionResult(topic=topic)
            for partition in partitions:
                tp = TopicPartition(topic, partition)
                error = _elect_leader(context, effects, tp, request.election_type)
                if is_all and error is not None and error.code == ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                result.partition_result.append(
                    m.ElectLeadersResponse.PartitionResult(
                        partition_id=partition,
                        error_code=error.code if error else ErrorCode.NONE,
                        error_message=error.message if error else None,
                    )
                )
            if result.partition_result:
                response.replica_election_results.append(result)
        await active.apply(effects)
        return response

    return await run_or_error(controller, work, lambda error: m.ElectLeadersResponse(error_code=error))


def _partitions_to_elect(
    context: ControllerContext, request: m.ElectLeadersRequest
) -> Mapping[str, Iterable[int]]:
    if request.topic_partitions is None:
        return {
            topic.name: sorted(topic.assignments)
            for topic in context.topics.values()
            if not context.is_deleting(topic.name)
        }
    requested: dict[str, dict[int, None]] = {}
    for entry in request.topic_partitions:
        requested.setdefault(entry.topic, {}).update(dict.fromkeys(entry.partitions))
    return requested


def _elect_leader(
    context: ControllerContext, effects: Effects, tp: TopicPartition, election_type: int
) -> KafkaError | None:
    assignment, current = context.assignment(tp), context.leaders.get(tp)
    if assignment is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if context.is_deleting(tp.topic):
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
    if election_type == PREFERRED:
        if current is not None and current.leader == assignment.replicas[0]:
            return KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"{tp} is led by its preferred replica.")
        if not leadership.elect_preferred(context, effects, tp):
            return KafkaError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"The preferred replica {assignment.replicas[0]} of {tp} is not alive, or not in sync.",
            )
        return None
    if context.has_live_leader(tp):
        return KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"{tp} has a leader.")
    if not leadership.elect_unclean(context, effects, tp):
        return KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"No replica of {tp} is alive.")
    return None


# Reassignments (KIP-455)


async def alter_partition_reassignments(
    controller: ControllerInterface, request: m.AlterPartitionReassignmentsRequest
) -> m.AlterPartitionReassignmentsResponse:
    response_class = m.AlterPartitionReassignmentsResponse

    async def work(active: ActiveController) -> m.AlterPartitionReassignmentsResponse:
        effects, response = Effects(), response_class(error_message=None)
        for topic in request.topics:
            result_of_topic = response_class.ReassignableTopicResponse(name=topic.name)
            for partition in topic.partitions:
                result = response_class.ReassignablePartitionResponse(
                    partition_index=partition.partition_index, error_message=None
                )
                tp = TopicPartition(topic.name, partition.partition_index)
                try:
                    reassignment.alter(active.context, effects, tp, partition.replicas)
                except KafkaError as error:
                    result.error_code, result.error_message = error.code, error.message
                result_of_topic.partitions.append(result)
            response.responses.append(result_of_topic)
        await active.apply(effects)
        return response

    return await run_or_error(
        controller, work, lambda error: response_class(error_code=error, error_message=None)
    )


async def list_partition_reassignments(
    controller: ControllerInterface, request: m.ListPartitionReassignmentsRequest
) -> m.ListPartitionReassignmentsResponse:
    """The ongoing reassignments.

    The response waits for this broker's own metadata cache: if a reassignment is not listed, a following
    Metadata request does not list its removed replicas either.
    """
    response_class = m.ListPartitionReassignmentsResponse

    async def work(
        active: ActiveController,
    ) -> tuple[m.ListPartitionReassignmentsResponse, ActiveController | None]:
        response = response_class(error_message=None)
        for name, partitions in _partitions_to_list(active.context, request).items():
            result_of_topic = response_class.OngoingTopicReassignment(name=name)
            for partition, assignment in partitions:
                if assignment.is_being_reassigned:
                    result_of_topic.partitions.append(
                        response_class.OngoingPartitionReassignment(
                            partition_index=partition,
                            replicas=list(assignment.replicas),
                            adding_replicas=list(assignment.adding),
                            removing_replicas=list(assignment.removing),
                        )
                    )
            if result_of_topic.partitions:
                response.topics.append(result_of_topic)
        return response, active

    response, active = await run_or_error(
        controller, work, lambda error: (response_class(error_code=error, error_message=None), None)
    )
    if active is not None:
        await active.wait_for_local_metadata(request.timeout_ms / 1000)
    return response


def _partitions_to_list(
    context: ControllerContext, request: m.ListPartitionReassignmentsRequest
) -> dict[str, list[tuple[int, ReplicaAssignment]]]:
    if request.topics is None:
        return {topic.name: list(topic.assignments.items()) for topic in context.topics.values()}
    requested: dict[str, list[tuple[int, ReplicaAssignment]]] = {}
    for entry in request.topics:
        topic = context.topics.get(entry.name)
        if topic is not None:
            requested[entry.name] = [
                (p, topic.assignments[p]) for p in entry.partition_indexes if p in topic.assignments
            ]
    return requested
