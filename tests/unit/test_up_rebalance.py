"""`ottla up rebalance`: requests through the data folder of a running `ottla up`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.common import REBALANCE_ANNOTATION
from ottla_operator.resources.loading import load_folder
from ottla_operator.resources.rebalance import RebalanceProposal, RebalanceStatus
from ottla_operator.up.command import lock_data_folder, up
from ottla_operator.up.store import REQUESTS, STATE, FolderStore

KEY = "BrokerCluster/demo"
PROPOSAL = RebalanceProposal(
    id="rebalance-7",
    reason="HotSpot",
    created_at="2026-01-01T00:00:00Z",
    partitions=2,
    replicas=1,
    leaders=1,
    bytes=10,
    score_before=60,
    score_after=100,
)


class Running:
    """An `ottla up` over a data folder, without its reconciliations."""

    def __init__(self, path: Path) -> None:
        self.files, self.data = path / "files", path / "data"
        self.files.mkdir()
        self.lock = lock_data_folder(self.data)
        self.store = FolderStore(self.data / STATE, lambda: 1_700_000_000_000)
        self.write()

    def write(self, **annotations: str) -> None:
        metadata = {"name": "demo", "annotations": annotations}
        content = {
            "apiVersion": "ottla.dev/v1alpha1",
            "kind": "BrokerCluster",
            "metadata": metadata,
            "spec": {"replicas": 1},
        }
        (self.files / "cluster.yaml").write_text(yaml.safe_dump(content))
        self.sync()

    def sync(self) -> None:
        self.store.sync(load_folder(self.files))

    def cluster(self) -> BrokerCluster:
        cluster = self.store.entries[KEY].resource
        assert isinstance(cluster, BrokerCluster)
        return cluster

    def propose(self) -> None:
        status = RebalanceStatus(phase="Proposed", proposal=PROPOSAL, message="waits")
        cluster = self.cluster()
        updated = cluster.status.model_copy(update={"rebalance": status})
        asyncio.run(self.store.update_status(cluster, updated))

    def request(self) -> str:
        self.sync()
        return self.cluster().metadata.annotations.get(REBALANCE_ANNOTATION, "")

    def invoke(self, *arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(up, ["rebalance", "--data", str(self.data), *arguments])
        return result.exit_code, result.output


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.lock.close()


def test_the_proposal_in_the_state_is_printed(running: Running) -> None:
    assert running.invoke() == (0, "no rebalance\n")
    running.propose()
    code, output = running.invoke()
    assert code == 0
    assert "proposal     rebalance-7" in output


def test_an_approval_and_a_cancellation_reach_the_resource_over_restarts(running: Running) -> None:
    running.propose()
    assert running.invoke("--approve", "rebalance-6")[0] == 1
    assert running.request() == ""
    code, output = running.invoke("--approve", "rebalance-7")
    assert (code, f"ottla up rebalance --data {running.data} shows" in output) == (0, True)
    assert running.request() == "approve:rebalance-7"
    running.store = FolderStore(running.data / STATE, lambda: 1_700_000_000_000)
    assert running.request() == "approve:rebalance-7"
    assert running.invoke("--cancel")[0] == 0
    assert running.request() == "cancel:rebalance-7"


def test_an_annotation_in_the_file_goes_before_the_command_which_says_so(running: Running) -> None:
    running.propose()
    running.write(**{REBALANCE_ANNOTATION: "approve:rebalance-1"})
    code, output = running.invoke("--cancel")
    assert (code, "remove it from the file" in output) == (1, True)
    assert running.request() == "approve:rebalance-1"


def test_a_broken_file_of_requests_is_no_request(running: Running) -> None:
    (running.data / REQUESTS).write_text("{")
    assert running.request() == ""


def test_without_a_running_ottla_up_there_is_an_error(running: Running) -> None:
    running.lock.close()
    code, output = running.invoke()
    assert (code, "no `ottla up` runs" in output) == (1, True)


def test_ottla_up_without_a_subcommand_needs_files() -> None:
    result = CliRunner().invoke(up, [])
    assert result.exit_code == 2
    assert "--files" in result.output
