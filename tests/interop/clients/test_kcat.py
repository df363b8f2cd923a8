"""kcat (librdkafka) against a cluster of ours."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from ottla.local.cluster import LocalCluster

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module", autouse=True)
def kcat_installed() -> None:
    if shutil.which("kcat") is None:
        pytest.skip("needs kcat (Debian package kcat)")


def kcat(cluster: LocalCluster, *arguments: str, stdin: str | None = None) -> str:
    ran = subprocess.run(
        ["kcat", "-b", cluster.bootstrap, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.returncode == 0, f"kcat {arguments}:\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def test_metadata_is_listed(cluster: LocalCluster) -> None:
    cluster.create_topic("kcat-listed", partitions=2)
    metadata = json.loads(kcat(cluster, "-L", "-J"))
    assert sorted(broker["id"] for broker in metadata["brokers"]) == [0, 1, 2]
    listed = next(topic for topic in metadata["topics"] if topic["topic"] == "kcat-listed")
    assert [len(partition["isrs"]) for partition in listed["partitions"]] == [3, 3]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produced_records_are_consumed(cluster: LocalCluster, codec: str) -> None:
    topic = f"kcat-{codec}"
    cluster.create_topic(topic, partitions=1)
    lines = [f"key{n}:value {n} {'x' * 50}" for n in range(500)]
    kcat(
        cluster,
        "-P",
        "-t",
        topic,
        "-K:",
        "-z",
        codec,
        "-X",
        "enable.idempotence=true",
        stdin="\n".join(lines) + "\n",
    )
    assert kcat(cluster, "-C", "-t", topic, "-e", "-q", "-K:").splitlines() == lines


def test_a_topic_is_created_by_the_first_write(cluster: LocalCluster) -> None:
    kcat(cluster, "-P", "-t", "kcat-first", stdin="one\n")
    cluster.wait_until(lambda: cluster.fully_replicated("kcat-first"), "all brokers to know it")
    assert kcat(cluster, "-C", "-t", "kcat-first", "-e", "-q").splitlines() == ["one"]


def test_a_group_shares_a_topic_and_continues_at_its_committed_offsets(cluster: LocalCluster) -> None:
    cluster.create_topic("kcat-group", partitions=3)
    kcat(cluster, "-P", "-t", "kcat-group", "-K:", stdin="".join(f"{n}:{n}\n" for n in range(100)))
    options = ("-X", "auto.offset.reset=earliest", "-q", "-e", "-G", "kcat-readers", "kcat-group")
    first = kcat(cluster, *options).splitlines()
    assert sorted(first, key=int) == [str(n) for n in range(100)]
    kcat(cluster, "-P", "-t", "kcat-group", stdin="more\n")
    assert kcat(cluster, *options).splitlines() == ["more"]


def test_offsets_are_found_by_time(cluster: LocalCluster) -> None:
    cluster.create_topic("kcat-time", partitions=1)
    kcat(cluster, "-P", "-t", "kcat-time", stdin="a\nb\n")
    assert kcat(cluster, "-Q", "-t", "kcat-time:0:0").split() == ["kcat-time", "[0]", "offset", "0"]
    assert kcat(cluster, "-Q", "-t", "kcat-time:0:-1").split() == ["kcat-time", "[0]", "offset", "2"]
