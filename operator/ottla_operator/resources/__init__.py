"""The custom resources of `ottla.dev/v1alpha1` as pydantic models; the CRDs are generated from them."""

from ottla_operator.resources.cluster import BrokerCluster, BrokerClusterSpec
from ottla_operator.resources.cluster_status import BrokerClusterStatus
from ottla_operator.resources.common import API_VERSION, Metadata, Problem
from ottla_operator.resources.connect import (
    ConnectCluster,
    ConnectClusterSpec,
    ConnectClusterStatus,
    Connector,
    ConnectorSpec,
    ConnectorStatus,
)
from ottla_operator.resources.group import ConsumerGroup, ConsumerGroupSpec, ConsumerGroupStatus
from ottla_operator.resources.pipeline import Pipeline, PipelineSpec, PipelineStatus
from ottla_operator.resources.pool import BrokerPool, BrokerPoolSpec, BrokerPoolStatus
from ottla_operator.resources.quota import Quota, QuotaSpec, QuotaStatus
from ottla_operator.resources.topic import Topic, TopicSpec, TopicStatus
from ottla_operator.resources.user import User, UserSpec, UserStatus

AnyResource = (
    BrokerCluster | BrokerPool | Topic | Quota | ConsumerGroup | User | Pipeline | ConnectCluster | Connector
)

KINDS: dict[
    str,
    type[BrokerCluster]
    | type[BrokerPool]
    | type[Topic]
    | type[Quota]
    | type[ConsumerGroup]
    | type[User]
    | type[Pipeline]
    | type[ConnectCluster]
    | type[Connector],
] = {
    "BrokerCluster": BrokerCluster,
    "BrokerPool": BrokerPool,
    "Topic": Topic,
    "Quota": Quota,
    "ConsumerGroup": ConsumerGroup,
    "User": User,
    "Pipeline": Pipeline,
    "ConnectCluster": ConnectCluster,
    "Connector": Connector,
}

__all__ = [
    "API_VERSION",
    "KINDS",
    "AnyResource",
    "BrokerCluster",
    "BrokerClusterSpec",
    "BrokerClusterStatus",
    "BrokerPool",
    "BrokerPoolSpec",
    "BrokerPoolStatus",
    "ConnectCluster",
    "ConnectClusterSpec",
    "ConnectClusterStatus",
    "Connector",
    "ConnectorSpec",
    "ConnectorStatus",
    "ConsumerGroup",
    "ConsumerGroupSpec",
    "ConsumerGroupStatus",
    "Metadata",
    "Pipeline",
    "PipelineSpec",
    "PipelineStatus",
    "Problem",
    "Quota",
    "QuotaSpec",
    "QuotaStatus",
    "Topic",
    "TopicSpec",
    "TopicStatus",
    "User",
    "UserSpec",
    "UserStatus",
]
