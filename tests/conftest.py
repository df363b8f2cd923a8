"""Fixtures and hooks of all tests: skips that fail CI, port ranges, Hypothesis' profile, a fast-starting
Spark.

With OTTLA_NO_SKIPS set, a skipped test fails the run, unless the reason starts with "Docker". Hypothesis
draws the same examples each time, however slow the machine is; with OTTLA_EXPLORE set, it looks for others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ottla",
    deadline=None,
    derandomize="OTTLA_EXPLORE" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ottla")

_skipped: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Gives each pytest-xdist worker a port range of its own."""
    if _is_worker(config):
        worker = config.workerinput
        share, shares = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
        size = 10_000 // shares
        first = 10_000 + share % shares * size
        os.environ["OTTLA_PORTS"] = f"{first}-{first + size - 1}"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not reason.startswith("Docker"):
            _skipped.append(f"{report.nodeid}: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if os.environ.get("OTTLA_NO_SKIPS") and _skipped and exitstatus == 0 and not _is_worker(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if os.environ.get("OTTLA_NO_SKIPS") and _skipped:
        terminalreporter.section("skipped, where no skip is allowed", red=True)
        for line in _skipped:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def quick_spark() -> Iterator[None]:
    """Sets JVM options that start fast for every Spark session from here on, also in child processes."""
    from tests.judges.sparks import SUBMIT_ARGS

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", SUBMIT_ARGS)
        yield


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
