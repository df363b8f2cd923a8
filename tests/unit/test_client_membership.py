"""Group members against a model of their coordinator: lost responses, removed members, a coordinator that
moves.

Invariants: no two members of the group's generation own the same partition; without further faults, every
partition is owned.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.client.core.assigned import Assigned
from ottla.client.core.assignment import Subscription, encode_assignment
from ottla.client.core.baseline import Baseline
from ottla.client.core.cluster import GROUP, Cluster
from ottla.client.core.consumer_config import ConsumerConfig
from ottla.client.core.coordinator import Coordinator
from ottla.client.core.membership import GroupMember, State
from ottla.client.core.offsets import Membership
from ottla.client.core.rebalancing import Rebalancing
from ottla.client.core.types import TopicPartition, UnsentRequest
from ottla.client.errors import CommitFailedError, RebalanceInProgressError, UnsupportedVersionError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MetadataResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from ottla.wire.connection_state import UnsupportedApi

PLACES = [TopicPartition("t", number) for number in range(5)]


class Group:
    """The coordinator's state, as far as members can observe it."""

    def __init__(self) -> None:
        self.node = 0
        self.generation = 0
        self.members: dict[str, JoinGroupRequest] = {}
        self.preparing = False
        self.joining: dict[str, Any] = {}
        """Who answers a member that has joined."""
        self.syncing: dict[str, Any] = {}
        self.assignments: dict[str, bytes] | None = None
        self.leader = ""
        self.ids = 0
        self.gone: set[str] = set()

    def take(self, unsent: UnsentRequest, answer: Any) -> None:
        message = unsent.message
        if isinstance(message, FindCoordinatorRequest):
            answer(FindCoordinatorResponse(node_id=self.node, host="h", port=self.node + 1))
            return
        responses: dict[type, type] = {
            JoinGroupRequest: JoinGroupResponse,
            SyncGroupRequest: SyncGroupResponse,
            HeartbeatRequest: HeartbeatResponse,
            LeaveGroupRequest: LeaveGroupResponse,
        }
        response = responses[type(message)]
        if unsent.node_id != self.node:
            answer(response(error_code=int(ErrorCode.NOT_COORDINATOR)))
        elif isinstance(message, JoinGroupRequest):
            self.join(message, answer)
        elif isinstance(message, LeaveGroupRequest):
            self.throw_out(message.members[0].member_id)
            answer(response())
        elif message.member_id not in self.members:  # type: ignore[attr-defined]
            answer(response(error_code=int(ErrorCode.UNKNOWN_MEMBER_ID)))
        elif message.generation_id != self.generation:  # type: ignore[attr-defined]
            answer(response(error_code=int(ErrorCode.ILLEGAL_GENERATION)))
        elif self.preparing:
            answer(response(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS)))
        elif isinstance(message, SyncGroupRequest):
            self.sync(message, answer)
        else:
            answer(response())

    def join(self, request: JoinGroupRequest, answer: Any) -> None:
        member = request.member_id
        if not member:
            self.ids += 1
            given = f"member-{self.ids}"
            answer(JoinGroupResponse(error_code=int(ErrorCode.MEMBER_ID_REQUIRED), member_id=given))
            return
        if member in self.gone:
            answer(JoinGroupResponse(error_code=int(ErrorCode.UNKNOWN_MEMBER_ID)))
            return
        self.members[member] = request
        self.prepare()
        self.joining[member] = answer
        self.complete_if_all_are_there()

    def prepare(self) -> None:
        if not self.preparing:
            self.preparing = True
            for answer in self.syncing.values():
                answer(SyncGroupResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS)))
            self.syncing = {}

    def complete_if_all_are_there(self) -> None:
        if self.members and self.joining.keys() == self.members.keys():
            self.preparing = False
            self.generation += 1
            self.assignments = None
            self.leader = min(self.members)
            rows = [
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=name, metadata=request.protocols[0].metadata
                )
                for name, request in self.members.items()
            ]
            protocol = next(iter(self.members.values())).protocols[0].name
            joining, self.joining = self.joining, {}
            for name, answer in joining.items():
                answer(
                    JoinGroupResponse(
                        generation_id=self.generation, protocol_name=protocol, leader=self.leader,
                        member_id=name, members=rows if name == self.leader else [],
                    )
                )  # fmt: skip

    def sync(self, request: SyncGroupRequest, answer: Any) -> None:
        if request.member_id == self.leader and self.assignments is None:
            self.assignments = {row.member_id: row.assignment for row in request.assignments}
            for name, waiting in self.syncing.items():
                waiting(SyncGroupResponse(assignment=self.share(name)))
            self.syncing = {}
        if self.assignments is None:
            self.syncing[request.member_id] = answer
        else:
            answer(SyncGroupResponse(assignment=self.share(request.member_id)))

    def share(self, member: str) -> bytes:
        assert self.assignments is not None
        return self.assignments.get(member, encode_assignment(()))

    def throw_out(self, member: str) -> None:
        if self.members.pop(member, None) is not None:
            self.gone.add(member)
            self.joining.pop(member, None)
            self.syncing.pop(member, None)
            self.prepare()
            self.complete_if_all_are_there()


class Client:
    def __init__(self, strategy: str, **settings: object) -> None:
        def uniform(low: float, high: float) -> float:
            return (low + high) / 2

        config = ConsumerConfig.of(
            bootstrap_servers="h:1", group_id="g", partition_assignment_strategy=strategy, **settings
        )
        self.cluster = Cluster(uniform=uniform)
        self.assigned = Assigned()
        self.coordinator = Coordinator(config, self.cluster, uniform)
        self.rebalancing = Rebalancing(config, self.cluster, self.assigned, Baseline(self.cluster))
        self.member = GroupMember(config, self.coordinator, self.rebalancing.perform_assignment, uniform)
        self.rebalancing.member = self.member
        self.sent: list[tuple[Any, UnsentRequest]] = []
        self.reported: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.cluster.want(["t"])
        assert self.cluster.request(0.0) is not None
        rows = [
            MetadataResponse.MetadataResponsePartition(partition_index=tp.partition, leader_id=0)
            for tp in PLACES
        ]
        topic = MetadataResponse.MetadataResponseTopic(name="t", partitions=rows)
        nodes = [MetadataResponse.MetadataResponseBroker(node_id=n, host="h", port=n + 1) for n in (0, 1)]
        self.cluster.take(MetadataResponse(brokers=nodes, topics=[topic]), 0.0)
        self.rebalancing.subscribe(["t"], None)
        self.member.active = True

    def application(self, now: float) -> None:
        """The consumer's work in the user's call of poll."""
        member, rebalancing = self.member, self.rebalancing
        member.polled(now)
        rebalancing.on_metadata_update()
        if (joined := member.joined) is not None:
            change = rebalancing.after_join(joined)
            assert change is not None
            member.joined = None
            rebalancing.take_assignment(joined, change)
        elif member.rejoin and not member.joining:
            rebalancing.remove(rebalancing.before_join())
            rebalancing.join()

    def driver(self, now: float) -> None:
        for core in (self.coordinator, self.member):
            self.sent += [(core, unsent) for unsent in core.poll(now)]


class MembershipMachine(RuleBasedStateMachine):
    @initialize(strategy=st.sampled_from(["range", "cooperative-sticky", "sticky"]))
    def begin(self, strategy: str) -> None:
        self.now = 1.0
        self.group = Group()
        self.clients = [Client(strategy) for _ in range(3)]

    @rule(number=st.integers(0, 2))
    def application(self, number: int) -> None:
        self.clients[number].application(self.now)

    @rule(number=st.integers(0, 2), passed_s=st.floats(0.01, 3))
    def driver(self, number: int, passed_s: float) -> None:
        self.now += passed_s
        self.clients[number].driver(self.now)

    @rule(number=st.integers(0, 2), fate=st.sampled_from(["arrives"] * 4 + ["is lost", "answer is lost"]))
    def request(self, number: int, fate: str) -> None:
        client = self.clients[number]
        if client.sent:
            core, unsent = client.sent.pop(0)

            def answer(response: Any) -> None:
                core.on_response(unsent.tag, response, self.now)

            if fate == "is lost":
                answer(ConnectionError("lost"))
            elif fate == "answer is lost":
                self.group.take(unsent, lambda response: None)
                answer(ConnectionError("lost"))
            else:
                self.group.take(unsent, answer)

    @precondition(lambda self: self.group.members)
    @rule(number=st.integers(0, 2))
    def session_ends(self, number: int) -> None:
        self.group.throw_out(sorted(self.group.members)[number % len(self.group.members)])

    @rule()
    def coordinator_moves(self) -> None:
        self.group.node ^= 1

    @rule(number=st.integers(0, 2))
    def leaves_and_comes_back(self, number: int) -> None:
        self.clients[number].assigned.assign(())
        self.clients[number].member.leave("a test")

    @invariant()
    def nobody_shares_a_partition_with_another_member_of_the_generation(self) -> None:
        owned = [
            tp
            for client in getattr(self, "clients", ())
            if client.member.state is State.STABLE
            and client.member.joined is None
            and client.member.membership.generation == self.group.generation
            and client.member.membership.member_id in self.group.members
            for tp in client.assigned.partitions
        ]
        assert len(owned) == len(set(owned)), owned

    def teardown(self) -> None:
        if not hasattr(self, "clients"):
            return
        for _ in range(300):
            for number, client in enumerate(self.clients):
                client.application(self.now)
                self.driver(number, 0.2)
                while client.sent:
                    self.request(number, "arrives")
            ids = {client.member.membership.member_id for client in self.clients}
            for ghost in [name for name in self.group.members if name not in ids]:
                self.group.throw_out(ghost)  # its session ends
            if all(
                client.member.state is State.STABLE and not client.member.rejoin and not client.member.joined
                for client in self.clients
            ):
                break
        owned = sorted(tp for client in self.clients for tp in client.assigned.partitions)
        assert owned == PLACES
        assert not any(client.member.problems for client in self.clients)


TestMembership = MembershipMachine.TestCase
TestMembership.settings = settings(max_examples=35, stateful_step_count=40, deadline=None)


def alone() -> tuple[Client, Group]:
    client, group = Client("range"), Group()
    client.application(0.0)
    for step in range(20):
        exchange(client, group, step / 100)
    assert client.member.joined is not None
    client.application(0.2)
    return client, group


def exchange(client: Client, group: Group, now: float) -> None:
    client.driver(now)
    for core, unsent in client.sent:
        group.take(unsent, lambda response, core=core, tag=unsent.tag: core.on_response(tag, response, now))
    client.sent = []


def test_a_member_whose_application_stops_polling_leaves_and_loses_its_partitions() -> None:
    client, group = alone()
    assert len(client.assigned) == len(PLACES)
    for second in range(1, 302):
        exchange(client, group, float(second))
        if second < 300:
            assert client.member.state is State.STABLE, second
    assert not group.members
    assert client.member.lost
    with pytest.raises(CommitFailedError):
        client.member.current()
    assert client.rebalancing.before_join().lost == tuple(PLACES)


def test_a_silent_coordinator_is_looked_up_again() -> None:
    client, _ = alone()
    for second in range(1, 60):
        client.member.polled(float(second))
        client.driver(float(second))
    assert client.cluster.coordinator(GROUP, "g") is None or any(
        isinstance(unsent.message, FindCoordinatorRequest) for _, unsent in client.sent
    )


def test_a_member_without_a_coordinator_waits_for_it_and_does_not_poll_on() -> None:
    client = Client("range")
    client.application(0.0)
    client.driver(0.0)
    assert client.member.state is State.JOINING
    assert client.member.next_time(0.1) == math.inf

    client, _ = alone()
    client.coordinator.lost(None, 4.0)
    assert client.member.next_time(4.0) > 4.0, "a heartbeat is due, and nobody to send it to"


def test_the_leader_assigns_a_partition_whose_owner_restarted_before_it_revoked_it() -> None:
    client = Client("cooperative-sticky")
    member, rebalancing = client.member, client.rebalancing
    member.is_leader, member.rejoin = True, False
    members = {
        "leader": Subscription(("t",)),
        "static": Subscription(("t",), owned=tuple(PLACES), generation=1, instance_id="one"),
    }
    shares = rebalancing.perform_assignment("cooperative-sticky", members)
    assert shares is not None
    assert len([tp for share in shares.values() for tp in share.partitions]) < len(PLACES)
    for now in (10.0, 309.0):
        rebalancing.reassign_withheld(now)
        assert not member.rejoin
    rebalancing.reassign_withheld(310.0)
    assert member.rejoin

    member.rejoin = False
    members["static"] = Subscription(("t",), generation=1, instance_id="one")
    shares = rebalancing.perform_assignment("cooperative-sticky", members)
    assert shares is not None
    assert sorted(tp for share in shares.values() for tp in share.partitions) == PLACES
    for now in (311.0, 1000.0):
        rebalancing.reassign_withheld(now)
        assert not member.rejoin, "every partition has an owner"


def test_offsets_are_not_committed_between_generations() -> None:
    client, group = alone()
    before = client.member.current()
    assert before.generation == 1
    client.member.request_rejoin("a test")
    client.application(0.3)
    with pytest.raises(RebalanceInProgressError):
        client.member.current()
    for step in range(20):
        exchange(client, group, 0.3 + step / 100)
    client.application(0.6)
    assert client.member.current() == Membership(2, before.member_id, None)


@pytest.mark.parametrize("problem", [UnsupportedVersionError("JoinGroup up to 4"), UnsupportedApi("none")])
def test_a_broker_that_is_too_old_fails_each_poll(problem: Exception) -> None:
    client, group = Client("range", group_instance_id="one"), Group()
    for second in range(1, 6):
        client.application(float(second))
        client.driver(float(second))
        for core, unsent in client.sent:
            if isinstance(unsent.message, JoinGroupRequest):
                assert unsent.version_min == 5
                core.on_response(unsent.tag, problem, float(second))
            else:
                tag = unsent.tag
                group.take(unsent, lambda found, core=core, tag=tag: core.on_response(tag, found, 1.0))
        client.sent = []
        if second > 2:  # until then it looks for the coordinator
            (raised,) = client.member.problems
            assert isinstance(raised, UnsupportedVersionError)
            assert "group.instance.id=one needs brokers of Kafka 2.3" in str(raised)
            assert client.coordinator.node() == 0, "it is still the coordinator"
            client.member.problems.clear()


def test_a_member_whose_assignor_fails_joins_again_with_its_id() -> None:
    """As Kafka's consumer does: the group would wait for another id of it until the session has expired."""
    client, group = Client("range"), Group()

    def fail(*_: object) -> None:
        raise LookupError("on purpose")

    client.member._assign = fail
    for step in range(100):
        client.application(step / 10)
        exchange(client, group, step / 10)
    assert len(client.member.problems) > 1
    assert list(group.members) == ["member-1"]
