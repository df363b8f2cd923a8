"""`ottla up` takes the backups of `spec.backup` on their schedule, and starts new clusters from them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla_operator.backup.document import loaded
from ottla_operator.backup.objects import newest
from tests.judges.up_session import UpSession

pytestmark = pytest.mark.timeout(420)


def test_a_backup_is_taken_on_schedule_with_the_clusters_topics(tmp_path: Path) -> None:
    session = UpSession(tmp_path)
    folder = tmp_path / "backups"
    backup = {"destination": f"file://{folder}", "schedule": "* * * * *", "retention": 1}
    session.write("BrokerCluster", "demo", {"replicas": 1, "backup": backup})
    session.write("Topic", "kept", {"clusterRef": {"name": "demo"}, "partitions": 3, "replicas": 1})
    with session:
        session.wait_ready()
        session.wait_until(lambda: session.condition("Topic/kept")[0] == "True", "the topic is there")
        topics: dict[str, int] = {}

        def has_topic() -> bool:
            if not folder.exists() or not any(folder.iterdir()):
                return False
            _, content = asyncio.run(newest(f"file://{folder}", ""))
            topics.update({name: topic.partitions for name, topic in loaded(content).topics.items()})
            return bool(topics)

        session.wait_until(has_topic, "a backup with the topic", timeout_s=180)
        assert topics == {"kept": 3}
        session.wait_until(
            lambda: session.condition("BrokerCluster/demo", "BackedUp")[0] == "True", "the status says so"
        )
        assert len(list(folder.iterdir())) == 1
        assert session.cluster_status()["backup"]["lastObject"].startswith(f"file://{folder}/demo-")
    assert_recovered(tmp_path / "other", folder)


def assert_recovered(directory: Path, folder: Path) -> None:
    """A new cluster has the backup's topic before that of its own files."""
    session = UpSession(directory)
    recovery = {"source": f"file://{folder}", "name": "demo"}
    session.write("BrokerCluster", "demo", {"replicas": 1, "bootstrap": {"recovery": recovery}})
    session.write("Topic", "more", {"clusterRef": {"name": "demo"}, "partitions": 1, "replicas": 1})
    with session:
        session.wait_ready()
        assert session.condition("BrokerCluster/demo", "Recovered")[:2] == ("True", "Completed")
        kept, more = session.topic("kept"), session.topic("more")
        assert kept is not None
        assert more is not None
        assert (len(kept.partitions), len(more.partitions)) == (3, 1)
