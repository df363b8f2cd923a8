"""The store and the views of `ottla up`: generations, deletions, invalid edits, lines and tables."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from ottla_operator.conditions import find, merge, no, yes
from ottla_operator.resources import Topic
from ottla_operator.resources.loading import load_folder
from ottla_operator.up.command import CannotRun, lock_data_folder
from ottla_operator.up.store import MISSING_MS_MAX, FolderStore
from ottla_operator.up.view import LiveView, PlainView


class Folder:
    """A folder of resources, a store over it, and a clock."""

    def __init__(self, tmp_path: Path) -> None:
        self.files = tmp_path / "files"
        self.files.mkdir()
        self.state = tmp_path / "data" / "state.json"
        self.now_ms = 1_700_000_000_000
        self.store = self.open()

    def open(self) -> FolderStore:
        return FolderStore(self.state, lambda: self.now_ms)

    def write(self, name: str, spec: object = None, **metadata: object) -> None:
        content = {
            "apiVersion": "ottla.dev/v1alpha1",
            "kind": "Topic",
            "metadata": {"name": name, **metadata},
            "spec": spec if spec is not None else {"clusterRef": {"name": "demo"}, "partitions": 3},
        }
        (self.files / f"{name}.yaml").write_text(yaml.safe_dump(content))

    def sync(self) -> bool:
        return self.store.sync(load_folder(self.files))

    def topic(self, name: str = "a") -> Topic:
        resource = self.store.entries[f"Topic/{name}"].resource
        assert isinstance(resource, Topic)
        return resource

    def ready(self, name: str = "a") -> tuple[str, str]:
        status = self.store.entries[f"Topic/{name}"].status
        ready = next(c for c in status["conditions"] if c["type"] == "Ready")
        return ready["status"], ready["reason"]

    def report(self, name: str = "a") -> None:
        """Write the condition Ready, as a reconciler does."""
        topic = self.topic(name)
        conditions = merge(
            topic.status.conditions,
            [yes("Ready", "Created")],
            generation=topic.metadata.generation,
            now_ms=self.now_ms,
        )
        asyncio.run(
            self.store.update_status(topic, topic.status.model_copy(update={"conditions": conditions}))
        )


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path)
    folder.write("a")
    folder.sync()
    return folder


PARTITIONS: dict[str, Any] = {"clusterRef": {"name": "demo"}, "partitions": 5}


def test_a_new_resource_has_unknown_conditions(folder: Folder) -> None:
    assert folder.ready() == ("Unknown", "Pending")
    assert folder.topic().metadata.generation == 1


def test_only_a_changed_spec_is_a_new_generation(folder: Folder) -> None:
    assert not folder.sync()
    folder.write("a", PARTITIONS)
    assert folder.sync()
    assert folder.topic().metadata.generation == 2
    folder.write("a", PARTITIONS, annotations={"ottla.dev/pause-reconciliation": "true"})
    assert folder.sync()
    assert folder.topic().metadata.generation == 2
    assert folder.topic().metadata.paused


def test_an_invalid_edit_keeps_the_last_valid_spec_across_restarts(folder: Folder) -> None:
    folder.report()
    folder.write("a", {"clusterRef": {"name": "demo"}, "partitions": "many"})
    folder.sync()
    assert folder.ready() == ("False", "InvalidSpec")
    assert folder.topic().spec.partitions == 3
    folder.store = folder.open()
    folder.sync()
    assert folder.topic().spec.partitions == 3
    assert "spec.partitions" in folder.topic().refused[0], "so that a reconciler reports it"
    folder.write("a", PARTITIONS)
    folder.sync()
    folder.report()
    assert folder.ready() == ("True", "Created")
    assert folder.topic().metadata.generation == 2
    assert not folder.topic().refused


def test_a_resource_that_was_never_valid_is_shown_and_not_reconciled(folder: Folder) -> None:
    folder.write("b", {"clusterRef": {}})
    folder.sync()
    assert folder.ready("b") == ("False", "InvalidSpec")
    assert [r.metadata.name for r in asyncio.run(folder.store.resources())] == ["a"]
    (folder.files / "b.yaml").unlink()
    folder.sync()
    folder.now_ms += MISSING_MS_MAX
    folder.sync()
    assert "Topic/b" not in folder.store.entries


def test_a_forbidden_change_is_an_invalid_spec(folder: Folder) -> None:
    folder.write("a", {"clusterRef": {"name": "demo"}, "partitions": 2})
    folder.sync()
    assert folder.ready() == ("False", "InvalidSpec")
    assert "spec.partitions" in folder.store.entries["Topic/a"].problems[0]
    assert folder.topic().spec.partitions == 3


def test_a_briefly_missing_file_deletes_no_resource(folder: Folder) -> None:
    file = folder.files / "a.yaml"
    content = file.read_text()
    file.unlink()
    folder.sync()
    folder.now_ms += MISSING_MS_MAX - 1
    folder.sync()
    assert not folder.topic().metadata.deleting
    file.write_text(content)
    folder.sync()
    folder.now_ms += MISSING_MS_MAX
    folder.sync()
    assert not folder.topic().metadata.deleting
    file.unlink()
    folder.sync()
    folder.now_ms += MISSING_MS_MAX
    folder.sync()
    assert folder.topic().metadata.deleting


def test_an_unreadable_file_deletes_no_resource(folder: Folder) -> None:
    (folder.files / "a.yaml").write_text("kind: [")
    for _ in range(3):
        folder.sync()
        folder.now_ms += MISSING_MS_MAX
    assert not folder.topic().metadata.deleting
    assert folder.store.errors


def test_a_resource_moved_to_another_file_keeps_its_identity(folder: Folder) -> None:
    uid = folder.topic().metadata.uid
    (folder.files / "a.yaml").rename(folder.files / "z.yaml")
    folder.sync()
    folder.now_ms += MISSING_MS_MAX
    folder.sync()
    assert folder.topic().metadata.uid == uid
    assert not folder.topic().metadata.deleting


def test_a_resource_created_again_during_its_deletion_is_a_new_one(folder: Folder) -> None:
    uid = folder.topic().metadata.uid
    file = folder.files / "a.yaml"
    content = file.read_text()
    file.unlink()
    folder.sync()
    folder.now_ms += MISSING_MS_MAX
    folder.sync()
    file.write_text(content)
    folder.sync()
    assert folder.topic().metadata.deleting
    asyncio.run(folder.store.release(folder.topic()))
    folder.sync()
    assert not folder.topic().metadata.deleting
    assert folder.topic().metadata.uid != uid


def test_the_store_keeps_its_content_over_a_restart(folder: Folder) -> None:
    folder.report()
    before = folder.topic()
    folder.store = folder.open()
    assert not folder.sync()
    assert folder.topic() == before


def test_fields_of_a_later_version_are_left_out_of_the_state(folder: Folder) -> None:
    folder.write("a")
    folder.sync()
    folder.report()
    state = json.loads(folder.state.read_text())
    (topic,) = state["resources"]
    topic["status"] |= {"later": {"x": 1}}
    topic["status"]["conditions"][0]["later"] = "y"
    folder.state.write_text(json.dumps(state))
    folder.store = folder.open()
    assert folder.ready() == ("True", "Created")
    assert "later" not in json.dumps(folder.store.entries["Topic/a"].status)
    assert folder.topic().status.conditions


def test_an_unreadable_state_file_is_an_error(folder: Folder) -> None:
    folder.state.write_text("{")
    with pytest.raises(ValueError, match=r"state\.json cannot be read"):
        folder.open()


def test_a_data_folder_is_used_by_one_process(tmp_path: Path) -> None:
    held = lock_data_folder(tmp_path)
    with pytest.raises(CannotRun, match="in use by another `ottla up`"):
        lock_data_folder(tmp_path)
    held.close()
    lock_data_folder(tmp_path).close()


def test_a_data_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotRun, match=r"the data folder .*/file/data cannot be written: Not a directory"):
        lock_data_folder(tmp_path / "file" / "data")


def test_a_date_in_a_free_form_field_is_stored(folder: Folder) -> None:
    spec = {"replicas": 1, "resources": {"since": date(2020, 1, 1)}}
    (folder.files / "c.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "ottla.dev/v1alpha1",
                "kind": "BrokerCluster",
                "metadata": {"name": "demo"},
                "spec": spec,
            }
        )
    )
    assert folder.sync()
    assert folder.open().entries["BrokerCluster/demo"].resource is not None


# ---- conditions


def test_a_condition_keeps_its_transition_time_until_its_status_changes() -> None:
    first = merge([], [no("Ready", "Starting")], generation=1, now_ms=0)
    second = merge(first, [no("Ready", "Waiting", "for x")], generation=2, now_ms=60_000)
    third = merge(second, [yes("Ready", "Done")], generation=2, now_ms=120_000)
    times = [find(c, "Ready").last_transition_time for c in (first, second, third)]  # type: ignore[union-attr]
    assert times == ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1970-01-01T00:02:00Z"]
    assert second[0].reason == "Waiting"
    assert second[0].observed_generation == 2


def test_conditions_that_are_no_longer_reported_are_removed() -> None:
    both = merge([], [yes("Ready", "A"), yes("Paused", "B")], generation=1, now_ms=0)
    assert [c.type for c in merge(both, [yes("Ready", "A")], generation=1, now_ms=0)] == ["Ready"]
    kept = merge(both, [yes("Ready", "A")], generation=1, now_ms=0, keep_others=True)
    assert [c.type for c in kept] == ["Ready", "Paused"]


def test_a_reason_is_camel_case() -> None:
    with pytest.raises(AssertionError, match="CamelCase"):
        no("Ready", "not ready")


# ---- views


def test_the_plain_view_prints_a_line_for_each_change(folder: Folder) -> None:
    lines: list[str] = []
    view = PlainView(lines.append, clock=lambda: "12:00:00")

    def show(*steps: str, errors: tuple[str, ...] = ()) -> list[str]:
        lines.clear()
        view.show(list(folder.store.entries.values()), errors, steps)
        return list(lines)

    assert show("create topic a") == [
        "12:00:00 create topic a",
        "12:00:00 Topic/a Ready=Unknown Pending the operator has not reconciled the resource yet",
    ]
    assert show("create topic a") == []
    folder.report()
    assert show() == ["12:00:00 Topic/a Ready=True Created"]
    assert show(errors=("a.yaml: line 1",)) == ["12:00:00 error: a.yaml: line 1"]
    assert show(errors=("a.yaml: line 1",)) == []
    view.print_line("ready bootstrap=x")
    assert lines == ["ready bootstrap=x"]


def test_an_unusual_condition_is_printed_when_it_is_first_seen(folder: Folder) -> None:
    lines: list[str] = []
    topic = folder.topic()
    findings = [
        yes("Ready", "Created"),
        no("ConfigSynced", "Applying", "retention.ms"),
        no("ReplicasChanging", "AsDesired"),
        yes("ReconciliationPaused", "Paused", "observed only"),
    ]
    conditions = merge(topic.status.conditions, findings, generation=1, now_ms=folder.now_ms)
    asyncio.run(folder.store.update_status(topic, topic.status.model_copy(update={"conditions": conditions})))
    entries = list(folder.store.entries.values())
    view = PlainView(lines.append, clock=lambda: "12:00:00")
    view.show(entries, [], [])
    assert lines == [
        "12:00:00 Topic/a Ready=True Created",
        "12:00:00 Topic/a ConfigSynced=False Applying retention.ms",
        "12:00:00 Topic/a ReconciliationPaused=True Paused observed only",
    ]
    findings[1] = no("ConfigSynced", "Applying", "retention.bytes")
    conditions = merge(topic.status.conditions, findings, generation=1, now_ms=folder.now_ms)
    asyncio.run(folder.store.update_status(topic, topic.status.model_copy(update={"conditions": conditions})))
    view.show(entries, [], [])
    assert len(lines) == 3, "no line for a message alone"
    output = io.StringIO()
    table = LiveView(Console(file=output, force_terminal=True, width=120))
    table.show(entries, [], [])
    table.close()
    assert "ConfigSynced=False Applying retention.bytes" in output.getvalue()
    assert "ReconciliationPaused=True Paused observed only" in output.getvalue()
    assert "ReplicasChanging" not in output.getvalue()


def test_the_live_view_shows_resources_errors_and_the_last_steps(folder: Folder) -> None:
    output = io.StringIO()
    view = LiveView(Console(file=output, force_terminal=True, width=100))
    folder.report()
    view.show(list(folder.store.entries.values()), ["b.yaml: broken"], ["create topic a"])
    view.print_line("ready bootstrap=" + "127.0.0.1:9092," * 12 + " zookeeper=z")
    view.close()
    shown = output.getvalue()
    assert "Topic/a" in shown
    assert "Created" in shown
    assert "b.yaml: broken" in shown
    assert "create topic a" in shown
    assert "127.0.0.1:9092," * 12 in shown, "the ready line is not wrapped"
