"""AlterPartition on the leader: contents and version of the request, and the effect of the response."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.protocol import codec
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.types import ZERO_UUID
from ottla.replication.alter_partition import apply_response, build_request, downgrade, highest_version
from ottla.replication.isr import IsrChange
from ottla.replication.partition import Partition
from tests.worlds.replication_cluster import LAG_MS_MAX, TOPIC, TOPIC_ID, Cluster

Proposals = dict[tuple[str, int], tuple[Partition, IsrChange]]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """A leader that has proposed to remove its followers 2 and 3 from the ISR."""
    cluster = Cluster(tmp_path)
    cluster.leader.topic_id = TOPIC_ID
    cluster.produce("a", acks=1)
    cluster.now_ms += LAG_MS_MAX + 1
    cluster.leader.maybe_shrink_isr(cluster.now_ms)
    return cluster


def proposals_of(cluster: Cluster) -> Proposals:
    return {partition.key: (partition, change) for partition, change in cluster.proposals}


def answer(
    error: ErrorCode = ErrorCode.NONE, *, by_name: bool = False, isr: list[int] | None = None, epoch: int = 1
) -> AlterPartitionResponse:
    row = AlterPartitionResponse.PartitionData(
        partition_index=0, error_code=error, leader_id=1, isr=isr or [1], partition_epoch=epoch
    )
    topic = AlterPartitionResponse.TopicData(partitions=[row])
    if by_name:
        topic.topic_name = TOPIC
    else:
        topic.topic_id = TOPIC_ID
    return AlterPartitionResponse(topics=[topic])


def test_a_request_names_the_set_and_the_epochs_it_was_decided_in(cluster: Cluster) -> None:
    request = build_request(1, 42, proposals_of(cluster))
    assert (request.broker_id, request.broker_epoch) == (1, 42)
    [topic] = request.topics
    assert (topic.topic_name, topic.topic_id) == (TOPIC, TOPIC_ID)
    [row] = topic.partitions
    assert (row.leader_epoch, row.partition_epoch) == (0, 0)
    assert [member.broker_id for member in row.new_isr_with_epochs] == [1]
    assert [member.broker_epoch for member in row.new_isr_with_epochs] == [-1]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_request_can_be_sent_in_every_version(cluster: Cluster, version: int) -> None:
    request = downgrade(build_request(1, 42, proposals_of(cluster)), version)
    sent = codec.decode(AlterPartitionRequest, version, codec.encode(request, version))
    [row] = sent.topics[0].partitions
    assert ([b.broker_id for b in row.new_isr_with_epochs] or row.new_isr) == [1]


def test_a_topic_without_an_id_needs_a_version_that_has_names(cluster: Cluster) -> None:
    request = build_request(1, 42, proposals_of(cluster))
    assert highest_version(request) == 3
    request.topics[0].topic_id = ZERO_UUID
    assert highest_version(request) == 1


@pytest.mark.parametrize("by_name", [False, True])
def test_an_answer_is_matched_by_id_or_name(cluster: Cluster, by_name: bool) -> None:
    again = apply_response(proposals_of(cluster), answer(by_name=by_name), cluster.now_ms)
    assert not again
    assert cluster.leader.isr == {1}
    assert cluster.leader.partition_epoch == 1


def test_a_change_that_is_already_made_completes_under_the_present_epoch(cluster: Cluster) -> None:
    apply_response(proposals_of(cluster), answer(epoch=0), cluster.now_ms)
    assert cluster.leader.isr_change is None
    assert cluster.leader.isr == {1}


@pytest.mark.parametrize(
    ("error", "asks_again", "is_rejected"),
    [
        (ErrorCode.INELIGIBLE_REPLICA, False, True),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, False, True),
        (ErrorCode.FENCED_LEADER_EPOCH, False, False),
        (ErrorCode.INVALID_UPDATE_VERSION, False, False),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False, False),
        (ErrorCode.NEW_LEADER_ELECTED, False, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, True, False),
    ],
)
def test_a_refused_change_of_the_isr_is_dropped_or_asked_for_again_by_its_error(
    cluster: Cluster, error: ErrorCode, asks_again: bool, is_rejected: bool
) -> None:
    again = apply_response(proposals_of(cluster), answer(error), cluster.now_ms)
    assert bool(again) == asks_again
    assert (cluster.leader.isr_change is None) == is_rejected
    assert cluster.leader.isr == {1, 2, 3}


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
)
def test_a_refusal_of_the_whole_request_is_retried(cluster: Cluster, error: ErrorCode) -> None:
    response = AlterPartitionResponse(error_code=error)
    assert apply_response(proposals_of(cluster), response, cluster.now_ms) == proposals_of(cluster)


def test_a_partition_missing_in_the_response_is_requested_again(cluster: Cluster) -> None:
    again = apply_response(proposals_of(cluster), AlterPartitionResponse(), cluster.now_ms)
    assert again == proposals_of(cluster)


def test_no_retry_follows_the_end_of_a_leadership(cluster: Cluster) -> None:
    proposals = proposals_of(cluster)
    cluster.elect(2)
    response = AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)
    assert not apply_response(proposals, response, cluster.now_ms)
