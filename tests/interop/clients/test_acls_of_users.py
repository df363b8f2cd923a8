"""Users with passwords, and what ACLs let them do: librdkafka's clients against one broker of ours.

anna administers (a super user), alice writes flights, bob reads them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from ottla.client import admin as ottla_admin
from ottla.client.admin import Results
from ottla.local.processes import free_port, wait_until
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.protocol.types import Message
from ottla.security import acls
from tests.judges.one_broker import one_broker
from tests.judges.secured import PLAIN_MODULE, RawSaslConnection

pytestmark = pytest.mark.timeout(420)
USERS = ("anna", "alice", "bob")
JAAS = f"{PLAIN_MODULE} required " + " ".join(f'user_{user}="{user}s word"' for user in USERS) + ";"
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE = AclOperation.READ, AclOperation.WRITE

ClientSettings = Callable[[str], dict[str, str]]


@pytest.fixture(scope="module")
def of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientSettings]:
    """A client's settings, by user; the topics are there, and the ACLs."""
    directory: Path = tmp_path_factory.mktemp("users")
    port = free_port()
    settings = {
        # The broker itself comes in by the other one, where nobody says who he is.
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()},SASL_PLAINTEXT://127.0.0.1:{port}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS;User:anna",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "delegation.token.secret.key": "the key of keys",
    }

    def of_user(user: str) -> dict[str, str]:
        return {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": f"{user}s word",
            "log_level": "2",
        }

    with one_broker(directory, settings):
        anna = AdminClient(of_user("anna"))
        topics = [NewTopic(name, 1, 1) for name in ("flights", "private")]
        for made in anna.create_topics(topics, request_timeout=60).values():
            made.result(timeout=120)
        granted = [
            acl(TOPIC, "flights", "alice", WRITE),
            acl(TOPIC, "fli", "bob", READ, pattern=ResourcePatternType.PREFIXED),
            acl(GROUP, "readers", "bob", READ),
        ]
        for made in anna.create_acls(granted, request_timeout=60).values():
            made.result(timeout=120)
        del anna  # it would outlive its broker
        yield of_user


def acl(
    kind: ResourceType,
    name: str,
    user: str,
    operation: AclOperation,
    *,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> AclBinding:
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def written(settings: dict[str, str], topic: str) -> int | None:
    """The error code of one record's delivery; None: it is there."""
    failed: list[KafkaError | None] = []
    producer = Producer({**settings, "message.timeout.ms": "240000"})
    producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(240) == 0
    [error] = failed
    return None if error is None else error.code()


def test_each_principal_writes_where_its_acls_allow(of: ClientSettings) -> None:
    assert written(of("alice"), "flights") is None
    assert written({**of("alice"), "enable.idempotence": "true"}, "flights") is None
    assert written(of("alice"), "private") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert written(of("bob"), "flights") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert written(of("anna"), "private") is None


def test_each_principal_lists_what_its_acls_allow(of: ClientSettings) -> None:
    for user in ("alice", "bob"):
        assert list(AdminClient(of(user)).list_topics(timeout=60).topics) == ["flights"]
    assert {"flights", "private"} <= set(AdminClient(of("anna")).list_topics(timeout=60).topics)


def test_only_an_authorized_user_changes_acls(of: ClientSettings) -> None:
    mine = acl(TOPIC, "private", "alice", READ)
    alice = AdminClient(of("alice"))
    with pytest.raises(KafkaException) as refused:
        alice.create_acls([mine], request_timeout=60)[mine].result(timeout=120)
    assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED


def errors_of(consumer: Consumer, awaited: bytes | int) -> list[bytes | int | None]:
    """Values of records and codes of errors, in their order, until there is the awaited one."""
    found: list[bytes | int | None] = []

    def failed() -> bool:
        message = consumer.poll(1)
        if message is not None:
            error = message.error()
            found.append(message.value() if error is None else error.code())
        return awaited in found

    assert wait_until(failed, timeout_s=240), found
    return found


def reader(settings: dict[str, str], group: str) -> Consumer:
    return Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})


def test_each_principal_reads_what_its_acls_allow(of: ClientSettings) -> None:
    assert written(of("anna"), "flights") is None
    for user, group, expected in (
        ("bob", "readers", b"x"),
        ("bob", "others", KafkaError.GROUP_AUTHORIZATION_FAILED),
        ("alice", "readers", KafkaError.GROUP_AUTHORIZATION_FAILED),
    ):
        consumer = reader(of(user), group)
        try:
            consumer.subscribe(["flights"])
            found = errors_of(consumer, expected)
            assert expected == b"x" or b"x" not in found
        finally:
            consumer.close()
    alone = reader(of("alice"), "none")
    try:
        alone.assign([TopicPartition("flights", 0, 0)])
        assert b"x" not in errors_of(alone, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    finally:
        alone.close()


def test_a_reader_stops_when_its_acl_is_deleted(of: ClientSettings) -> None:
    anna = AdminClient(of("anna"))
    given = acl(TOPIC, "private", "bob", READ)
    anna.create_acls([given], request_timeout=60)[given].result(timeout=120)
    assert written(of("anna"), "private") is None
    consumer = reader(of("bob"), "readers")
    try:
        consumer.assign([TopicPartition("private", 0, 0)])
        errors_of(consumer, b"x")
        wanted = AclBindingFilter(
            TOPIC, "private", ResourcePatternType.LITERAL, "User:bob", None, READ, AclPermissionType.ALLOW
        )
        anna.delete_acls([wanted], request_timeout=60)[wanted].result(timeout=120)
        errors_of(consumer, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    finally:
        consumer.close()


def test_tokens_of_others_need_an_acl(of: ClientSettings) -> None:
    """To have a token made for somebody else, or to see it, takes an ACL on the user or on the token."""
    port = int(of("anna")["bootstrap.servers"].rpartition(":")[2])
    for_bob = m.CreateDelegationTokenRequest(
        owner_principal_type="User", owner_principal_name="bob", max_lifetime_ms=-1
    )

    def ask(user: str, request: Message) -> Any:
        with RawSaslConnection(port) as connection:
            connection.log_in(user, f"{user}s word")
            return connection.ask(request, 3)

    def seen_by(user: str) -> list[str]:
        answer = ask(user, m.DescribeDelegationTokenRequest(owners=None))
        assert answer.error_code == 0
        return [token.token_id for token in answer.tokens]

    refused = ask("alice", for_bob)
    assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (refused.principal_name, refused.token_requester_principal_name) == ("bob", "alice")
    assert seen_by("bob") == [], "nothing was made"
    made = ask("anna", for_bob)
    assert made.error_code == 0
    assert wait_until(lambda: seen_by("bob") == [made.token_id], timeout_s=60)
    assert seen_by("alice") == []
    granted = m.CreateAclsRequest.AclCreation(
        resource_type=acls.ResourceType.DELEGATION_TOKEN,
        resource_name=made.token_id,
        principal="User:alice",
        host="*",
        operation=acls.Operation.DESCRIBE,
        permission_type=acls.Permission.ALLOW,
    )
    assert [each.error_code for each in ask("anna", m.CreateAclsRequest(creations=[granted])).results] == [0]
    assert seen_by("alice") == [made.token_id]


def test_a_live_group_is_rewound_by_a_principal_with_read_access(of: ClientSettings) -> None:
    """READ on the group and on all topics of the request; without it, members and offsets stay."""
    group, flights = "rewound", ottla_admin.TopicPartition("flights", 0)
    granted = [
        acl(GROUP, group, "bob", READ),
        acl(GROUP, group, "alice", AclOperation.DESCRIBE),
        acl(TOPIC, "flights", "alice", READ),
    ]
    anna = AdminClient(of("anna"))
    for made in anna.create_acls(granted, request_timeout=60).values():
        made.result(timeout=120)
    for _ in range(3):
        assert written(of("anna"), "flights") is None

    async def asked(user: str, ask: Callable[[ottla_admin.AdminClient], Any]) -> Any:
        settings = {name: text for name, text in of(user).items() if name != "log_level"}
        settings["sasl.jaas.config"] = f'{PLAIN_MODULE} required username="{user}" password="{user}s word";'
        del settings["sasl.username"], settings["sasl.password"]
        async with ottla_admin.AdminClient(settings) as admin:
            return await ask(admin)

    async def look(admin: ottla_admin.AdminClient) -> tuple[str, list[str], dict[Any, int]]:
        found = await admin.describe_group(group)
        return found.state, [m.member_id for m in found.members], await admin.group_offsets(group)

    def rewound_by(user: str, *more: ottla_admin.TopicPartition) -> dict[str, str]:
        """Errors by topic."""

        async def rewind(admin: ottla_admin.AdminClient) -> Results[ottla_admin.TopicPartition, None]:
            return await admin.alter_group_offsets(group, dict.fromkeys((flights, *more), 1), live=True)

        errors = asyncio.run(asked(user, rewind)).errors
        return {tp.topic: error.name for tp, error in errors.items()}

    consumer = reader(of("bob"), group)
    try:
        consumer.subscribe(["flights"])
        errors_of(consumer, b"x")
        consumer.commit(offsets=[TopicPartition("flights", 0, 3)], asynchronous=False)
        before = asyncio.run(asked("bob", look))
        assert (before[0], len(before[1]), before[2]) == ("Stable", 1, {flights: 3})

        assert rewound_by("alice") == {"flights": "GROUP_AUTHORIZATION_FAILED"}
        assert rewound_by("bob", ottla_admin.TopicPartition("private", 0)) == {
            "private": "TOPIC_AUTHORIZATION_FAILED",
            "flights": "OPERATION_NOT_ATTEMPTED",
        }
        assert asyncio.run(asked("bob", look)) == before

        assert rewound_by("bob") == {}
        _, members, offsets = asyncio.run(asked("bob", look))
        assert not set(members) & set(before[1])
        assert offsets == {flights: 1}
    finally:
        consumer.close()
