"""Kafka's ZooKeeper nodes (ZkData): paths, and the JSON content.

All accesses to the store use these functions, so that nodes are compatible with Kafka's brokers and tools.
Pure: `*_path` returns a node's path, `encode_*` and `decode_*` convert its content. Decoders accept the
formats of older versions, and ignore unknown fields, as Kafka does.

Invariant: Kafka 3.9 reads the results of `encode_*` (checked against nodes that Apache Kafka 3.9.1 wrote).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

CONSUMERS = "/consumers"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CLUSTER_ID = "/cluster/id"
CONFIG = "/config"
CONFIG_TOPICS = "/config/topics"
CONFIG_BROKERS = "/config/brokers"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = CONFIG_CHANGES + "/config_change_"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_ELECTION = "/admin/preferred_replica_election"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
ISR_CHANGES = "/isr_change_notification"
LOG_DIR_EVENTS = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX = LOG_DIR_EVENTS + "/log_dir_event_"
FEATURE = "/feature"

PERSISTENT_PATHS = (
    CONSUMERS,
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    "/brokers/seqid",
    ISR_CHANGES,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS,
    CONFIG_TOPICS,
    "/config/clients",
    "/config/users",
    CONFIG_BROKERS,
    "/config/ips",
)
"""Persistent nodes that every broker creates at its start if they are missing (ZkData.PersistentZkPaths)."""

NO_LEADER = -1
DEFAULT_ENTITY = "<default>"


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class InvalidNode(ValueError):
    """A node has content that no version of Kafka writes; the message has its path."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of one listener of a broker; `security_protocol` is PLAINTEXT, SSL, …"""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A registered broker. `epoch` is the czxid of its node (KIP-380), not part of its content."""

    id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    timestamp_ms: int = 0
    epoch: int = -1

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((e for e in self.endpoints if e.listener == listener), None)


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """`/brokers/topics/<t>`: the replicas of each partition, and ongoing reassignments (KIP-455)."""

    partitions: Mapping[int, tuple[int, ...]]
    adding: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    removing: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class PartitionState:
    """`/brokers/topics/<t>/partitions/<p>/state`. The node's version is the partition epoch."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    leader_recovery_state: int = 0


INTERNED_MAX = 4096


def intern_brokers(brokers: Iterable[int]) -> tuple[int, ...]:
    """The same tuple object for the same brokers in the same order, for values that are kept.

    A cluster has few different sets of replicas, and many partitions; each tuple of three costs 64 bytes.
    """
    return _interned(tuple(brokers))


@lru_cache(INTERNED_MAX)
def _interned(brokers: tuple[int, ...]) -> tuple[int, ...]:
    return brokers


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}"


def state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def consumer_offset_path(group: str, topic: str, partition: int) -> str:
    """The offset node of a consumer of 0.8."""
    return f"{CONSUMERS}/{group}/offsets/{topic}/{partition}"


def topic_config_path(topic: str) -> str:
    return f"{CONFIG_TOPICS}/{topic}"


def config_path(entity_type: str, entity: str) -> str:
    """`entity_type` is topics, brokers, clients, users or ips."""
    return f"{CONFIG}/{entity_type}/{entity}"


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _load(data: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise InvalidNode(f"{what} is not JSON: {data[:100]!r}") from error
    if not isinstance(value, dict):
        raise InvalidNode(f"{what} is not a JSON object: {data[:100]!r}")
    return value


def encode_uuid(value: UUID) -> str:
    """Kafka's text form of an id: URL-safe base64 of the 16 bytes, without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> UUID:
    try:
        return UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except ValueError as error:
        raise InvalidNode(f"not an id in Kafka's form: {text!r}") from error


def encode_broker(broker: BrokerInfo) -> bytes:
    """Version 5. `host` and `port`, for clients of 0.8, are those of a PLAINTEXT endpoint if there is one."""
    plaintext = next((e for e in broker.endpoints if e.security_protocol == "PLAINTEXT"), None)
    value: dict[str, Any] = {
        "features": {},
        "listener_security_protocol_map": {e.listener: e.security_protocol for e in broker.endpoints},
        "endpoints": [f"{e.listener}://{_bracketed(e.host)}:{e.port}" for e in broker.endpoints],
        "jmx_port": -1,
        "port": plaintext.port if plaintext else -1,
        "host": plaintext.host if plaintext else None,
        "version": 5,
        "timestamp": str(broker.timestamp_ms),
    }
    if broker.rack is not None:
        value["rack"] = broker.rack
    return _dump(value)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def decode_broker(broker_id: int, data: bytes, epoch: int) -> BrokerInfo:
    value = _load(data, broker_path(broker_id))
    try:
        version = int(value["version"])
        if version == 1:
            endpoints = [Endpoint("PLAINTEXT", value["host"], int(value["port"]))]
        else:
            protocols = value.get("listener_security_protocol_map") or {}
            endpoints = [_decode_endpoint(text, protocols) for text in value["endpoints"]]
        return BrokerInfo(
            broker_id, tuple(endpoints), value.get("rack"), int(value.get("timestamp") or 0), epoch
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidNode(f"{broker_path(broker_id)} is not a registration: {data[:200]!r}") from error


def _decode_endpoint(text: str, protocols: Mapping[str, str]) -> Endpoint:
    listener, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    return Endpoint(listener, host.strip("[]"), int(port), protocols.get(listener, listener))


def encode_topic(assignment: TopicAssignment) -> bytes:
    """Version 3. `adding` and `removing` have only the partitions that are being reassigned."""

    def keyed(partitions: Mapping[int, tuple[int, ...]]) -> dict[str, list[int]]:
        return {str(p): list(replicas) for p, replicas in sorted(partitions.items())}

    value: dict[str, Any] = {
        "partitions": keyed(assignment.partitions),
        "adding_replicas": keyed({p: r for p, r in assignment.adding.items() if r}),
        "removing_replicas": keyed({p: r for p, r in assignment.removing.items() if r}),
        "version": 3,
    }
    if assignment.topic_id is not None:
        value["topic_id"] = encode_uuid(assignment.topic_id)
    return _dump(value)


def decode_topic(topic: str, data: bytes) -> TopicAssignment:
    value = _load(data, topic_path(topic))

    def keyed(name: str) -> dict[int, tuple[int, ...]]:
        return {
            int(p): intern_brokers(int(r) for r in replicas)
            for p, replicas in (value.get(name) or {}).items()
        }

    try:
        topic_id = value.get("topic_id")
        return TopicAssignment(
            keyed("partitions"),
            keyed("adding_replicas"),
            keyed("removing_replicas"),
            decode_uuid(topic_id) if topic_id else None,
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidNode(f"{topic_path(topic)} is not an assignment: {data[:200]!r}") from error


def encode_partition_state(state: PartitionState) -> bytes:
    value: dict[str, Any] = {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "version": 1,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }
    # Kafka's brokers in ZooKeeper mode never write it if it is 0 (recovered).
    if state.leader_recovery_state:
        value["leader_recovery_state"] = state.leader_recovery_state
    return _dump(value)


def decode_partition_state(topic: str, partition: int, data: bytes) -> PartitionState:
    value = _load(data, state_path(topic, partition))
    try:
        return PartitionState(
            int(value["leader"]),
            int(value["leader_epoch"]),
            intern_brokers(int(r) for r in value["isr"]),
            int(value["controller_epoch"]),
            int(value.get("leader_recovery_state", 0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidNode(
            f"{state_path(topic, partition)} is not a partition's state: {data[:200]!r}"
        ) from error


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return _dump(
        {"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1}
    )


def decode_controller(data: bytes) -> int:
    """The id of the broker that is the controller."""
    value = _load(data, CONTROLLER)
    try:
        return int(value["brokerid"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidNode(f"{CONTROLLER} has no broker id: {data[:200]!r}") from error


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_controller_epoch(data: bytes) -> int:
    return int(data)


def encode_cluster_id(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    value = _load(data, CLUSTER_ID)
    if not isinstance(value.get("id"), str):
        raise InvalidNode(f"{CLUSTER_ID} has no id: {data[:200]!r}")
    return str(value["id"])


def encode_config(config: Mapping[str, str]) -> bytes:
    return _dump({"version": 1, "config": dict(config)})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    if not data:
        return {}
    value = _load(data, path)
    config = value.get("config")
    if not isinstance(config, dict):
        raise InvalidNode(f"{path} has no config: {data[:200]!r}")
    return {str(name): str(setting) for name, setting in config.items()}


def encode_config_change(entity_path: str) -> bytes:
    """`entity_path` is relative to /config, for instance `topics/flights`."""
    return _dump({"version": 2, "entity_path": entity_path})


def decode_config_change(data: bytes) -> str:
    """The entity path of a change notification; version 1 has type and name separately. The path is always
    below /config."""
    value = _load(data, CONFIG_CHANGES)
    try:
        if int(value["version"]) == 1:
            path = f"{value['entity_type']}/{value['entity_name']}"
        else:
            path = str(value["entity_path"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidNode(f"not a config change: {data[:200]!r}") from error
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidNode(f"a config change without an entity: {data[:200]!r}")
    return path


def encode_log_dir_event(broker_id: int) -> bytes:
    """The notification of a broker with a failed log directory (KIP-112)."""
    return _dump({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(data: bytes) -> int:
    """The broker with the failed log directory."""
    value = _load(data, LOG_DIR_EVENTS)
    try:
        return int(value["broker"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidNode(f"not a log directory's event: {data[:200]!r}") from error


def encode_producer_id_block(broker_id: int, first: int, last: int) -> bytes:
    return _dump({"version": 1, "broker": broker_id, "block_start": str(first), "block_end": str(last)})


def decode_producer_id_block(data: bytes) -> tuple[int, int, int]:
    """(broker id, first id, last id) of the last allocated block."""
    value = _load(data, PRODUCER_ID_BLOCK)
    try:
        return int(value["broker"]), int(value["block_start"]), int(value["block_end"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidNode(f"{PRODUCER_ID_BLOCK} is not a block of ids: {data[:200]!r}") from error


def encode_reassignment(moves: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    """/admin/reassign_partitions, written by tools before KIP-455."""
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "replicas": list(replicas)}
        for tp, replicas in moves.items()
    ]
    return _dump({"version": 1, "partitions": rows})


def decode_reassignment(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    value = _load(data, REASSIGN_PARTITIONS)
    try:
        return {
            TopicPartition(str(row["topic"]), int(row["partition"])): tuple(int(r) for r in row["replicas"])
            for row in value["partitions"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidNode(f"{REASSIGN_PARTITIONS} is invalid: {data[:200]!r}") from error


def decode_preferred_election(data: bytes) -> list[TopicPartition]:
    """/admin/preferred_replica_election, written by tools before KIP-460."""
    value = _load(data, PREFERRED_ELECTION)
    try:
        return [TopicPartition(str(row["topic"]), int(row["partition"])) for row in value["partitions"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidNode(f"{PREFERRED_ELECTION} is invalid: {data[:200]!r}") from error


def encode_feature(version: int = 2, features: Mapping[str, int] | None = None) -> bytes:
    """The feature node, enabled. Version 1 is the format before 3.3, here always without features."""
    levels = {name: {"max_version_level": level} for name, level in (features or {}).items()}
    return _dump({"features": levels, "version": version, "status": 1})


def decode_features(data: bytes) -> dict[str, int]:
    """The finalized level of each feature. Raises InvalidNode."""
    try:
        node = json.loads(data)
        return {str(name): int(range_["max_version_level"]) for name, range_ in node["features"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidNode(f"{FEATURE} is invalid: {data[:200]!r}") from error


def empty_feature_version(data: bytes) -> int | None:
    """The version of a feature node without finalized features, 0 if it is disabled (Kafka below 2.7); None
    if it has features or is invalid."""
    try:
        node = json.loads(data)
        if node["features"]:
            return None
        return int(node["version"]) if node["status"] == 1 else 0
    except (ValueError, KeyError, TypeError):
        return None
