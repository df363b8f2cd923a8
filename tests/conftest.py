"""Fixtures and hooks of all tests: skips that fail CI, budgets of time, port ranges, Hypothesis' profile, a
fast-starting Spark.

With OTTLA_NO_SKIPS set, a skipped test fails the run, unless the reason is one of MAY_SKIP. Hypothesis
draws the same examples each time, however slow the machine is; with OTTLA_EXPLORE set, it looks for others.

A unit test has a second, a test beside other programs 20 s, without its fixtures. `@pytest.mark.budget(5)`
gives it another budget, and a comment beside it the reason; `grep -rn mark.budget tests` lists those.
Slower ones are listed at the end of the run. A unit test that uses three times its
budget of CPU time fails, times `slowdown`: that does not depend on the machine and what else it does.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from math import inf
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from ottla.simulation.loop import frozen
from tests import selection
from tests.worlds.clocks import slowdown

settings.register_profile(
    "ottla",
    deadline=None,
    derandomize="OTTLA_EXPLORE" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ottla")

BUDGETS_S = {"unit": 1.0, "interop": 20.0}
"""By folder of `tests`."""

CLIENTS = selection.ROOT / "tests/interop/clients"
OF_CLIENTS = "ignore:unclosed <socket:ResourceWarning"
"""kafka-python leaves sockets of connections that it gave up, which the collector finds in any later test.
What our own clients leave open there are transports, which are not ignored."""
SPREAD = "test_simulation_seeds.py"
"""The file whose tests both processes run."""

_while_tests_run = ExitStack()
MAY_SKIP = ("Docker", "this clone does not have")
"""How reasons begin that belong to the machine, or to a shallow clone, which lacks the last release."""
_skipped: list[str] = []
_slow: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Gives each pytest-xdist worker a port range of its own."""
    config.addinivalue_line("markers", "budget(seconds): how long the test may take, instead of the folder's")
    if _is_worker(config):
        worker = config.workerinput
        share, shares = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
        size = 10_000 // shares
        first = 10_000 + share % shares * size
        os.environ["OTTLA_PORTS"] = f"{first}-{first + size - 1}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """The tests of a file share its fixtures, and so run in one process; the simulation's have none."""

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if SPREAD in nodeid else super()._split_scope(nodeid)

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    folder = item.path.relative_to(selection.ROOT).parts[1]
    marked = item.get_closest_marker("budget")
    budget_s = marked.args[0] if marked else BUDGETS_S.get(folder, inf)
    began, used = time.monotonic(), time.process_time()
    yield
    took_s, used_s = time.monotonic() - began, time.process_time() - used
    if took_s > budget_s:
        item.user_properties.append(("slow", f"{took_s:.1f} s of {budget_s:g}"))
    if folder == "unit" and used_s > 3 * budget_s and used_s > 3 * budget_s * slowdown():
        pytest.fail(
            f"used {used_s:.1f} s of CPU time, and has a budget of {budget_s:g} s (tests/conftest.py)"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None:
        files = [Path(entry.path) for entry in call.excinfo.traceback]
        if packages := selection.at_fault(item.path, files):
            report.sections.append(("look first in", ", ".join(packages)))
    return report


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Binary data gives no name. Compressed data holds the second of the collection, and all processes must
    collect the same names."""
    return argname if isinstance(val, bytes) and not val.isascii() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(CLIENTS):
            item.add_marker(pytest.mark.filterwarnings(OF_CLIENTS))


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The sockets that other people's clients leave are collected before a test that they do not concern."""
    if item.path.is_relative_to(CLIENTS) and (nextitem is None or nextitem.path != item.path):
        gc.collect()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What pytest keeps of thousands of tests is not looked through by the collections of each simulation."""
    gc.collect()
    _while_tests_run.enter_context(frozen())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        _slow.extend(f"{value}: {report.nodeid}" for name, value in report.user_properties if name == "slow")
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not reason.startswith(MAY_SKIP):
            _skipped.append(f"{report.nodeid}: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    _while_tests_run.close()
    if os.environ.get("OTTLA_NO_SKIPS") and _skipped and exitstatus == 0 and not _is_worker(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _slow:
        terminalreporter.section("slower than their budget")
        for line in sorted(_slow, key=lambda line: -float(line.split()[0])):
            terminalreporter.write_line(line)
    if os.environ.get("OTTLA_NO_SKIPS") and _skipped:
        terminalreporter.section("skipped, where no skip is allowed", red=True)
        for line in _skipped:
            terminalreporter.write_line(line)


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """What a test file leaves open is collected, and reported, before the next file begins."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def quick_spark() -> Iterator[None]:
    """Sets JVM options that start fast for every Spark session from here on, also in child processes."""
    from tests.judges.sparks import SUBMIT_ARGS

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", SUBMIT_ARGS)
        yield


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
