"""Authorization checks: every API has one, or needs none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.metadata.cache import MetadataCache
from ottla.metadata.config import BrokerConfig
from ottla.protocol.api import API_TABLE, ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import OffsetCommitRequest, OffsetCommitResponse
from ottla.protocol.types import Message
from ottla.security.acls import Entry, Operation, PatternType, Permission, ResourcePattern, ResourceType
from ottla.security.authorizer import AclAuthorizer
from ottla.security.principals import Principal
from ottla.server.authorization.auth_helper import AuthHelper, java_address
from ottla.server.authorization.checks_by_api import WITHOUT_CHECK, checks_by_api
from ottla.server.authorization.groups import offset_commit
from ottla.server.handlers.groups.handler import GroupsHandler

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ALL_READ = ((GROUP, "g", Operation.READ), (TOPIC, "t", Operation.READ), (TOPIC, "u", Operation.READ))
Grant = tuple[ResourceType, str, Operation]


def test_every_api_has_a_check_or_needs_none() -> None:
    checks = checks_by_api(BrokerConfig.from_properties({}), MetadataCache("PLAINTEXT"), lambda: True)
    assert not checks.keys() & WITHOUT_CHECK
    assert checks.keys() | WITHOUT_CHECK >= set(API_TABLE)


@pytest.mark.parametrize(
    ("host", "java"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_addresses_are_written_as_java_does(host: str, java: str) -> None:
    assert java_address(host) == java


# -- a rewind: OffsetCommit that removes the members ------------------------------------------------------


def commit_to(*topics: str, rewinds: bool = True) -> OffsetCommitRequest:
    """Two partitions of each topic."""
    row, partition = (
        OffsetCommitRequest.OffsetCommitRequestTopic,
        OffsetCommitRequest.OffsetCommitRequestPartition,
    )
    return OffsetCommitRequest(
        group_id="g",
        remove_members=rewinds,
        topics=[
            row(name=name, partitions=[partition(partition_index=n, committed_offset=7) for n in range(2)])
            for name in topics
        ],
    )


def check_result(message: OffsetCommitRequest, *granted: Grant) -> Any:
    """Of the check of alice's request: a response, a change to the handler's response, or None."""
    authorizer = AclAuthorizer()
    for kind, name, operation in granted:
        pattern = ResourcePattern(kind, name, PatternType.LITERAL)
        authorizer.update(pattern, frozenset({Entry("User:alice", "*", operation, Permission.ALLOW)}))
    unused: Any = None
    routes = GroupsHandler(unused, unused).routes()
    request: Any = SimpleNamespace(
        principal=Principal("User", "alice"),
        connection=SimpleNamespace(peer_host="10.0.0.1"),
        route=next(route for route in routes if route.api_key == ApiKey.OFFSET_COMMIT),
        version=9,
    )
    return offset_commit(AuthHelper(authorizer, request), message)


def errors_in(response: OffsetCommitResponse) -> dict[tuple[str, int], ErrorCode]:
    return {
        (topic.name, row.partition_index): ErrorCode(row.error_code)
        for topic in response.topics
        for row in topic.partitions
    }


def both(name: str, code: ErrorCode) -> dict[tuple[str, int], ErrorCode]:
    return {(name, 0): code, (name, 1): code}


def test_a_rewind_needs_read_on_the_group_and_on_its_topics_and_nothing_else() -> None:
    message = commit_to("t", "u")
    assert check_result(message, *ALL_READ) is None
    assert message == commit_to("t", "u"), "the handler gets it as it came"


@pytest.mark.parametrize("operation", [None, Operation.DESCRIBE, Operation.DELETE])
def test_a_rewind_without_read_on_the_group_is_refused_whole(operation: Operation | None) -> None:
    granted: list[Grant] = [] if operation is None else [(GROUP, "g", operation)]
    with pytest.raises(KafkaError) as refused:
        check_result(commit_to("t", "u"), *ALL_READ[1:], *granted)
    assert refused.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.mark.parametrize("operation", [None, Operation.DESCRIBE, Operation.WRITE])
def test_a_rewind_without_read_on_one_topic_reaches_no_handler(operation: Operation | None) -> None:
    granted: list[Grant] = [] if operation is None else [(TOPIC, "u", operation)]
    answer = check_result(commit_to("t", "u"), *ALL_READ[:2], *granted)
    assert isinstance(answer, Message), "an answer at once"
    denied, left = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert errors_in(answer) == both("u", denied) | both("t", left)


def test_a_rewind_without_read_on_any_topic_reaches_no_handler() -> None:
    answer = check_result(commit_to("t", "u"), *ALL_READ[:1])
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert isinstance(answer, Message), "an answer at once"
    assert errors_in(answer) == both("u", denied) | both("t", denied)


def test_a_plain_commit_without_read_on_one_topic_is_done_for_the_others() -> None:
    message = commit_to("t", "u", rewinds=False)
    amend = check_result(message, *ALL_READ[:2])
    assert message == commit_to("t", rewinds=False)
    response = OffsetCommitResponse()
    amend(response)
    assert errors_in(response) == both("u", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
