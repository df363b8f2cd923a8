"""AlterPartition 0-3, ControlledShutdown 0-3, ElectLeaders 0-2, and reassignments, as the controller answers.

Called through `Controller`. An answer is given when the writes are done; brokers hear of it after that.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from ottla.controller import isr, leadership, membership, reassignment
from ottla.controller.effects import Effects
from ottla.controller.office import NotController, Office
from ottla.controller.state import Assignment, ClusterState
from ottla.controller.term import Term
from ottla.metadata.znodes import TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

log = logging.getLogger(__name__)

PREFERRED, UNCLEAN = 0, 1

R = TypeVar("R")


async def _answer(
    office: Office, work: Callable[[Term], Awaitable[R]], refused: Callable[[ErrorCode], R]
) -> R:
    try:
        return await office.in_office(work)
    except NotController:
        return refused(ErrorCode.NOT_CONTROLLER)
    except Exception:  # logged where it happened
        return refused(ErrorCode.UNKNOWN_SERVER_ERROR)


async def alter_partition(
    office: Office, request: AlterPartitionRequest, version: int
) -> AlterPartitionResponse:
    async def work(term: Term) -> AlterPartitionResponse:
        effects = Effects()
        response = isr.alter_partition(term.state, effects, request, version)
        if not effects.empty:
            await term.carry_out(effects)
        return response

    return await _answer(office, work, lambda error: AlterPartitionResponse(error_code=error))


async def controlled_shutdown(
    office: Office, request: ControlledShutdownRequest
) -> ControlledShutdownResponse:
    async def work(term: Term) -> ControlledShutdownResponse:
        state, effects = term.state, Effects()
        broker = state.brokers.get(request.broker_id)
        if broker is None:
            return ControlledShutdownResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
        if request.broker_epoch >= 0 and request.broker_epoch != broker.epoch:
            return ControlledShutdownResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        remaining = membership.begin_shutdown(state, effects, request.broker_id)
        await term.carry_out(effects)
        log.info("broker %d shuts down, and still leads %d partitions", request.broker_id, len(remaining))
        return ControlledShutdownResponse(
            remaining_partitions=[
                ControlledShutdownResponse.RemainingPartition(
                    topic_name=tp.topic, partition_index=tp.partition
                )
                for tp in remaining
            ]
        )

    return await _answer(office, work, lambda error: ControlledShutdownResponse(error_code=error))


# ElectLeaders


async def elect_leaders(office: Office, request: ElectLeadersRequest) -> ElectLeadersResponse:
    async def work(term: Term) -> ElectLeadersResponse:
        if request.election_type not in (PREFERRED, UNCLEAN):
            return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
        state, effects = term.state, Effects()
        everything = request.topic_partitions is None
        response = ElectLeadersResponse()
        for topic, partitions in _partitions_to_elect(state, request).items():
            result = ElectLeadersResponse.ReplicaElectionResult(topic=topic)
            for partition in partitions:
                tp = TopicPartition(topic, partition)
                error = _elect_one(state, effects, tp, request.election_type)
                if everything and error is not None and error.code == ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                result.partition_result.append(
                    ElectLeadersResponse.PartitionResult(
                        partition_id=partition,
                        error_code=error.code if error else ErrorCode.NONE,
                        error_message=error.message if error else None,
                    )
                )
            if result.partition_result:
                response.replica_election_results.append(result)
        await term.carry_out(effects)
        return response

    return await _answer(office, work, lambda error: ElectLeadersResponse(error_code=error))


def _partitions_to_elect(state: ClusterState, request: ElectLeadersRequest) -> Mapping[str, Iterable[int]]:
    if request.topic_partitions is None:
        return {
            topic.name: sorted(topic.assignments)
            for topic in state.topics.values()
            if not state.is_deleting(topic.name)
        }
    asked: dict[str, dict[int, None]] = {}
    for entry in request.topic_partitions:
        asked.setdefault(entry.topic, {}).update(dict.fromkeys(entry.partitions))
    return asked


def _elect_one(
    state: ClusterState, effects: Effects, tp: TopicPartition, election_type: int
) -> KafkaError | None:
    assignment, current = state.assignment(tp), state.leaders.get(tp)
    if assignment is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if state.is_deleting(tp.topic):
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
    if election_type == PREFERRED:
        if current is not None and current.leader == assignment.replicas[0]:
            return KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"{tp} is led by its preferred replica.")
        if not leadership.elect_preferred(state, effects, tp):
            return KafkaError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"The preferred replica {assignment.replicas[0]} of {tp} is not alive, or not in sync.",
            )
        return None
    if state.has_live_leader(tp):
        return KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"{tp} has a leader.")
    if not leadership.elect_unclean(state, effects, tp):
        return KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"No replica of {tp} is alive.")
    return None


# Reassignments (KIP-455)


async def alter_partition_reassignments(
    office: Office, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    response_class = AlterPartitionReassignmentsResponse

    async def work(term: Term) -> AlterPartitionReassignmentsResponse:
        effects, response = Effects(), response_class(error_message=None)
        for topic in request.topics:
            answer = response_class.ReassignableTopicResponse(name=topic.name)
            for partition in topic.partitions:
                result = response_class.ReassignablePartitionResponse(
                    partition_index=partition.partition_index, error_message=None
                )
                tp = TopicPartition(topic.name, partition.partition_index)
                try:
                    reassignment.alter(term.state, effects, tp, partition.replicas)
                except KafkaError as error:
                    result.error_code, result.error_message = error.code, error.message
                answer.partitions.append(result)
            response.responses.append(answer)
        await term.carry_out(effects)
        return response

    return await _answer(office, work, lambda error: response_class(error_code=error, error_message=None))


async def list_partition_reassignments(
    office: Office, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """The moves under way.

    The answer waits for this broker's own metadata. A move that is not listed is over there as well, so that
    who asks for Metadata next does not see replicas that are about to go.
    """
    response_class = ListPartitionReassignmentsResponse

    async def work(term: Term) -> tuple[ListPartitionReassignmentsResponse, Term | None]:
        response = response_class(error_message=None)
        for name, partitions in _partitions_to_list(term.state, request).items():
            answer = response_class.OngoingTopicReassignment(name=name)
            for partition, assignment in partitions:
                if assignment.moving:
                    answer.partitions.append(
                        response_class.OngoingPartitionReassignment(
                            partition_index=partition,
                            replicas=list(assignment.replicas),
                            adding_replicas=list(assignment.adding),
                            removing_replicas=list(assignment.removing),
                        )
                    )
            if answer.partitions:
                response.topics.append(answer)
        return response, term

    response, term = await _answer(
        office, work, lambda error: (response_class(error_code=error, error_message=None), None)
    )
    if term is not None:
        await term.shown_here(request.timeout_ms / 1000)
    return response


def _partitions_to_list(
    state: ClusterState, request: ListPartitionReassignmentsRequest
) -> dict[str, list[tuple[int, Assignment]]]:
    if request.topics is None:
        return {topic.name: list(topic.assignments.items()) for topic in state.topics.values()}
    asked: dict[str, list[tuple[int, Assignment]]] = {}
    for entry in request.topics:
        topic = state.topics.get(entry.name)
        if topic is not None:
            asked[entry.name] = [
                (p, topic.assignments[p]) for p in entry.partition_indexes if p in topic.assignments
            ]
    return asked
