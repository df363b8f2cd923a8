"""The cluster (KIP-430, KIP-700), its features (KIP-584), and calls that only KRaft supports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from ottla.client import errors
from ottla.client.admin.fan_out import CONTROLLER
from ottla.client.admin.network import AdminNetwork, operations, outcome, raise_error
from ottla.client.admin_types import (
    ApiVersions,
    ClusterDescription,
    ClusterFeatures,
    FeatureLevels,
    FeatureUpdate,
    Node,
    Results,
)
from ottla.client.errors import ClientError
from ottla.protocol import messages as m
from ottla.protocol.api import ApiKey
from ottla.wire.connection import UnsupportedApi
from ottla.wire.handshake import SOFTWARE_VERSION

_UNKNOWN_EPOCH: Final = -1


async def describe_cluster(
    network: AdminNetwork, *, authorized_operations: bool = False
) -> ClusterDescription:
    """The live brokers and the controller. Raises ClusterUnreachable, KafkaError."""
    if not authorized_operations:
        return await network.describe_cluster()
    response = await network.any_broker(m.DescribeClusterRequest(include_cluster_authorized_operations=True))
    raise_error(response.error_code, response.error_message)
    return ClusterDescription(
        response.cluster_id,
        response.controller_id,
        tuple(Node(b.broker_id, b.host, b.port, b.rack) for b in response.brokers),
        operations(response.cluster_authorized_operations),
    )


async def describe_features(network: AdminNetwork) -> ClusterFeatures:
    """The finalized features of the cluster, and the supported ones of the broker that responds."""
    response = await network.any_broker(_api_versions_request())
    raise_error(response.error_code)
    epoch = response.finalized_features_epoch
    return ClusterFeatures(
        {
            row.name: FeatureLevels(row.min_version_level, row.max_version_level)
            for row in response.finalized_features
        },
        None if epoch == _UNKNOWN_EPOCH else epoch,
        {row.name: FeatureLevels(row.min_version, row.max_version) for row in response.supported_features},
    )


async def describe_api_versions(
    network: AdminNetwork, brokers: Iterable[int] | None = None
) -> Results[int, tuple[ApiVersions, ...]]:
    """The API versions that these brokers support; None: all live brokers."""

    async def ask(node: Node) -> tuple[ApiVersions, ...]:
        response = await network.send_to(node, _api_versions_request())
        raise_error(response.error_code)
        return tuple(
            [
                ApiVersions(
                    row.api_key,
                    _name(row.api_key),
                    row.min_version,
                    row.max_version,
                    await _version_used(network, node, row.api_key),
                )
                for row in sorted(response.api_keys, key=lambda row: int(row.api_key))
            ]
        )

    return await network.at_brokers(brokers, ask)


async def _version_used(network: AdminNetwork, node: Node, api_key: int) -> int | None:
    try:
        return await network.version_of(node, api_key)
    except UnsupportedApi:
        return None


async def update_features(
    network: AdminNetwork, updates: Mapping[str, FeatureUpdate], *, validate_only: bool = False
) -> Results[str, None]:
    """Upgrade or downgrade finalized features."""
    request = m.UpdateFeaturesRequest

    async def ask(node: Node, share: list[str]) -> dict[str, ClientError | None]:
        response = await network.send_to(
            node,
            request(
                timeout_ms=network.timeout_ms,
                validate_only=validate_only,
                feature_updates=[
                    request.FeatureUpdateKey(
                        feature=name,
                        max_version_level=updates[name].level,
                        upgrade_type=updates[name].upgrade_type,
                    )
                    for name in share
                ],
            ),
        )
        raise_error(response.error_code, response.error_message)
        return {
            row.feature: outcome(row.error_code, row.error_message, row.feature) for row in response.results
        }

    return await network.at_controller(updates, ask, CONTROLLER)


# --- calls that clusters with ZooKeeper do not support ---


async def describe_metadata_quorum(network: AdminNetwork) -> NoReturn:
    """Raises UnsupportedVersionError, as Kafka's own AdminClient does with a cluster on ZooKeeper."""
    _raise_kraft_only("DescribeQuorum")


async def unregister_broker(network: AdminNetwork, broker_id: int) -> NoReturn:
    """Raises UnsupportedVersionError: a broker's registration in ZooKeeper ends with its session."""
    _raise_kraft_only("UnregisterBroker")


async def list_client_metrics_resources(network: AdminNetwork) -> NoReturn:
    """Raises UnsupportedVersionError."""
    _raise_kraft_only("ListClientMetricsResources")


async def add_raft_voter(network: AdminNetwork, *_: Any) -> NoReturn:
    """Raises UnsupportedVersionError."""
    _raise_kraft_only("AddRaftVoter")


async def remove_raft_voter(network: AdminNetwork, *_: Any) -> NoReturn:
    """Raises UnsupportedVersionError."""
    _raise_kraft_only("RemoveRaftVoter")


def _api_versions_request() -> m.ApiVersionsRequest:
    return m.ApiVersionsRequest(client_software_name="ottla", client_software_version=SOFTWARE_VERSION)


def _name(api_key: int) -> str:
    try:
        return "".join(word.capitalize() for word in ApiKey(api_key).name.split("_"))
    except ValueError:
        return ""


def _raise_kraft_only(api: str) -> NoReturn:
    raise errors.UnsupportedVersionError(f"{api} is supported by KRaft clusters only, not with ZooKeeper")
