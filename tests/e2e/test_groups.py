"""A ConsumerGroup's `whenActive: Live` on a real Kubernetes, with a consumer of librdkafka that runs on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.clusters import Cluster
from tests.e2e.kube import Object, wait_for

TOPIC, GROUP, RECORDS = "rewound", "readers", 100

# Writes the records; then, until standard input ends, reads as a member and prints the offsets.
READ = """
import os, sys, threading
from confluent_kafka import Consumer, Producer
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
servers, topic, group, count = sys.argv[1:]
producer = Producer({"bootstrap.servers": servers})
for number in range(int(count)):
    producer.produce(topic, str(number))
assert producer.flush(60) == 0
settings = {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 200}
consumer = Consumer({"bootstrap.servers": servers, "group.id": group, **settings})
consumer.subscribe([topic])
while True:
    record = consumer.poll(1.0)
    if record is not None and record.error() is None:
        print(record.offset(), flush=True)
"""


def test_a_group_is_rewound_while_its_member_runs(cluster: Cluster, tmp_path: Path) -> None:
    kube = cluster.kube
    if not kube.has_node:
        pytest.skip("needs OTTLA_KUBE: a real client runs on its node, where Services have names")
    cluster.create_topic(TOPIC, partitions=1, replicas=3)
    command = kube.on_node(
        *(sys.executable, "-c", READ, cluster.broker_addresses(), TOPIC, GROUP, str(RECORDS))
    )
    printed = tmp_path / "offsets"

    def read() -> list[int]:
        return [int(line) for line in printed.read_text().split()]

    def group() -> Object:
        found = kube.get("consumergroups.ottla.dev", GROUP, cluster.namespace) or {}
        return dict(found.get("status") or {})

    # Left by whatever way, the block closes the member's standard input and awaits its end.
    with (
        printed.open("w") as output,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output) as client,
    ):
        wait_for("all is read once", lambda: read() == [*range(RECORDS)], 60)
        spec: Object = {"clusterRef": {"name": "demo"}, "groupId": GROUP}
        kube.apply(cluster.resource("ConsumerGroup", GROUP, spec))
        wait_for("the group has no lag", lambda: (group().get("topics") or [{}])[0].get("lag") == 0, 60)

        reset = {"requestId": "1", "topics": [TOPIC], "to": "offset", "value": 40, "whenActive": "Live"}
        kube.apply(cluster.resource("ConsumerGroup", GROUP, {**spec, "offsetReset": reset}))
        wait_for("the reset is done", lambda: group().get("lastReset", {}).get("phase") == "Done", 60)
        assert client.poll() is None, "the member runs on"
        wait_for("all from there is read again", lambda: len(read()) == 2 * RECORDS - 40, 60)
        wait_for("it is committed", lambda: (group().get("topics") or [{}])[0].get("lag") == 0, 60)
    assert read() == [*range(RECORDS), *range(40, RECORDS)]
    kube.delete("consumergroups.ottla.dev", GROUP, cluster.namespace, "--timeout=60s")
    kube.delete("topics.ottla.dev", TOPIC, cluster.namespace, "--timeout=60s")
