"""Ephemeral groups, which store no offsets: allowed settings, and the deletion of the group."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.core.cluster import GROUP, Cluster
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.coordinator import Coordinator
from ottla.client.core.ephemeral import EphemeralGroup
from ottla.client.core.types import Node
from ottla.client.errors import ConfigError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import DeleteGroupsResponse, OffsetFetchResponse


def middle(least: float, most: float) -> float:
    return (least + most) / 2


class EphemeralGroupSimulation:
    def __init__(self) -> None:
        self.config = ConsumerConfig.of(
            bootstrap_servers="h:1", group_id="g", group_ephemeral=True, auto_offset_reset="earliest"
        )
        self.cluster = Cluster(
            uniform=middle,
            metadata_max_age_ms=1000,
            retry_backoff_ms=100,
            retry_backoff_max_ms=1000,
            allow_auto_topic_creation=False,
        )
        self.cluster.nodes = {1: Node(1, "h", 1)}
        self.cluster.take_coordinator(GROUP, "g", Node(1, "h", 1))
        self.leaving = True
        coordinator = Coordinator(self.config, self.cluster, middle)
        self.group = EphemeralGroup(self.config, coordinator, lambda: self.leaving, middle)
        self.now = 0.0

    def polled(self) -> list[str]:
        return [type(each.message).__name__ for each in self.group.poll(self.now)]

    def receive(self, response: Any) -> None:
        self.group.on_response("", response, self.now)


def looked(offset: int | None = None, error: int = 0) -> OffsetFetchResponse:
    message = OffsetFetchResponse
    rows = [] if offset is None else [message.OffsetFetchResponsePartition(committed_offset=offset)]
    topics = [message.OffsetFetchResponseTopic(name="t", partitions=rows)] if rows else []
    return message(error_code=error, topics=topics)


def deleted(error: int = 0) -> DeleteGroupsResponse:
    row = DeleteGroupsResponse.DeletableGroupResult(group_id="g", error_code=error)
    return DeleteGroupsResponse(results=[row])


@pytest.mark.parametrize("error", [0, ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND])
def test_a_member_that_has_left_deletes_the_group_if_possible(error: int) -> None:
    simulation = EphemeralGroupSimulation()
    assert (simulation.polled(), simulation.group.deleting) == ([], False)
    simulation.group.delete()
    assert simulation.polled() == []
    simulation.leaving = False
    assert simulation.polled() == ["OffsetFetchRequest"]
    assert simulation.polled() == []
    simulation.receive(looked())
    assert simulation.polled() == ["DeleteGroupsRequest"]
    simulation.receive(deleted(error))
    assert (simulation.polled(), simulation.group.deleting) == ([], False)


def test_a_group_with_offsets_is_kept() -> None:
    simulation = EphemeralGroupSimulation()
    simulation.leaving = False
    simulation.group.delete()
    assert simulation.polled() == ["OffsetFetchRequest"]
    simulation.receive(looked(offset=3))
    assert (simulation.polled(), simulation.group.deleting) == ([], False)


def test_the_deletion_is_retried_on_the_new_coordinator() -> None:
    simulation = EphemeralGroupSimulation()
    simulation.leaving = False
    simulation.group.delete()
    simulation.polled()
    simulation.receive(looked(error=ErrorCode.NOT_COORDINATOR))
    assert simulation.group.next_time(0) > 0
    simulation.now = 1
    assert simulation.polled() == []
    simulation.cluster.take_coordinator(GROUP, "g", Node(1, "h", 1))
    assert simulation.polled() == ["OffsetFetchRequest"]
    simulation.receive(looked())
    assert simulation.polled() == ["DeleteGroupsRequest"]
    simulation.receive(TimeoutError())
    assert simulation.group.deleting


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "group.ephemeral=True: needs a group.id"),
        ({"group_id": "g", "group_instance_id": "i"}, "a static member never leaves"),
        ({"group_id": "g", "enable_auto_commit": True}, "cannot be true with group.ephemeral"),
        ({"group_id": "g", "auto_offset_reset": "none"}, "must be latest or earliest"),
    ],
)
def test_conflicting_settings_are_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ConsumerConfig.of(bootstrap_servers="h:1", group_ephemeral=True, **settings)


def test_an_ephemeral_group_commits_nothing_automatically() -> None:
    config = ConsumerConfig.of(bootstrap_servers="h:1", group_id="g", group_ephemeral="true")
    assert not config.enable_auto_commit
