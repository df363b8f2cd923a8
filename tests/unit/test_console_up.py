"""The console of a cluster that `ottla up` runs: it reads what `ottla up` writes into its data folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from ottla_console.cluster.resources import ReadingFailed, State, state_of
from ottla_console.cluster.up_state import OfUp
from ottla_operator.conditions import merge, no
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.loading import load_folder
from ottla_operator.up.store import STATE, FolderStore
from tests.worlds.console_cluster import FakeCluster

NOW_MS = 1_700_000_000_000


class Up:
    """Files, and the store of `ottla up` over them."""

    def __init__(self, folder: Path) -> None:
        self.files, self.data = folder / "files", folder / "data"
        self.files.mkdir()
        self.write("BrokerCluster", "demo", {"replicas": 1})
        self.write("Topic", "orders", {"clusterRef": {"name": "demo"}, "partitions": 3})
        self.write("Topic", "wrong", {"clusterRef": {"name": "demo"}, "partitions": 0})
        self.store = FolderStore(self.data / STATE, lambda: NOW_MS)
        self.sync()

    def write(self, kind: str, name: str, spec: object) -> None:
        content = {"apiVersion": "ottla.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        (self.files / f"{name}.yaml").write_text(yaml.safe_dump(content))

    def sync(self) -> None:
        self.store.sync(load_folder(self.files))

    def roll(self) -> None:
        """The cluster is not Ready, with an Event, as a reconciler reports it."""
        cluster = self.store.entries["BrokerCluster/demo"].resource
        assert isinstance(cluster, BrokerCluster)
        for _ in range(2):
            self.store.record(cluster, "RestartBroker", "restart broker 0", warning=True)
        ready = merge(
            cluster.status.conditions, [no("Ready", "Rolling", "0 of 1")], generation=1, now_ms=NOW_MS
        )
        status = cluster.status.model_copy(update={"conditions": ready})
        asyncio.run(self.store.update_status(cluster, status))

    def state(self) -> State:
        found = asyncio.run(OfUp(self.data).read())
        return state_of(found.cluster, found.events, found.others)


@pytest.fixture
def up(tmp_path: Path) -> Up:
    return Up(tmp_path)


def test_conditions_and_events_are_those_of_ottla_up_also_after_its_restart(up: Up) -> None:
    up.roll()
    up.store = FolderStore(up.data / STATE, lambda: NOW_MS)
    up.sync()
    state = up.state()
    assert state.full_name == "demo"
    assert state.ready is not None
    assert (state.ready.status, state.ready.reason, state.ready.message) == ("False", "Rolling", "0 of 1")
    assert [(each.of, each.reason, each.warning) for each in state.events] == [
        ("BrokerCluster/demo", "RestartBroker", True)
    ]


def test_a_resource_that_was_never_valid_is_among_those_that_are_not_ready(up: Up) -> None:
    assert [(each.kind, each.name) for each in up.state().failing] == [
        ("Topic", "orders"),
        ("Topic", "wrong"),
    ]
    [wrong] = [each for each in up.state().resources if each.name == "wrong"]
    assert wrong.ready is not None
    assert "spec.partitions" in wrong.ready.message


def test_a_file_that_cannot_be_read_is_a_warning_until_it_can(up: Up) -> None:
    (up.files / "broken.yaml").write_text("{")
    up.sync()
    [warning] = up.state().warnings
    assert "broken.yaml" in warning
    (up.files / "broken.yaml").unlink()
    up.sync()
    assert up.state().warnings == ()


def test_the_pages_are_the_same_as_on_kubernetes(up: Up) -> None:
    up.roll()
    cluster = FakeCluster()
    cluster.up = up.data
    with cluster.console() as browser:
        overview = browser.get("/c/test/").text
        assert "Not ready: Rolling" in overview
        assert "restart broker 0" in overview
        page = browser.get("/c/test/resources").text
        assert "spec.partitions" in page


def test_a_folder_without_a_state_is_a_problem_and_the_rest_is_shown(tmp_path: Path) -> None:
    with pytest.raises(ReadingFailed, match="No such file"):
        asyncio.run(OfUp(tmp_path).read())
    cluster = FakeCluster()
    cluster.up = tmp_path
    with cluster.console() as browser:
        page = browser.get("/c/test/").text
    assert "No response: BrokerCluster of ottla up" in page
    assert "All partitions are in sync" in page
