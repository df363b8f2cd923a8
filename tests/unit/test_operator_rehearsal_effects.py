"""What a plan says of Users, ConsumerGroups and Pipelines, and which of their clients notice it."""

from __future__ import annotations

from typing import Any

import pytest

from ottla_operator.rehearsal.effects import Effect, effects_of
from ottla_operator.resources import AnyResource
from ottla_operator.resources.loading import parse_resource

REF: dict[str, Any] = {"clusterRef": {"name": "demo"}}
LISTENERS = [{"name": "plain", "port": 9092, "authentication": {"type": "scram-sha-512"}}]
SCRAM = {"authentication": {"type": "scram-sha-512"}}
JOB = {**REF, "job": "lake", "config": {"topics": ["orders"]}}
RESET = {"requestId": "1", "topics": ["orders", "clicks"], "to": "earliest"}


def resource(kind: str, spec: dict[str, Any], name: str = "it", *, deleting: bool = False) -> AnyResource:
    metadata = {"name": name, **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {})}
    found, problems = parse_resource(kind, metadata, spec)
    assert found is not None, problems
    return found


CLUSTER = resource("BrokerCluster", {"replicas": 3, "listeners": LISTENERS}, "demo")


def effects(*changes: tuple[AnyResource | None, AnyResource], cluster: AnyResource = CLUSTER) -> list[Effect]:
    before = [CLUSTER, *(old for old, _ in changes if old is not None)]
    after = [cluster, *(new for _, new in changes)]
    return effects_of(before, after, lambda each: f"demo:{each.spec.listeners[0].port}")


def effect(kind: str, old: dict[str, Any] | None, new: dict[str, Any] | None) -> Effect | None:
    """Of one resource; `new` None: it is deleted."""
    was = None if old is None else resource(kind, old)
    now = resource(kind, old or {}, deleting=True) if new is None else resource(kind, new)
    found = effects((was, now))
    assert len(found) <= 1
    return found[0] if found else None


def user(*acls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**REF, **SCRAM, "authorization": {"acls": list(acls)}, **more}


def acl(name: str, *operations: str, **more: Any) -> dict[str, Any]:
    return {
        "resource": {"type": "topic", "name": name, **more.pop("pattern", {})},
        "operations": list(operations),
        **more,
    }


READ, WRITE = acl("orders", "Read", "Describe"), acl("orders", "Write")


def test_a_new_user_gets_credentials_and_acls_and_no_client_notices() -> None:
    pattern = {"patternType": "prefix"}
    found = effect("User", None, user(READ, acl("log", "Write", host="10.0.0.1", pattern=pattern)))
    assert found == Effect(
        "User/it",
        (
            "make its password in Secret it",
            "add ACL: Allow Write on topic log*, from 10.0.0.1",
            "add ACL: Allow Read, Describe on topic orders",
        ),
    )


def test_a_removed_acl_is_noticed_by_the_users_clients() -> None:
    found = effect("User", user(READ, WRITE), user(READ))
    assert found is not None
    assert found.steps == ("remove ACL: Allow Write on topic orders",)
    assert (found.principal, found.why) == ("User:it", ("lose: Allow Write on topic orders",))


def test_an_added_acl_is_noticed_if_it_denies() -> None:
    found = effect("User", user(READ), user(READ, WRITE))
    assert found is not None
    assert (found.principal, found.why) == ("", ())
    found = effect("User", user(READ), user(READ, {**WRITE, "type": "deny"}))
    assert found is not None
    assert found.why == ("get: Deny Write on topic orders",)


def test_acls_without_an_authorization_are_removed() -> None:
    found = effect("User", user(READ), {**REF, **SCRAM})
    assert found is not None
    assert found.why == ("lose: Allow Read, Describe on topic orders",)


def test_another_authentication_needs_other_credentials() -> None:
    found = effect("User", {**REF, **SCRAM}, {**REF, "authentication": {"type": "tls"}})
    assert found is not None
    assert found.steps == ("delete its password", "make its certificate in Secret it")
    assert found.why == ("cannot connect again with their password: they need the certificate in Secret it",)
    assert found.principal == "User:it"


def test_a_given_password_ends_the_former_one() -> None:
    source = {"password": {"valueFrom": {"secretKeyRef": {"name": "given", "key": "password"}}}}
    given = {**REF, "authentication": {"type": "scram-sha-512", **source}}
    found = effect("User", {**REF, **SCRAM}, given)
    assert found is not None
    assert found.steps == ("set its password from Secret given",)
    assert found.why == ("cannot connect again with the former password: the new one is in Secret it",)


def test_a_deleted_user_loses_everything() -> None:
    found = effect("User", user(READ), None)
    assert found is not None
    assert (found.principal, found.why) == ("User:it", ("lose their credentials and ACLs",))


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ("Wait", "the reset waits until they have left"),
        ("Fail", "the reset fails while it has members"),
        ("Live", "its members are removed, join again and read from the new offsets"),
    ],
)
def test_a_reset_names_offsets_and_what_members_notice(when: str, why: str) -> None:
    found = effect("ConsumerGroup", REF, {**REF, "offsetReset": {**RESET, "whenActive": when}})
    assert found is not None
    assert found.steps == ("reset the offsets of group it on orders, clicks to earliest",)
    assert (found.group, found.why) == ("it", (why,))


def test_a_dry_run_of_a_reset_is_noticed_by_no_client() -> None:
    reset = {**RESET, "to": "shiftBy", "value": -5, "dryRun": True}
    found = effect("ConsumerGroup", None, {**REF, "offsetReset": reset})
    steps = ("observe group it", "compute the offsets of orders, clicks for shiftBy -5")
    assert found == Effect("ConsumerGroup/it", steps)


def test_a_reset_that_was_requested_before_and_a_limit_change_nothing() -> None:
    assert (
        effect("ConsumerGroup", {**REF, "offsetReset": RESET}, {**REF, "offsetReset": RESET, "maxLag": 5})
        is None
    )


def test_a_deleted_group_keeps_its_offsets_unless_its_policy_deletes_them() -> None:
    assert effect("ConsumerGroup", REF, None) is None
    found = effect("ConsumerGroup", {**REF, "deletionPolicy": "Delete"}, None)
    assert found is not None
    assert (found.steps, found.group) == (("delete the offsets of group it",), "it")


@pytest.mark.parametrize(
    ("old", "new", "steps"),
    [
        (None, JOB, ("start the driver of job lake",)),
        (JOB, JOB, None),
        (JOB, {**JOB, "suspend": True}, ("stop the driver when its batch has ended",)),
        ({**JOB, "suspend": True}, JOB, ("start the driver of job lake",)),
        ({**JOB, "suspend": True}, {**JOB, "suspend": True, "image": "x"}, None),
        (
            JOB,
            {**JOB, "config": {"topics": ["clicks"]}},
            ("stop the driver when its batch has ended, and start it again: its spec has changed",),
        ),
        (
            JOB,
            {**JOB, "user": "none"},
            (
                "the running driver goes on; it does not start again: "
                "User none of BrokerCluster/demo does not exist",
            ),
        ),
        (JOB, None, ("stop the driver when its batch has ended",)),
    ],
)
def test_a_pipelines_driver_starts_stops_or_goes_on(
    old: dict[str, Any] | None, new: dict[str, Any] | None, steps: tuple[str, ...] | None
) -> None:
    found = effect("Pipeline", old, new)
    assert (None if found is None else found.steps) == steps


def test_a_change_of_the_cluster_restarts_the_driver_of_a_pipeline_that_connects_to_it() -> None:
    pipeline = resource("Pipeline", JOB)
    other = resource("BrokerCluster", {"replicas": 3, "listeners": [{**LISTENERS[0], "port": 9093}]}, "demo")
    (found,) = effects((pipeline, pipeline), cluster=other)
    assert found.steps == (
        "stop the driver when its batch has ended, and start it again: what it connects with has changed",
    )
