"""What a broker for development is configured with: Kafka's defaults, but for what one broker needs, or needs
to be quick. Called by ottla.dev.serve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

BROKER_ID: Final = 0
SETTINGS: Final = {
    "broker.id": str(BROKER_ID),
    "controlled.shutdown.enable": "false",  # nobody is there to take over
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
}


def properties(host: str, port: int, data: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Of the broker that listens on `host` and `port` (0: any), its logs under `data`; `given` wins."""
    return {**SETTINGS, "listeners": f"PLAINTEXT://{host}:{port}", "log.dirs": str(data / "logs"), **given}
