"""The paper's experiment: batches of exactly 50, what the clients print, and the table beside the paper's."""

from __future__ import annotations

import os

import pytest
from rich.console import Console

from bench.paper.__main__ import WORKS, Figure, results_table
from bench.paper.rabbitmq import average_rate
from bench.paper.systems import BATCH, BATCH_SIZE, MESSAGE_BYTES
from bench.tools import ToolFailed
from ottla.protocol.records import Record, build_batch

PERF_TEST = """\
id: test-1, time 1.000 s, sent: 7021 msg/s
id: test-1, sending rate avg: 8569 msg/s
id: test-1, receiving rate avg: 0 msg/s
"""


@pytest.mark.parametrize("ms_between", [0, 1, 5])
def test_batch_size_has_room_for_fifty_records_and_no_more(ms_between: int) -> None:
    def batch_bytes(count: int) -> int:
        value = os.urandom(MESSAGE_BYTES)
        return len(build_batch([Record(i, i * ms_between, None, value) for i in range(count)]))

    assert batch_bytes(BATCH) <= BATCH_SIZE < batch_bytes(BATCH + 1)


def test_the_average_rate_is_read_from_what_the_tool_prints() -> None:
    assert average_rate(PERF_TEST, "sending") == 8569
    with pytest.raises(ToolFailed, match="no receiving rate"):
        average_rate(PERF_TEST, "receiving")


def test_the_table_has_kafkas_share_and_the_papers_figures() -> None:
    work = WORKS[0].name
    figures = [Figure("Ottla", work, 30_000.0, 20.0, 40.0), Figure("Kafka", work, 20_000.0, 40.0, 400.0)]
    console = Console(width=150)
    with console.capture() as capture:
        console.print(results_table(figures))
    rows = [line.split("│") for line in capture.get().splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row[1:-1]] for row in rows] == [
        [work, "Ottla", "30,000", "1.50", "20.00", "40", ""],
        ["", "Kafka", "20,000", "1.00", "40.00", "400", "50,000"],
    ]
