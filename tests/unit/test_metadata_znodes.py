"""Kafka's ZooKeeper tree: nodes of Kafka 3.9 are decoded, and encoded to the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.metadata import znodes
from ottla.metadata.znodes import BrokerInfo, Endpoint, InvalidNode, PartitionState, TopicAssignment

# As Apache Kafka 3.9.1 left them.
BROKER = (
    b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
    b'"endpoints":["PLAINTEXT://127.0.0.1:19392"],"rack":"r1","jmx_port":-1,"port":19392,'
    b'"host":"127.0.0.1","version":5,"timestamp":"1795257518915"}'
)
TOPIC = (
    b'{"partitions":{"0":[0],"1":[0]},"topic_id":"Pj-tFLZwRvKe8BDiQL89Hg","adding_replicas":{},'
    b'"removing_replicas":{},"version":3}'
)
STATE = b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0]}'
CONTROLLER = b'{"version":2,"brokerid":0,"timestamp":"1795257519051","kraftControllerEpoch":-1}'
CLUSTER_ID = b'{"version":"1","id":"IOpC6n68TsOrtG6wVNH1Ng"}'
CONFIG = b'{"version":1,"config":{"retention.ms":"1000"}}'
FEATURE = b'{"features":{},"version":2,"status":1}'


def same(ours: bytes, kafkas: bytes) -> bool:
    return bool(json.loads(ours) == json.loads(kafkas))


def test_znodes_of_kafka_are_read_and_written_back_the_same() -> None:
    broker = znodes.decode_broker(0, BROKER, epoch=25)
    assert broker == BrokerInfo(
        0, (Endpoint("PLAINTEXT", "127.0.0.1", 19392),), "r1", 1795257518915, epoch=25
    )
    assert same(znodes.encode_broker(broker), BROKER)
    topic = znodes.decode_topic("t1", TOPIC)
    assert topic.partitions == {0: (0,), 1: (0,)}
    assert same(znodes.encode_topic(topic), TOPIC)
    state = znodes.decode_partition_state("t1", 0, STATE)
    assert state == PartitionState(leader=0, leader_epoch=0, isr=(0,), controller_epoch=1)
    assert same(znodes.encode_partition_state(state), STATE)
    assert znodes.decode_controller(CONTROLLER) == 0
    assert same(znodes.encode_controller(0, 1795257519051), CONTROLLER)
    assert same(znodes.encode_cluster_id(znodes.decode_cluster_id(CLUSTER_ID)), CLUSTER_ID)
    assert same(znodes.encode_config(znodes.decode_config("/config/topics/t1", CONFIG)), CONFIG)
    assert same(znodes.encode_feature(), FEATURE)
    assert znodes.decode_controller_epoch(b"1") == 1


def test_listeners_of_every_kind_survive_the_round_trip() -> None:
    broker = BrokerInfo(
        3,
        (
            Endpoint("INTERNAL", "::1", 9093, "SASL_SSL"),
            Endpoint("EXTERNAL", "kafka.example.org", 9094, "PLAINTEXT"),
        ),
        None,
        1,
        7,
    )
    data = znodes.encode_broker(broker)
    assert znodes.decode_broker(3, data, 7) == broker
    value = json.loads(data)
    assert (value["host"], value["port"]) == ("kafka.example.org", 9094), "for clients of 0.8"
    assert "rack" not in value


def test_registrations_of_old_brokers_are_understood() -> None:
    version_1 = b'{"version":1,"host":"h","port":9092,"jmx_port":9999,"timestamp":"2233345666"}'
    version_2 = b'{"version":2,"host":"h","port":9092,"endpoints":["SSL://h:9093"],"timestamp":"1"}'
    assert znodes.decode_broker(1, version_1, 0).endpoints == (Endpoint("PLAINTEXT", "h", 9092),)
    assert znodes.decode_broker(1, version_2, 0).endpoints == (Endpoint("SSL", "h", 9093, "SSL"),)


def test_topics_of_old_brokers_have_no_id_and_do_not_move() -> None:
    assert znodes.decode_topic("t", b'{"version":1,"partitions":{"1":[2,3]}}') == TopicAssignment({1: (2, 3)})


def test_only_moving_partitions_are_listed_as_such() -> None:
    topic = TopicAssignment({0: (1, 2), 1: (1,)}, adding={0: (2,), 1: ()}, removing={0: (1,)})
    value = json.loads(znodes.encode_topic(topic))
    assert value["adding_replicas"] == {"0": [2]}
    assert value["removing_replicas"] == {"0": [1]}


def test_the_recovery_state_is_encoded() -> None:
    state = PartitionState(1, 5, (1,), 2, leader_recovery_state=1)
    assert znodes.decode_partition_state("t", 0, znodes.encode_partition_state(state)) == state


def test_config_changes_of_both_versions_name_the_entity() -> None:
    assert znodes.decode_config_change(znodes.encode_config_change("topics/t")) == "topics/t"
    old = b'{"version":1,"entity_type":"topics","entity_name":"t"}'
    assert znodes.decode_config_change(old) == "topics/t"


@given(st.uuids())
def test_ids_have_kafkas_text_form(value: UUID) -> None:
    text = znodes.encode_uuid(value)
    assert len(text) == 22
    assert znodes.decode_uuid(text) == value


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"{}", b'{"version":5}', b'{"version":1,"isr":3}'])
def test_damaged_nodes_are_refused_by_name(data: bytes) -> None:
    decoders: dict[str, Callable[[], object]] = {
        "/brokers/ids/4": lambda: znodes.decode_broker(4, data, 0),
        "/partitions/2/state": lambda: znodes.decode_partition_state("t", 2, data),
        "/controller": lambda: znodes.decode_controller(data),
        "/cluster/id": lambda: znodes.decode_cluster_id(data),
        "/latest_producer_id_block": lambda: znodes.decode_producer_id_block(data),
    }
    for name, decode in decoders.items():
        with pytest.raises(InvalidNode, match=name):
            decode()
