"""AlterPartition: ISR changes that the controller grants, and its errors otherwise."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from ottla.controller import isr, topic_deletion
from ottla.controller.effects import Effects
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import AlterPartitionRequest, AlterPartitionResponse
from tests.worlds.simulated_controller import CONTROLLER_EPOCH, T0, SimulatedController


def three() -> SimulatedController:
    simulation = SimulatedController()
    simulation.create({0: (1, 2, 3)})
    return simulation


def partition(response: AlterPartitionResponse) -> AlterPartitionResponse.PartitionData:
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_the_leader_shrinks_and_grows_its_isr_under_the_same_leader_epoch(version: int) -> None:
    simulation = three()
    answer = partition(simulation.ask_isr([1, 2], version=version))
    assert (answer.error_code, answer.leader_id, answer.isr) == (0, 1, [1, 2])
    assert (answer.leader_epoch, answer.partition_epoch) == (0, 1)
    assert simulation.lead().isr == (1, 2)
    assert simulation.lead().controller_epoch == CONTROLLER_EPOCH
    assert simulation.reported() == [], "the leader learns it from the answer"
    assert T0 in simulation.effects.metadata
    assert partition(simulation.ask_isr([1, 2, 3], version=version)).partition_epoch == 2


def test_a_repeated_request_is_answered_as_if_new_without_a_write() -> None:
    simulation = three()
    simulation.ask_isr([1, 2])
    answer = partition(simulation.ask_isr([1, 2], partition_epoch=0))
    assert (answer.error_code, answer.isr, answer.partition_epoch) == (0, [1, 2], 1)
    assert simulation.effects.empty


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"partition_epoch": 1}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"partition_epoch": 3}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ({"by": 3}, ErrorCode.INVALID_REQUEST),
        ({"isr_wanted": [3]}, ErrorCode.INVALID_REQUEST),
        ({"isr_wanted": [2, 9]}, ErrorCode.INVALID_REQUEST),
        ({"isr_wanted": [2, 1]}, ErrorCode.INELIGIBLE_REPLICA),
        ({"isr_wanted": [2, 1], "version": 1}, ErrorCode.OPERATION_NOT_ATTEMPTED),
        ({"member_epochs": {3: 5}}, ErrorCode.INELIGIBLE_REPLICA),
        ({"recovery": 1}, ErrorCode.INVALID_REQUEST),
        ({"isr_wanted": [2], "recovery": 1}, ErrorCode.INVALID_REQUEST),
    ],
    ids=str,
)
def test_a_change_of_the_isr_is_refused_with_kafkas_error(asked: dict[str, Any], error: ErrorCode) -> None:
    simulation = three()
    simulation.ask_isr([1, 2])
    simulation.alive(2, 3)
    before = simulation.lead()
    assert (before.leader, before.isr, before.leader_epoch, before.partition_epoch) == (2, (2,), 1, 2)
    assert partition(simulation.ask_isr(**{"isr_wanted": [2, 3], **asked})).error_code == error
    assert simulation.lead() == before
    assert simulation.effects.empty


def test_a_broker_in_controlled_shutdown_may_not_join_but_may_be_dropped() -> None:
    simulation = three()
    simulation.ask_isr([1, 2])
    simulation.context.shutting_down = {2, 3}
    assert partition(simulation.ask_isr([1, 2, 3])).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert partition(simulation.ask_isr([1])).error_code == 0


def test_a_request_from_an_earlier_incarnation_of_the_broker_is_refused_whole() -> None:
    simulation = three()
    response = simulation.ask_isr([1, 2], broker_epoch=5)
    assert (response.error_code, response.topics) == (ErrorCode.STALE_BROKER_EPOCH, [])
    assert simulation.ask_isr([1, 2], by=9).error_code == ErrorCode.STALE_BROKER_EPOCH


def request_for(topic_id: UUID, name: str, index: int) -> AlterPartitionRequest:
    return AlterPartitionRequest(
        broker_id=1,
        broker_epoch=101,
        topics=[
            AlterPartitionRequest.TopicData(
                topic_name=name,
                topic_id=topic_id,
                partitions=[AlterPartitionRequest.PartitionData(partition_index=index)],
            )
        ],
    )


def test_unknown_topics_are_named_by_id_or_name_by_version() -> None:
    simulation = three()
    known = simulation.context.topics["t"].topic_id
    for request, version, error in (
        (request_for(UUID(int=1), "", 0), 3, ErrorCode.UNKNOWN_TOPIC_ID),
        (request_for(known, "", 9), 3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (request_for(UUID(int=0), "other", 0), 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        response = isr.alter_partition(simulation.context, Effects(), request, version)
        assert partition(response).error_code == error


def test_a_topic_being_deleted_is_unknown() -> None:
    simulation = three()
    simulation.decide(lambda s, e: topic_deletion.request(s, e, ["t"]))
    assert partition(simulation.ask_isr([1, 2])).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
