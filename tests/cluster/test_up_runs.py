"""Runs of `ottla up`: refused starts, orderly stops, and continuation of the last run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.local.processes import port_in_use
from ottla.local.zookeeper import find_java
from tests.judges.faults import has_ended
from tests.judges.up_session import HOST, UpSession

pytestmark = pytest.mark.timeout(420)

# A broker that was killed can come back once ZooKeeper has given its session up.
QUICK = {"zookeeper.session.timeout.ms": 4000, "zookeeper.connection.timeout.ms": 60_000}


def one_broker(session: UpSession) -> None:
    session.write("BrokerCluster", "demo", {"replicas": 1, "config": QUICK})
    session.write("Topic", "kept", {"clusterRef": {"name": "demo"}, "partitions": 1, "replicas": 1})


def run(session: UpSession, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        session.command(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, **environment},
    )


def running_pids(session: UpSession) -> list[int]:
    """The processes named in pid files that are alive."""
    pids = [int(file.read_text()) for file in session.data.rglob("*.pid")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def write(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce(topic, value, partition=0)
    assert producer.flush(90) == 0


def read(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    with Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"}) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(count, timeout=90)]


def test_the_next_run_continues_the_last_one(tmp_path: Path) -> None:
    session = UpSession(tmp_path)
    one_broker(session)
    with session:
        bootstrap, _ = session.wait_ready()
        write(bootstrap, "kept", b"first")
        before = session.resource("Topic/kept")
        assert session.stop(signal.SIGINT) == 0
        assert session.lines[-1] == "stopped"
        assert not running_pids(session)
        assert not port_in_use(session.port)

        session.start()
        bootstrap, _ = session.wait_ready()
        write(bootstrap, "kept", b"second")
        assert read(bootstrap, "kept", 2) == [b"first", b"second"]
        after = session.resource("Topic/kept")
        assert before is not None
        assert after is not None
        assert after["metadata"] == before["metadata"]
        assert after["status"]["topicId"] == before["status"]["topicId"]
        assert session.stop(signal.SIGTERM) == 0


def test_a_killed_run_leaves_no_process_and_the_next_run_continues(tmp_path: Path) -> None:
    session = UpSession(tmp_path)
    one_broker(session)
    with session:
        bootstrap, _ = session.wait_ready()
        write(bootstrap, "kept", b"first")
        assert session.process is not None
        session.process.kill()
        session.process.wait()
        session.wait_until(lambda: not running_pids(session), "its children to end with it")
        session.start()
        bootstrap, _ = session.wait_ready()
        assert read(bootstrap, "kept", 1) == [b"first"]
        assert session.stop() == 0


def test_a_file_removed_between_two_runs_is_a_deletion(tmp_path: Path) -> None:
    session = UpSession(tmp_path)
    one_broker(session)
    with session:
        session.wait_ready()
        session.stop()
        session.remove("Topic", "kept")
        session.start()
        session.wait_line("Topic/kept is deleted")
        session.wait_until(lambda: session.topic("kept") is None, "the broker to hear of its end")


def test_a_data_folder_in_use_is_refused(tmp_path: Path) -> None:
    session = UpSession(tmp_path)
    one_broker(session)
    with session:
        session.wait_line("ZooKeeper is starting|broker 0")
        second = run(session)
        assert second.returncode == 1
        assert "is in use by another `ottla up`" in second.stderr
        assert session.process is not None
        assert str(session.process.pid) in second.stderr


def phase(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/readyz", timeout=30) as answer:
        return str(answer.read().decode().strip())


def test_a_fixed_http_port_is_the_first_brokers_and_the_others_count_up_from_it(tmp_path: Path) -> None:
    session = UpSession(tmp_path, ports=6)
    fixed = session.port + 3
    session.write("BrokerCluster", "demo", {"replicas": 3, "config": {**QUICK, "ottla.http.port": fixed}})
    with session:
        session.wait_ready()
        for broker in range(3):
            said = f"broker {broker} metrics=http://{HOST}:{fixed + broker}/metrics"
            assert session.lines.count(said) == 1
            assert phase(f"{HOST}:{fixed + broker}") == "ready"
        assert not [line for line in session.lines if "Crashed" in line]

        session.write("BrokerCluster", "demo", {"replicas": 3, "config": {**QUICK, "ottla.http.port": 0}})
        found = (session.wait_line(r"^broker (\d) metrics=http://(\S+)/metrics$") for _ in range(3))
        free = {match[1]: match[2] for match in found}
        session.wait_ready()
        assert len(set(free.values())) == len(free) == 3
        assert {phase(address) for address in free.values()} == {"ready"}


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    session = UpSession(tmp_path)
    session.write("BrokerCluster", "demo", {"replicas": 2})
    with socket.socket() as taken:
        taken.bind((HOST, session.port + 1))
        taken.listen()
        refused = run(session)
    assert refused.returncode == 1
    assert f"port {session.port + 1}, for broker 1, is in use" in refused.stderr
    assert "--port" in refused.stderr
    assert not running_pids(session)


def test_missing_java_is_reported(tmp_path: Path) -> None:
    session = UpSession(tmp_path)
    one_broker(session)
    refused = run(session, JAVA_HOME="", PATH=str(tmp_path))
    assert refused.returncode == 1
    assert "Java is missing" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_old_java_is_refused(tmp_path: Path) -> None:
    session = UpSession(tmp_path)
    one_broker(session)
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    refused = run(session, JAVA_HOME=str(tmp_path))
    assert refused.returncode == 1
    assert "is Java 11; Java 17 or 21 is needed" in refused.stderr


def test_a_folder_without_resources_is_refused(tmp_path: Path) -> None:
    session = UpSession(tmp_path)
    refused = run(session)
    assert refused.returncode == 1
    assert "has no resource of ottla.dev" in refused.stderr


def test_ctrl_c_stops_a_run_that_is_still_starting(tmp_path: Path) -> None:
    session = UpSession(tmp_path)
    one_broker(session)
    with session:
        session.wait_line("start broker 0")
        assert session.stop() == 0
        assert not running_pids(session)


def test_a_setting_that_brokers_would_reject_is_rejected_before(tmp_path: Path) -> None:
    session = UpSession(tmp_path)
    one_broker(session)
    with session:
        session.wait_ready()
        pid = session.broker_pid(0)
        session.write("BrokerCluster", "demo", {"replicas": 1, "config": {**QUICK, "num.partitions": "?"}})
        session.wait_line(
            r"demo Ready=False InvalidSpec .*spec\.config\[num\.partitions\]: '\?' is not allowed"
        )
        assert session.broker_pid(0) == pid
        session.write("BrokerCluster", "demo", {"replicas": 1, "config": QUICK})
        session.wait_ready()


@pytest.mark.parametrize("program", ["QuorumPeerMain", "SparkSubmit"])
def test_ctrl_c_ends_a_run_whose_java_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """As a ZooKeeper, or as a driver. Neither Java nor what it started is left."""
    java, child = tmp_path / "home" / "bin" / "java", tmp_path / "child"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"""#!/bin/sh
case "$*" in
  *launcher.Main*) ;;
  *{program}*) trap '' TERM; sleep 3600 & echo $! > {child}.part; mv {child}.part {child}; wait ;;
esac
exec {find_java()} "$@"
"""
    )
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
    session = UpSession(tmp_path)
    one_broker(session)
    config = {
        "source": {"topics": ["kept"]},
        "format": {"type": "json", "fields": "id STRING, at TIMESTAMP"},
        "event": {"id": "id", "time": "at"},
        "sink": {"type": "parquet", "path": "lake"},
    }
    spec = {"clusterRef": {"name": "demo"}, "job": "lake", "storage": {"size": "1Gi"}, "config": config}
    session.write("Pipeline", "orders", spec)
    with session:
        session.wait_until(child.exists, "java to hang")
        began = time.monotonic()
        assert session.stop() == 0
        assert time.monotonic() - began < 30, "less than any grace period and time-out of a start"
        assert has_ended(int(child.read_text()))
