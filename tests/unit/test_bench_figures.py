"""The side-by-side bench's own arithmetic, its reading of Kafka's tools, its tables, and its cold files."""

from __future__ import annotations

import io
import json
import os
import platform
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench import clients, requests, traffic
from bench.backlog import next_offset
from bench.interpreter import Build, build_of, say_interpreter
from bench.loads import LOADS, RECORD_BYTES, Consume, ProducePaced, chosen, scaled
from bench.page import write_page
from bench.processes import make_cold, parse_rollup, resident_share, usage_of
from bench.report import (
    Result,
    SideRuns,
    agree,
    as_json,
    as_markdown,
    machine,
    medians,
    ratios,
    results_table,
    spread,
)
from bench.runner import Plan, warm_up
from bench.tools import ToolFailed, consumed, produced
from ottla.local.processes import wait_until
from ottla.protocol.records import Record, build_batch

PRODUCED = """\
62500 records sent, 12497.5 records/sec (2.38 MB/sec), 1.2 ms avg latency, 300.0 ms max latency.
100000 records sent, 13245.033113 records/sec (2.53 MB/sec), 2.31 ms avg latency, 334.00 ms max latency, \
1 ms 50th, 9 ms 95th, 25 ms 99th, 91 ms 99.9th.
"""
CONSUMED = """\
start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, \
fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
2026-11-21 12:00:00:000, 2026-11-21 12:00:01:500, 19.0735, 12.7, 100000, 66666.7, 500, 1000, 19.1, 100000.0
"""


def test_three_runs_within_a_tenth_of_the_slowest_agree() -> None:
    assert agree([50.0, 100.0, 110.0, 105.0])
    assert not agree([100.0, 110.1, 105.0])
    assert not agree([100.0, 100.0])


def test_warming_up_ends_when_three_agree_or_patience_is_over() -> None:
    plan = Plan(runs=1, warm_runs_max=6)
    settling, runs = iter([10.0, 50.0, 90.0, 95.0, 98.0, 99.0]), SideRuns()
    warm_up(lambda: {"records_per_s": next(settling)}, runs, LOADS[0], plan)
    assert (len(runs.warm), runs.agreed) == (5, True)
    restless, runs = iter(float(2**n) for n in range(20)), SideRuns()
    warm_up(lambda: {"records_per_s": next(restless)}, runs, LOADS[0], plan)
    assert (len(runs.warm), runs.agreed) == (6, False)


def test_figures_are_medians_and_a_ratio_needs_both_of_its_figures() -> None:
    samples = [{"a": 1.0, "b": 0.0}, {"a": 9.0, "b": 0.0}, {"a": 2.0, "b": 0.0}]
    assert medians(samples) == {"a": 2.0, "b": 0.0}
    assert spread(samples, "a") == 8.0
    assert ratios({"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 4.0, "b": 0.0}) == {"a": 0.25}


def test_the_producers_last_line_counts() -> None:
    assert produced(PRODUCED, 100_000) == {
        "records_per_s": 13245.033113,
        "p50_ms": 1.0,
        "p99_ms": 25.0,
        "p999_ms": 91.0,
    }
    with pytest.raises(ToolFailed, match="did not send 100001"):
        produced(PRODUCED, 100_001)
    with pytest.raises(ToolFailed, match="TimeoutException"):
        produced("org.apache.kafka.common.errors.TimeoutException: …", 1)


def test_the_consumers_rate_leaves_out_the_groups_time() -> None:
    assert consumed(CONSUMED, 100_000) == {"records_per_s": 100_000.0}
    with pytest.raises(ToolFailed, match="did not read 100001"):
        consumed(CONSUMED, 100_001)
    with pytest.raises(ToolFailed, match="WARN"):
        consumed("WARN: Exiting before consuming the expected number of messages", 1)


def test_every_load_has_a_key_of_its_own_and_can_be_chosen() -> None:
    assert len({load.key for load in LOADS}) == len(LOADS)
    assert chosen(()) == list(LOADS)
    assert {load.key for load in chosen(("consume",))} == {"consume-memory", "consume-disk", "tls-consume"}
    assert {load.brokers for load in chosen(("RF 3",))} == {3}
    for load in LOADS:
        assert not isinstance(load.work, Consume | ProducePaced) or load.brokers == 1
    assert {load.floor for load in LOADS} - {""} == {load.name for load in requests.loads()}
    paced = next(load for load in LOADS if isinstance(load.work, ProducePaced) and load.work.backlog_mib)
    smaller = scaled(paced, 0.25).work
    assert isinstance(smaller, ProducePaced)
    assert smaller.backlog_mib == 256


def test_the_report_has_a_row_for_each_side_and_the_ratio() -> None:
    ours = SideRuns(
        agreed=True, samples=[{"records_per_s": 3000.0, "cpu_s_per_million": 1.5, "rss_mib": 40.0}]
    )
    theirs = SideRuns(samples=[{"records_per_s": 2000.0, "cpu_s_per_million": 3.0, "rss_mib": 400.0}])
    results = [Result(LOADS[0], {"Ottla": ours, "Kafka": theirs})]
    console = Console(width=150)
    with console.capture() as capture:
        console.print(results_table(results))
    rows = [line.split("│") for line in capture.get().splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in row[1:-1]] for row in rows]
    assert cells == [
        [LOADS[0].name, "Ottla", "3,000", "1.50", "40"],
        ["", "Kafka *", "2,000", "3.00", "400"],
        ["", "ratio", "1.50", "0.50", "0.10"],
    ]
    read = json.loads(json.dumps(as_json(results, machine())))
    assert read["loads"][0]["ratio"]["cpu_s_per_million"] == 0.5
    assert read["loads"][0]["sides"]["Kafka"]["warm_runs_agreed"] is False
    assert read["machine"]["cores"] == os.cpu_count()


def test_the_page_has_a_plot_for_each_figure_and_the_floor(tmp_path: Path) -> None:
    ours = {"records_per_s": 3000.0, "cpu_s_per_million": 1.5, "p99_ms": 2.5}
    theirs = {"records_per_s": 2000.0, "cpu_s_per_million": 3.0, "p99_ms": 5.0}
    runs = {"Ottla": SideRuns(samples=[ours]), "Kafka": SideRuns(samples=[theirs])}
    write_page(tmp_path, [Result(LOADS[0], runs, floor_cpu_s=0.5)], machine())
    page = (tmp_path / "benchmarks.md").read_text()
    for name in ("throughput", "cpu", "p99"):
        assert f"(benchmarks-{name}.svg)" in page
        assert LOADS[0].name in (tmp_path / f"benchmarks-{name}.svg").read_text()
    rows = [[cell.strip() for cell in row.split("|")] for row in page.splitlines()]
    assert ["", LOADS[0].name, "Ottla *", "3,000", "1.50", "2.5", "3.0", ""] in rows
    assert ["", "", "ratio", "1.50", "0.50", "0.50", "", ""] in rows


def test_latencies_have_percentiles_and_keyed_records_their_size() -> None:
    assert traffic.percentiles([float(n) for n in range(1, 1001)]) == {
        "p50_ms": 501.0,
        "p99_ms": 990.0,
        "p999_ms": 999.0,
    }
    values = traffic.keyed_values(100)
    assert {len(value) for value in values} == {RECORD_BYTES}
    assert len(set(values)) == 100


def test_a_task_is_the_same_after_its_command_line() -> None:
    task = traffic.Task("keyed", "127.0.0.1:9092,127.0.0.1:9093", "t", 48, 10, 1, ("linger.ms=5",), (1, 2))
    assert traffic.Task.parse(task.command()[-1]) == task
    assert (task.port, task.librdkafka["linger.ms"]) == (9092, "5")


def test_memory_and_cpu_time_of_processes_add_up() -> None:
    rollup = parse_rollup("55e0-7ffd ---p 00000000 00:00 0 [rollup]\nRss: 2048 kB\nPss: 1024 kB\n")
    assert rollup == {"Rss": 2048, "Pss": 1024}
    once, twice = usage_of([os.getpid()]), usage_of([os.getpid()] * 2)
    assert twice.rss_mib == pytest.approx(2 * once.rss_mib, rel=0.05)
    assert 0 < once.pss_mib <= once.rss_mib
    assert 0 <= once.kernel_s < once.cpu_s <= twice.cpu_s


def test_a_cold_file_is_out_of_memory_until_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(os.urandom(1 << 20))
    assert resident_share(file) == 1.0
    shares: list[float] = []

    def is_cold() -> bool:
        """What somebody just looks at or writes back stays: once more, then."""
        make_cold([file, tmp_path / "gone.log"])
        shares.append(resident_share(file))
        return shares[-1] < 0.05

    if not wait_until(is_cold, timeout_s=20) and set(shares) == {1.0}:
        pytest.skip("Docker or a tmpfs: this file system cannot let go of pages")
    assert shares[-1] < 0.05
    file.read_bytes()
    assert resident_share(file) == 1.0


def test_the_backlogs_reader_goes_on_after_the_last_whole_batch() -> None:
    batches = b"".join(
        build_batch([Record(i, 0, None, b"v") for i in range(count)], base_offset=base)
        for base, count in ((100, 10), (110, 5))
    )
    assert next_offset(memoryview(batches), 100) == 115
    assert next_offset(memoryview(batches[:-1]), 100) == 110
    assert next_offset(memoryview(b""), 100) == 100


def test_the_report_can_be_pasted_into_the_readme() -> None:
    runs = SideRuns(agreed=True, samples=[{"records_per_s": 3000.0}])
    console = Console(width=150)
    with console.capture() as capture:
        console.print(as_markdown(results_table([Result(LOADS[0], {"Ottla": runs, "Kafka": runs})])))
    head, rule, first, *_ = (line for line in capture.get().splitlines() if line.strip())
    assert [cell.strip() for cell in head.split("|")[1:-1]] == ["load", "broker", "records/s"]
    assert set(rule) <= set("|-: ")
    assert [cell.strip() for cell in first.split("|")[1:-1]] == [LOADS[0].name, "Ottla", "3,000"]


def test_clients_are_measured_beside_ours_and_its_predecessor(tmp_path: Path) -> None:
    chosen = clients.clients_to_measure("produce", ("ottla", "aiokafka"), tmp_path)
    assert [who.title for who in chosen] == [
        *("ottla (before)", "ottla", "ottla send_nowait (before)", "ottla send_nowait"),
        *("ottla blocking (before)", "ottla blocking", "aiokafka"),
    ]
    samples = {
        "ottla": [{"took_s": took_s, "cpu_s": 1.0, "rss_mib": 30.0} for took_s in (1.0, 2.0, 9.0)],
        "aiokafka": [{"took_s": 6.0, "cpu_s": 4.0, "rss_mib": 60.0}],
    }
    ours, theirs = clients.summary("produce", 100, 1_000_000, samples)
    assert (ours["records_per_s"], ours["cpu_s_per_million"], ours["rss_mib"]) == (500_000, 1.0, 30.0)
    assert (theirs["ours_times_as_fast"], theirs["ours_of_its_cpu"]) == (3.0, 0.25)
    console = Console(record=True, width=110, file=io.StringIO())
    console.print(clients.results_table([ours, theirs]))
    assert "3.00 ×" in console.export_text()


PYENV = {
    "CONFIG_ARGS": "'--prefix=/home/me/.pyenv/versions/3.13.0' '--enable-shared' 'LDFLAGS=-L/lib -Wl,-rpath'",
    "PGO_PROF_USE_FLAG": "-fprofile-use -fprofile-correction",
    "CFLAGS": "-fno-strict-overflow -Wsign-compare -DNDEBUG -g -O3 -Wall",
    "Py_DEBUG": 0,
}
DEBIAN = {
    "CONFIG_ARGS": "'--enable-shared' '--prefix=/usr' '--with-dbmliborder=bdb:gdbm' 'CFLAGS=-g   -Wformat '",
    "PGO_PROF_USE_FLAG": "",
    "CFLAGS": "-Wsign-compare -DNDEBUG -g -fwrapv -O2 -Wall",
    "Py_DEBUG": 0,
}


@pytest.mark.parametrize(
    ("variables", "build"),
    [
        (PYENV, Build(pgo=False, lto=False, debug=False)),
        ({**PYENV, "CFLAGS": "-O3 -fprofile-use=x.profdata"}, Build(pgo=True, lto=False, debug=False)),
        ({"CONFIG_ARGS": "--enable-optimizations --with-lto"}, Build(pgo=True, lto=True, debug=False)),
        ({"CONFIG_ARGS": "'--with-lto=thin'"}, Build(pgo=False, lto=True, debug=False)),
        ({"CONFIG_ARGS": "'--with-lto=no'"}, Build(pgo=False, lto=False, debug=False)),
        (DEBIAN, Build(pgo=True, lto=True, debug=False)),
        ({}, Build(pgo=False, lto=False, debug=False)),
        ({"CONFIG_ARGS": None}, Build(pgo=False, lto=False, debug=False)),
    ],
)
def test_a_build_is_what_its_configuration_says(variables: dict[str, Any], build: Build) -> None:
    assert build_of(variables) == build
    assert build.is_optimised == build.pgo
    assert not build_of({**variables, "Py_DEBUG": 1}).is_optimised


def test_an_unoptimised_build_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variables, warnings in ((PYENV, 1), (DEBIAN, 0)):
        monkeypatch.setattr(sysconfig, "get_config_vars", lambda variables=variables: variables)
        say_interpreter()
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"interpreter: CPython {platform.python_version()}, ")
        assert err.count("warning: this is not an optimised build") == warnings
