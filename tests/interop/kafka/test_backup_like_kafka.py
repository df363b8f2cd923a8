"""A cluster's metadata is backed up to an S3 server and restored into an empty cluster, in which Apache
Kafka's tools print the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla_operator.backup import command
from tests.judges.cluster_metadata import fill, offsets_of, produce, shown
from tests.judges.s3_server import BUCKET, S3Server, s3_server
from tests.judges.up_session import UpSession
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(600)
SPEC = {
    "replicas": 1,
    "config": {"offsets.topic.num.partitions": 3, "auto.create.topics.enable": False},
    "authorization": {"type": "simple", "superUsers": ["ANONYMOUS"]},
}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    needs_kafka_jars()
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def ottla(s3: S3Server, *arguments: str) -> str:
    """What `ottla backup` or `ottla restore` prints."""
    run = {"backup": command.backup, "restore": command.restore}[arguments[0]]
    given = [*arguments[1:], "--endpoint", s3.endpoint]
    done = CliRunner().invoke(run, given, env=s3.credentials)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_restored_cluster_is_the_same_to_kafkas_tools(s3: S3Server, tmp_path: Path) -> None:
    source, target = UpSession(tmp_path / "source"), UpSession(tmp_path / "target")
    for session in (source, target):
        session.write("BrokerCluster", "demo", SPEC)
    url = f"s3://{BUCKET}/clusters/demo"
    with source, target:
        (old, _), (new, _) = source.wait_ready(), target.wait_ready()
        asyncio.run(fill(old))
        produce(old)
        backed_up = ottla(s3, "backup", "-b", old, "--to", url, "--name", "demo", "--keep", "3")
        assert "2 topics, 2 settings, 4 ACLs, 2 quotas, 2 offsets" in backed_up
        assert "left out: the password of user anna (SCRAM-SHA-512)" in backed_up
        assert len(list(s3.folder.rglob("demo-*.ndjson.gz"))) == 1

        before = shown(new, tmp_path)
        would = ottla(s3, "restore", "-b", new, "--from", url, "--dry-run")
        assert "would restore topic orders: 3 partitions of 1 replicas" in would
        assert shown(new, tmp_path) == before, "a dry run changes nothing"

        restored = ottla(s3, "restore", "-b", new, "--from", url)
        assert "left: group shop: the records of 1 offsets are not there" in restored
        assert "left: user anna has no password yet" in restored
        expected = shown(old, tmp_path)
        assert "PartitionCount: 3" in expected[0]
        assert "User:anna" in expected[1]
        assert shown(new, tmp_path) == expected

        produce(new)
        again = ottla(s3, "restore", "-b", new, "--from", url)
        assert "restore offset 7 of group shop in orders-0" in again
        assert offsets_of(new, tmp_path) == offsets_of(old, tmp_path)
        assert "orders 0 7 10 3" in offsets_of(new, tmp_path)
        assert "nothing to restore" in ottla(s3, "restore", "-b", new, "--from", url)
