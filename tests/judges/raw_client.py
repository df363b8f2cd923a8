"""A client with raw requests from an address of its own, and a sample request of every API.

Called by the tests of authorization. On PLAINTEXT every client is User:ANONYMOUS, so ACLs tell the tested
client, on 127.0.0.2, from brokers and from the setup of the test by the address.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from typing import Any, Self
from uuid import UUID

from kazoo.client import KazooClient

from ottla.metadata import acl_nodes
from ottla.protocol import codec, frames
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import ApiVersionsRequest, ApiVersionsResponse, CreateAclsRequest
from ottla.protocol.records import Record, build_batch
from ottla.protocol.types import ZERO_UUID, Field, FieldType, Message, Struct, fields_of
from ottla.security.acls import (
    ANYBODY,
    CLUSTER_NAME,
    AclBinding,
    Entry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)

ADMIN_HOST, CLIENT_HOST = "127.0.0.1", "127.0.0.2"
SECRET, ABSENT = "secret", "absent"
CLOSED = "the connection was closed"
EVERYTHING = (
    ResourcePattern(ResourceType.TOPIC, "*"),
    ResourcePattern(ResourceType.GROUP, "*"),
    ResourcePattern(ResourceType.TRANSACTIONAL_ID, "*"),
    ResourcePattern(ResourceType.DELEGATION_TOKEN, "*"),
    ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME),
)
_OWN = frozenset(("throttle_time_ms", "cluster_id", "port", "host"))
_DENIALS = (29, 30, 31, 53, 65)
_DUMPED = re.compile(r"^Request .* is not authorized\.$", re.DOTALL)


def allow_from_admin_host(pattern: ResourcePattern) -> Entry:
    """An ACL entry that allows everything from 127.0.0.1."""
    return Entry(ANYBODY, ADMIN_HOST, Operation.ALL, Permission.ALLOW)


def creation(bindings: Iterable[tuple[ResourcePattern, Entry]]) -> CreateAclsRequest:
    return CreateAclsRequest(
        creations=[
            CreateAclsRequest.AclCreation(
                resource_type=pattern.resource_type,
                resource_name=pattern.name,
                resource_pattern_type=pattern.pattern_type,
                principal=entry.principal,
                host=entry.host,
                operation=entry.operation,
                permission_type=entry.permission,
            )
            for pattern, entry in bindings
        ]
    )


def allow(
    kind: ResourceType,
    name: str,
    *operations: Operation,
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> list[AclBinding]:
    """ACL bindings for the tested client."""
    return [
        AclBinding(
            ResourcePattern(kind, name, pattern), Entry("User:ANONYMOUS", CLIENT_HOST, each, permission)
        )
        for each in operations
    ]


def write_acls(connect: str, bindings: Iterable[AclBinding] = ()) -> None:
    """Writes ACLs into ZooKeeper before brokers start: everything from 127.0.0.1, and `bindings`."""
    entries = {pattern: {allow_from_admin_host(pattern)} for pattern in EVERYTHING}
    for pattern, entry in bindings:
        entries.setdefault(pattern, set()).add(entry)
    hosts, _, chroot = connect.partition("/")
    tree = KazooClient(hosts)
    tree.start()
    try:
        for pattern, found in entries.items():
            tree.create(f"/{chroot}{acl_nodes.path(pattern)}", acl_nodes.encode(found), makepath=True)
    finally:
        tree.stop()
        tree.close()


def served(port: int) -> dict[ApiKey, range]:
    """The versions of each API that the broker advertises."""
    with RawClient(port, ADMIN_HOST) as client:
        answer = client.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
    assert isinstance(answer, ApiVersionsResponse)
    known = set(ApiKey)
    return {
        ApiKey(each.api_key): range(each.min_version, each.max_version + 1)
        for each in answer.api_keys
        if each.api_key in known
    }


class RawClient:
    """A client that sends raw requests, from 127.0.0.2 by default."""

    def __init__(self, port: int, host: str = CLIENT_HOST) -> None:
        self._port = port
        self._host = host
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, request: Message, version: int) -> Message | str:
        """The response, or CLOSED."""
        if self._socket is None:
            self._socket = socket.create_connection(
                ("127.0.0.1", self._port), timeout=120, source_address=(self._host, 0)
            )
        frame = b""
        try:
            self._socket.sendall(frames.encode_request(request, version, 7, "stranger"))
            with self._socket.makefile("rb") as answers:
                size = answers.read(4)
                frame = answers.read(int.from_bytes(size, "big")) if size else b""
        except ConnectionError:
            pass
        if not frame:
            self._socket.close()
            self._socket = None
            return CLOSED
        body = frames.response_body_offset(request.api_key, version, frame)
        return codec.decode(frames.RESPONSES[request.api_key], version, frame, body)


def comparable(value: object) -> Any:
    """A response without throttle times, cluster names and topic settings that only Ottla has.

    Lists are sorted; error messages remain if they are about authorization.
    """
    if isinstance(value, Struct):
        slots: tuple[str, ...] = value.__slots__
        shown = {name: comparable(getattr(value, name)) for name in slots if name not in _OWN}
        if shown.get("error_code") not in _DENIALS:
            shown.pop("error_message", None)
        return shown
    if isinstance(value, list):
        items = (item for item in value if not str(getattr(item, "name", "")).startswith("ottla."))
        return sorted((comparable(item) for item in items), key=repr)
    if isinstance(value, UUID):
        return value if value == ZERO_UUID else "an id"
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, str) and _DUMPED.match(value):
        return "Request … is not authorized."
    return value


# --- samples -------------------------------------------------------------------------------------------

BATCH = build_batch([Record(0, 1_700_000_000_000, None, b"v", [])])

_BY_NAME: dict[str, object] = {
    "group_id": "g",
    "groups": ["g"],
    "groups_names": ["g"],
    "transactional_id": "tx",
    "transactional_ids": ["tx"],
    "v3_and_below_transactional_id": "tx",
    "partition_index": 0,
    "replica_id": -1,
    "session_epoch": -1,
    "election_type": 0,
    "resource_type": 2,
    "resource_type_filter": 2,
    "resource_pattern_type": 3,
    "pattern_type_filter": 3,
    "operation": 3,
    "permission_type": 3,
    "principal": "User:eve",
    "host": "*",
    "max_num_offsets": 1,
    "acks": 1,
    "timeout_ms": 1000,
    "protocol_type": "consumer",
    "session_timeout_ms": 10000,
    "rebalance_timeout_ms": 10000,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "configs": [],
    "topic_id": None,
}


def sample(cls: type[Struct], version: int, name: str) -> Any:
    """A request about the topic `name`, or about whatever the API is about, with one element in each
    array."""
    filled = {
        item.name: _value(item.name, item.type, item, version, name)
        for item in fields_of(cls)
        if version in item.versions and _BY_NAME.get(item.name, 0) is not None
    }
    return cls(**filled)


def _value(field: str, kind: FieldType, item: Field | None, version: int, name: str) -> object:
    if field in _BY_NAME and (kind.wire != "array" or not kind.element or kind.element.wire == "string"):
        return _BY_NAME[field]
    if field == "configs":
        return []
    if kind.wire == "array":
        assert kind.element is not None
        if kind.element.wire == "string" and field in ("state_filters", "states_filter", "types_filter"):
            return []
        return [_value("", kind.element, None, version, name)]
    if kind.wire == "struct":
        assert kind.struct is not None
        return sample(kind.struct, version, name)
    if kind.wire == "records":
        return BATCH
    if kind.wire in ("string", "bytes"):
        return name if kind.wire == "string" else b"x"
    return item.default if item is not None else {"bool": False}.get(kind.wire, 0)


def requests(key: ApiKey, version: int) -> list[Message]:
    """Sample requests of an API: about a topic that exists, and about one that does not."""
    cls = frames.REQUESTS[key]
    return [sample(cls, version, name) for name in (SECRET, ABSENT)]


def compared(kafka_port: int, our_port: int) -> tuple[int, list[str]]:
    """Every API in every version, sent to both brokers: how many requests, and which answers differ."""
    differences: list[str] = []
    asked = 0
    of_kafka = served(kafka_port)
    with RawClient(kafka_port) as kafka, RawClient(our_port) as ours:
        for key, versions in served(our_port).items():
            for version in versions:
                if key == ApiKey.API_VERSIONS or version not in of_kafka.get(key, ()):
                    continue
                for request in requests(key, version):
                    asked += 1
                    expected = comparable(kafka.ask(request, version))
                    answer = comparable(ours.ask(request, version))
                    if answer != expected:
                        differences.append(
                            f"{key.name} v{version}: {request}\n  Apache Kafka: {expected}\n  Ottla: {answer}"
                        )
    return asked, differences
