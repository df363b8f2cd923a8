"""The operator's ConnectClusters and Connectors beside Apache Kafka Connect 3.9.1 on an Ottla broker.

A worker runs with the settings that the operator makes; the operator's reconciliation reaches its REST API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.apache_kafka import LEAN_JVM, kafka_classpath
from bench.maven import JarsUnavailable
from ottla.local.processes import ChildProcess, free_port, wait_until
from ottla_operator.planning.connect import HOST_VARIABLE, worker_properties
from ottla_operator.platform.connect import ConnectRest
from ottla_operator.resources import ConnectCluster, Connector
from ottla_operator.resources.loading import parse_resource
from tests.judges.one_broker import one_broker
from tests.oracles import java, needs_kafka_jars, streams_and_connect
from tests.worlds.connect_simulation import Connect, RunningWorkers

WAIT_S = 60
# Each test starts workers of Kafka Connect, which form a group.
pytestmark = [pytest.mark.timeout(400), pytest.mark.budget(60)]
SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
SINK = "FileStreamSink"
STRINGS = {"key.converter": "org.apache.kafka.connect.storage.StringConverter"}


class Worker:
    """A worker of Kafka Connect, and the operator that reconciles resources over it."""

    def __init__(self, url: str, process: ChildProcess) -> None:
        self.process = process
        self.connect = Connect(ConnectRest(), RunningWorkers(url))

    def put(self, kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> None:
        self.connect.store.put(kind, name, spec, **metadata)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Reconcile until the condition holds. The operator waits at most so long between reconciliations."""

        def holds() -> bool:
            asyncio.run(self.connect.reconcile())
            return condition()

        seen = {key: item.status for key, item in self.connect.store.items.items()}
        assert wait_until(holds, timeout_s=WAIT_S, poll_s=0.3), f"{what}: {seen}\n{self.process.log_tail()}"

    def reason(self, name: str) -> str:
        return self.connect.ready(f"Connector/{name}").reason

    def message(self, name: str) -> str:
        return self.connect.ready(f"Connector/{name}").message

    def connector(self, name: str) -> Connector:
        found = self.connect.store.items[f"Connector/{name}"]
        assert isinstance(found, Connector)
        return found


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    needs_kafka_jars()
    try:
        jars = streams_and_connect()
    except JarsUnavailable as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("connect")
    (folder / "broker").mkdir()
    with one_broker(folder / "broker") as broker:
        spec = {
            "bootstrapServers": broker.bootstrap,
            "config": {
                "offset.flush.interval.ms": 500,
                "offset.storage.partitions": 2,
                "status.storage.partitions": 1,
                "value.converter": STRINGS["key.converter"],
                **STRINGS,
            },
        }
        resource, problems = parse_resource("ConnectCluster", {"name": "main", "namespace": "shop"}, spec)
        assert isinstance(resource, ConnectCluster), problems
        properties = worker_properties(resource, broker.bootstrap, {"security.protocol": "PLAINTEXT"})
        port = free_port()
        plugins = folder / "plugins"
        plugins.mkdir()
        properties |= {
            "listeners": f"http://127.0.0.1:{port}",
            "rest.advertised.port": str(port),
            "plugin.path": str(plugins),
        }
        file = folder / "connect.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        logging = Path(kafka_classpath()).parent / "log4j.properties"
        options = [*LEAN_JVM, f"-Dlog4j.configuration=file:{logging}", "-cp", f"{jars}/*"]
        command = [java(), *options, "org.apache.kafka.connect.cli.ConnectDistributed", str(file)]
        variable = f"{HOST_VARIABLE}=127.0.0.1"
        process = ChildProcess("connect", ["env", variable, *command], log=folder / "connect.log")
        process.start()
        try:
            running = Worker(f"http://127.0.0.1:{port}", process)
            running.put("ConnectCluster", "main", spec)
            running.until(
                lambda: running.connect.ready("ConnectCluster/main").status == "True", "the worker is ready"
            )
            yield running
        finally:
            process.kill()


def connector(class_: str, **config: Any) -> dict[str, Any]:
    return {"connectRef": {"name": "main"}, "class": class_, "config": config}


def test_the_status_has_version_and_plugins(worker: Worker) -> None:
    status = worker.connect.store.items["ConnectCluster/main"].status
    assert "Kafka Connect 3.9.1" in worker.connect.ready("ConnectCluster/main").message
    assert SOURCE in [plugin.class_name for plugin in status.connector_plugins]  # type: ignore[union-attr]


def test_a_file_is_copied_through_a_topic_paused_restarted_and_deleted(
    worker: Worker, tmp_path: Path
) -> None:
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    source.write_text("one\ntwo\n")
    sink.touch()
    from_file = connector(SOURCE, file=str(source), topic="copied")
    worker.put("Connector", "from-file", from_file)
    worker.put("Connector", "to-file", connector(SINK, file=str(sink), topics="copied"))
    worker.until(lambda: sink.read_text() == "one\ntwo\n", "the file is copied")
    worker.until(lambda: worker.reason("to-file") == "Running", "Ready")
    worker.until(lambda: worker.connector("from-file").status.topics == ["copied"], "its topic is known")
    assert worker.connector("from-file").status.type == "source"

    worker.put("Connector", "from-file", {**from_file, "state": "paused"})
    worker.until(lambda: worker.reason("from-file") == "Paused", "paused")
    worker.put("Connector", "from-file", {**from_file, "state": "stopped"})
    worker.until(lambda: worker.reason("from-file") == "Stopped", "stopped")
    worker.until(lambda: worker.connector("from-file").status.tasks == [], "its tasks are removed")
    with source.open("a") as more:
        more.write("three\n")
    requested = {"annotations": {"ottla.dev/restart-requested-at": "2026-11-27T14:00:00Z"}}
    worker.put("Connector", "from-file", from_file, **requested)
    worker.until(lambda: sink.read_text() == "one\ntwo\nthree\n", "it goes on where it was")
    worker.until(
        lambda: worker.connector("from-file").status.handled_restart == "2026-11-27T14:00:00Z", "restarted"
    )

    for name in ("from-file", "to-file"):
        worker.connect.store.delete(f"Connector/{name}", worker.connect.now_ms)
    worker.until(lambda: not worker.connect.store.items.keys() & {"Connector/from-file"}, "deleted")
    state = asyncio.run(ConnectRest().observe(worker.connect.workers.url))
    assert "from-file" not in state.connectors


def test_each_setting_that_connect_refuses_is_in_the_condition(worker: Worker) -> None:
    worker.put("Connector", "wrong", connector(SOURCE, **{"batch.size": "many"}))
    worker.until(lambda: worker.reason("wrong") == "InvalidConfig", "refused")
    assert "spec.config[batch.size]: Invalid value many" in worker.message("wrong")
    assert "spec.config[topic]" in worker.message("wrong")
    worker.put("Connector", "wrong", connector("no.such.Class"))
    worker.until(lambda: "no.such.Class" in worker.message("wrong"), "the class is refused")
    state = asyncio.run(ConnectRest().observe(worker.connect.workers.url))
    assert "wrong" not in state.connectors
    worker.connect.store.delete("Connector/wrong", worker.connect.now_ms)
    worker.until(lambda: "Connector/wrong" not in worker.connect.store.items, "deleted")


def test_a_failed_task_is_shown_and_restarted_automatically(worker: Worker, tmp_path: Path) -> None:
    """A sink in a folder that does not exist fails."""
    missing = tmp_path / "later" / "sink.txt"
    source = tmp_path / "source.txt"
    source.write_text("hello\n")
    worker.put("Connector", "feed", connector(SOURCE, file=str(source), topic="failing"))
    failing = connector(SINK, file=str(missing), topics="failing")
    worker.put("Connector", "failing", failing)
    worker.until(lambda: worker.reason("failing") == "TaskFailed", "it fails")
    assert "1 of 1 tasks have failed; task 0: " in worker.message("failing")
    assert str(missing) in worker.message("failing")
    missing.parent.mkdir()
    worker.put("Connector", "failing", {**failing, "autoRestart": {"enabled": True}})
    worker.until(lambda: worker.reason("failing") == "Running", "it was restarted")
    worker.until(lambda: missing.read_text() == "hello\n", "it works")


def test_offsets_of_a_stopped_source_are_listed_altered_and_reset(worker: Worker, tmp_path: Path) -> None:
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    source.write_text("one\ntwo\n")
    sink.touch()
    spec = connector(SOURCE, file=str(source), topic="again")
    worker.put("Connector", "again", spec)
    worker.put("Connector", "again-sink", connector(SINK, file=str(sink), topics="again"))
    worker.until(lambda: sink.read_text() == "one\ntwo\n", "the file is copied")
    worker.put("Connector", "again", {**spec, "state": "stopped"})
    worker.until(lambda: bool(worker.connector("again").status.offsets), "its offsets are listed")
    (listed,) = worker.connector("again").status.offsets
    assert (listed.partition, listed.offset) == ({"filename": str(source)}, {"position": 8})

    back = [{"partition": {"filename": str(source)}, "offset": {"position": 4}}]
    altered = {**spec, "alterOffsets": {"requestId": "1", "offsets": back}}
    worker.put("Connector", "again", {**altered, "state": "stopped"})
    worker.until(lambda: worker.connector("again").status.handled_offsets == "1", "altered")
    worker.put("Connector", "again", altered)
    worker.until(lambda: sink.read_text() == "one\ntwo\ntwo\n", "it goes on at the new offset")

    reset = {**spec, "alterOffsets": {"requestId": "2", "reset": True}}
    worker.put("Connector", "again", {**reset, "state": "stopped"})
    worker.until(lambda: worker.connector("again").status.handled_offsets == "2", "reset")
    worker.until(lambda: worker.connector("again").status.offsets == [], "it has none")
    worker.put("Connector", "again", reset)
    worker.until(lambda: sink.read_text() == "one\ntwo\ntwo\none\ntwo\n", "it starts from the beginning")

    wrong = {"requestId": "3", "offsets": [{"partition": {"other": 1}, "offset": {"position": 4}}]}
    worker.put("Connector", "again", {**spec, "state": "stopped", "alterOffsets": wrong})
    worker.until(lambda: worker.reason("again") == "ConnectError", "refused")
    assert "filename" in worker.message("again")
    assert worker.connector("again").status.handled_offsets == "2"


def test_one_task_is_restarted_by_an_annotation(worker: Worker, tmp_path: Path) -> None:
    missing, source = tmp_path / "later" / "sink.txt", tmp_path / "source.txt"
    source.write_text("hello\n")
    worker.put("Connector", "one-feed", connector(SOURCE, file=str(source), topic="one"))
    failing = connector(SINK, file=str(missing), topics="one")
    worker.put("Connector", "one", failing)
    worker.until(lambda: worker.reason("one") == "TaskFailed", "it fails")
    missing.parent.mkdir()
    annotations = {"ottla.dev/restart-task-requested-at": "0@2026-11-27T14:00:00Z"}
    worker.put("Connector", "one", failing, annotations=annotations)
    worker.until(lambda: missing.exists() and missing.read_text() == "hello\n", "the task runs again")
    assert worker.connector("one").status.handled_task_restart == "0@2026-11-27T14:00:00Z"
