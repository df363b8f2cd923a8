"""Observes a cluster's brokers once, as JSON: topics, settings, quotas, sizes, groups and connections.

`kubectl ottla plan` runs this file in a broker's pod, by its text, since only pods reach the brokers and the
image may be older than the plugin: it stands on `KafkaAdmin` and the admin client alone. `ottla up --plan`
calls `probe`. It changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ottla.metadata.config import BrokerConfig, read_properties
from ottla.security.clients import ClientSecurity
from ottla_operator.planning import observed
from ottla_operator.planning.observed import KafkaState, PartitionKey, PartitionState, TopicState
from ottla_operator.platform.interfaces import StepFailed
from ottla_operator.platform.kafka import KafkaAdmin, new_admin_client

Object = dict[str, Any]

_TIMEOUT_S = 8.0
_SECURITY = ("security.protocol", "sasl.", "ssl.")
_CONNECTIONS = re.compile(
    r'^kafka_server_socket_server_metrics_connection_count\{listener="([^"]+)".*\} (\S+)$', re.MULTILINE
)


async def probe(
    addresses: Sequence[tuple[str, int]], properties: Mapping[str, str], metrics: Mapping[str, str]
) -> Object:
    """`metrics`: host:port of /metrics by broker."""
    kafka = KafkaAdmin(lambda: properties)
    try:
        state = await kafka.observe(addresses, {})
        if not state.has_controller:
            return {"problem": state.problem or "the cluster has no elected controller"}
        try:
            sizes = (await kafka.log_dirs()).sizes
        except StepFailed as failure:
            sizes, problem = {}, failure.message
        else:
            problem = ""
    finally:
        await kafka.close()
    return {
        "clusterId": state.cluster_id,
        "controller": state.controller_id,
        "brokers": sorted(state.brokers),
        "topics": [_topic(topic) for topic in state.topics.values()],
        "settings": dict(state.settings),
        "quotas": [[*entity, limits] for entity, limits in (state.quotas or {}).items()],
        "sizes": [[*key, size] for key, size in sizes.items()],
        "sizesProblem": problem,
        "logDirs": await _log_dirs(addresses, properties),
        "groups": await _groups(addresses, properties),
        "connections": await asyncio.to_thread(_connections, metrics),
    }


def _topic(topic: TopicState) -> Object:
    return {
        "name": topic.name,
        "id": topic.topic_id,
        "config": dict(topic.config),
        "minIsr": topic.min_isr,
        "internal": topic.internal,
        "partitions": [
            [each.partition, each.leader, each.replicas, each.isr, each.adding, each.removing]
            for each in topic.partitions
        ],
    }


async def _log_dirs(
    addresses: Sequence[tuple[str, int]], properties: Mapping[str, str]
) -> list[list[object]]:
    """Broker, path and replicas of the log directories of brokers with several."""
    admin = new_admin_client(addresses, ClientSecurity.of_properties(properties) if properties else None)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            described = await admin.describe_log_dirs()
    except Exception as error:
        # Any error of the client: a plan that has to guess is better than none.
        sys.stderr.write(f"log directories could not be described: {error!r}\n")
        return []
    finally:
        await admin.close()
    return [
        [broker, each.path, [[*key, replica.size] for key, replica in each.replicas.items()]]
        for broker, directories in described.items()
        for each in directories
        if len(directories) > 1
    ]


async def _groups(addresses: Sequence[tuple[str, int]], properties: Mapping[str, str]) -> list[Object]:
    """The groups that could be described, with their members."""
    security = ClientSecurity.of_properties(properties) if properties else None
    admin = new_admin_client(addresses, security)
    found: list[Object] = []
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            listed = await admin.list_groups()
            names = sorted({group.group_id for groups in listed.values() for group in groups})
            described = await admin.describe_groups(names) if names else {}
            for name, group in described.items():
                found.append(
                    {
                        "group": name,
                        "state": group.state,
                        "coordinator": group.coordinator.id,
                        "members": [f"{each.client_id}@{each.host.lstrip('/')}" for each in group.members],
                        "topics": sorted({tp.topic for each in group.members for tp in each.partitions}),
                    }
                )
    except Exception as error:
        # Any error of the client: a plan without groups is better than none.
        sys.stderr.write(f"groups could not be described: {error!r}\n")
    finally:
        await admin.close()
    return found


def _connections(metrics: Mapping[str, str]) -> Object:
    """The number of connections by listener, of each broker whose metrics can be read."""
    found: Object = {}
    for broker, address in metrics.items():
        try:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=3) as response:
                text = response.read().decode()
        except (OSError, ValueError):
            continue
        found[broker] = {listener: int(float(count)) for listener, count in _CONNECTIONS.findall(text)}
    return found


# ---- reading the answer


def state_of(answer: Object) -> KafkaState:
    """The cluster's state in an answer of `probe`."""
    if "problem" in answer:
        return KafkaState(problem=answer["problem"])
    topics = {
        topic["name"]: TopicState(
            topic["name"],
            topic["id"],
            tuple(_partitions(topic)),
            topic["config"],
            topic["minIsr"],
            topic["internal"],
        )
        for topic in answer["topics"]
    }
    return KafkaState(
        True,
        answer["clusterId"],
        answer["controller"],
        frozenset(answer["brokers"]),
        topics,
        settings=answer["settings"],
        quotas={(user, client): limits for user, client, limits in answer["quotas"]},
        log_dirs=_read_log_dirs(answer.get("logDirs", ())),
    )


def _read_log_dirs(
    answer: Sequence[tuple[int, str, Sequence[tuple[str, int, int]]]],
) -> dict[int, tuple[observed.LogDir, ...]]:
    # Not imported by name: in the pod, an older image may not have this class.
    found: dict[int, tuple[observed.LogDir, ...]] = {}
    for broker, path, replicas in answer:
        sizes = {(topic, number): size for topic, number, size in replicas}
        found[broker] = (*found.get(broker, ()), observed.LogDir(path, sizes))
    return found


def _partitions(topic: Object) -> Iterator[PartitionState]:
    for number, leader, *lists in topic["partitions"]:
        yield PartitionState(topic["name"], number, leader, *(tuple(each) for each in lists))


def sizes_of(answer: Object) -> dict[PartitionKey, int]:
    """The bytes of each partition's largest replica."""
    return {(topic, number): size for topic, number, size in answer.get("sizes", ())}


# ---- by the settings of a broker


def main(arguments: Sequence[str]) -> None:
    """`probe.py SERVER.PROPERTIES METRICS`"""
    answer = probe_by(Path(arguments[0]), json.loads(arguments[1]))
    sys.stdout.write(f"{json.dumps(answer)}\n")


def probe_by(file: Path, metrics: Mapping[str, str]) -> Object:
    """The answer of `probe`, with the address and the security of this broker's own connections."""
    settings = read_properties(file)
    config = BrokerConfig.from_properties(settings)
    name = config.inter_broker_listener
    at = next(listener for listener in config.advertised_listeners if listener.name == name)
    prefix = f"listener.name.{name.lower()}."
    own = {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}
    mechanism = settings.get("sasl.mechanism.inter.broker.protocol", "GSSAPI")
    login = own.get(f"{mechanism.lower()}.sasl.jaas.config")
    properties = {
        **settings,
        **own,
        "security.protocol": at.protocol,
        "sasl.mechanism": mechanism,
        **({"sasl.jaas.config": login} if login is not None else {}),
    }
    secured = {key: value for key, value in properties.items() if key.startswith(_SECURITY)}
    return asyncio.run(probe([(at.host, at.port)], secured, metrics))


if __name__ == "__main__":
    main(sys.argv[1:])
