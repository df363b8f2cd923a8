"""inter.broker.protocol.version: its names, and its effects on the controller and connections."""

from __future__ import annotations

import json

import pytest

from ottla.metadata import znodes
from ottla.metadata.config import BrokerConfig, ConfigError
from ottla.metadata.inter_broker import LATEST, VERSIONS, InterBrokerVersion
from ottla.protocol import codec
from ottla.protocol.messages import (
    ApiVersionsRequest,
    FetchRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    UpdateMetadataRequest,
)
from ottla.protocol.types import ZERO_UUID
from tests.worlds.controller_harness import Cluster, run

OLDEST = InterBrokerVersion("2.8-IV0")
PLACE = {"broker.id": "1", "zookeeper.connect": "localhost:1"}


@pytest.mark.parametrize(
    ("text", "name"),
    [("2.8", "2.8-IV1"), ("3.5.2", "3.5-IV2"), ("3.6-IV1", "3.6-IV1"), ("3.9", "3.9-IV0")],
)
def test_a_release_means_its_last_version(text: str, name: str) -> None:
    config = BrokerConfig.from_properties({**PLACE, "inter.broker.protocol.version": text})
    assert config.inter_broker_version.name == name


@pytest.mark.parametrize("text", ["2.7", "2.9", "4.0", "3.9-IV1", "3", "latest"])
def test_unsupported_versions_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"inter.broker.protocol.version"):
        BrokerConfig.from_properties({**PLACE, "inter.broker.protocol.version": text})


@pytest.mark.parametrize(
    ("spoken", "stored", "is_fine"),
    [
        ("2.8", "0.10.2-IV0", False),
        ("2.8", "0.9.0.1", False),
        ("3.0-IV0", "0.8.2", False),
        ("2.8", "0.11.0", True),
        ("2.8", "2.8-IV1", True),
        ("3.0", "0.10.2", True),
        ("3.9", "0.8.2", True),
    ],
)
def test_a_message_format_that_would_take_effect_is_refused(spoken: str, stored: str, is_fine: bool) -> None:
    """From inter.broker.protocol.version 3.0 on Kafka ignores the setting (KIP-724)."""
    given = {"inter.broker.protocol.version": spoken, "log.message.format.version": stored}
    if is_fine:
        BrokerConfig.from_properties({**PLACE, **given})
        return
    with pytest.raises(ConfigError, match=rf"log\.message\.format\.version={stored}: .*0\.11\.0 or later"):
        BrokerConfig.from_properties({**PLACE, **given})


def test_the_latest_limits_nothing_and_older_ones_allow_less() -> None:
    assert VERSIONS[-1] == LATEST.name == BrokerConfig.from_properties(PLACE).inter_broker_version.name
    for api_key, version in LATEST.limits().items():
        request = {r.api_key: r for r in (FetchRequest, LeaderAndIsrRequest, UpdateMetadataRequest)}.get(
            api_key
        )
        assert request is None or version == request.max_version
    before = OLDEST.limits()
    for name in VERSIONS:
        limits = InterBrokerVersion(name).limits()
        assert all(limits[api_key] >= before[api_key] for api_key in before)
        before = limits
    assert OLDEST.highest_of(ApiVersionsRequest.api_key) is None


@pytest.mark.parametrize("name", VERSIONS)
def test_the_controllers_requests_can_be_encoded_in_every_version(name: str) -> None:
    version = InterBrokerVersion(name)

    async def scenario() -> None:
        async with Cluster(3, inter_broker_protocol_version=name) as cluster:
            await cluster.create(
                "t", assignments={0: [1, 2]}, configs={"unclean.leader.election.enable": "true"}
            )
            await cluster.crash(2)
            await cluster.until(lambda: (s := cluster.state("t")) is not None and s.isr == (1,))
            await cluster.start(2)
            await cluster.wait_until_quiet()
            await cluster.crash(1)
            await cluster.until(lambda: cluster.leader("t") == 2, "an unclean election")
            elected = cluster.state("t")
            assert elected is not None
            assert elected.leader_recovery_state == (1 if version.has_leader_recovery else 0)
            said = cluster.nodes[2].fake
            await said.until(lambda broker: any(s.leader == 2 for s in broker.partition_states("t")))
            for message in said.received:
                codec.encode(message, version.highest_of(message.api_key) or 0)
            feature = cluster.data(znodes.FEATURE)
            assert feature is not None
            assert json.loads(feature)["version"] == version.feature_node

    run(scenario)


def test_a_failed_disk_is_reported_by_topic_names_too() -> None:
    async def scenario() -> None:
        async with Cluster(2, inter_broker_protocol_version="2.8-IV0") as cluster:
            await cluster.create("t", assignments={0: [0, 1]})
            active = cluster.controller._active
            assert active is not None
            failed = LeaderAndIsrResponse.LeaderAndIsrPartitionError(
                topic_name="t", partition_index=0, error_code=56
            )
            broker = active.context.brokers[0]
            request = LeaderAndIsrRequest(
                topic_states=[LeaderAndIsrRequest.LeaderAndIsrTopicState(topic_name="t", topic_id=ZERO_UUID)]
            )
            active._on_response(broker, request, LeaderAndIsrResponse(partition_errors=[failed]))
            await cluster.until(lambda: cluster.leader("t") == 1, "the other replica leads")

    run(scenario)


def test_the_feature_node_follows_the_version_unless_features_are_finalized() -> None:
    assert znodes.empty_feature_version(znodes.encode_feature(1)) == 1
    assert znodes.empty_feature_version(znodes.encode_feature()) == 2
    assert znodes.empty_feature_version(b'{"version":1,"status":0,"features":{}}') == 0
    assert znodes.empty_feature_version(b'{"version":2,"status":1,"features":{"x":3}}') is None
    assert znodes.empty_feature_version(b"no json") is None
