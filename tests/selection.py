"""Which test files the targets of the Makefile run.

    python -m tests.selection core               `make test`
    python -m tests.selection unit [BASE]        `make check`: unit tests of what changed since BASE
    python -m tests.selection changed [BASE]     `make test-changed`: interop tests of what changed
    python -m tests.selection shard [NAME]       `make interop`: a shard, or all
    python -m tests.selection record XML...      writes tests/durations.txt from JUnit reports of all tests

`unit` chooses the test files that changed, and those that import a changed module; `changed` the files of
tests/interop that changed, and those whose names match an area of AREAS, except for those of `make test`.
Both rank files by the number of changed lines, and print them while their durations fit into the budget of
the command; what does not fit is listed on standard error. Without BASE, the change is what `origin/main`
lacks; in a clone whose main is that very commit, it is the commits of the four hours before it. Files that
are not committed belong to the change.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
DURATIONS = ROOT / "tests/durations.txt"
SOURCES = ("client", "broker", "operator", "pipeline", "console")
WORKERS = 2
BUDGETS_S = {"unit": 25.0 * WORKERS, "changed": 240.0 * WORKERS}
"""Of all chosen files together; they run in WORKERS processes."""
UNKNOWN_S = 30.0
"""Counted for a file without a recorded duration."""

CORE = (
    # Spark, the schema registry
    "tests/interop/spark/test_pipeline_decoding.py",
    "tests/interop/spark/test_pipeline_command.py",
    "tests/interop/registry/test_pipeline_registry.py",
    # Apache Kafka as a peer, its tools and classes
    "tests/interop/kafka/test_controller_java_brokers.py",
    "tests/interop/kafka/test_groups_like_kafka.py",
    "tests/interop/java/test_kafka_tools.py",
    "tests/interop/java/test_protocol_table.py",
    "tests/interop/java/test_protocol_oracles.py",
    "tests/interop/java/test_records_java.py",
    "tests/interop/java/test_quota_arithmetic_like_kafka.py",
    "tests/interop/java/test_storage_dump_log_segments.py",
    # Clients: Java, 0.8.2, librdkafka, kcat, kafka-python, aiokafka, our own
    "tests/interop/java/test_client_and_java.py",
    "tests/interop/java/test_clients_082.py",
    "tests/interop/clients/test_consumer_clients.py",
    "tests/interop/clients/test_single_broker.py",
    "tests/interop/clients/test_kcat.py",
    "tests/interop/java/test_transactions_clients.py",
    "tests/interop/clients/test_secure_clients.py",
    "tests/interop/clients/test_client_tutorial.py",
    # ZooKeeper, the command line, the development broker, hostile input
    "tests/interop/zookeeper/test_metadata_store_contract.py",
    "tests/interop/clients/test_cli.py",
    "tests/interop/clients/test_dev_broker.py",
    "tests/interop/own/test_pytest_plugin.py",
    "tests/interop/own/test_get_started_tests.py",
    "tests/interop/clients/test_metrics.py",
    "tests/interop/prometheus/test_dashboards.py",
    "tests/interop/own/test_fuzzed_requests.py",
    # Whole simulated clusters
    "tests/unit/test_simulation_seeds.py",
    "tests/unit",
)
"""The arguments of `make test`: each part of the system and each family of oracles once. The long files come
first, so that both processes end together. A test that is known to fail by chance is not here until it is
repaired."""

AREAS: Mapping[str, tuple[str, ...]] = {
    "broker/ottla/cli": ("cli", "completion", "kafka_tools", "kafka_admin_tools", "tools_like"),
    "client/ottla/client": ("client_", "clients", "consumer", "admin", "assignors"),
    "client/ottla/client/legacy": ("082", "older"),
    "broker/ottla/controller": ("controller", "log_dirs"),
    "broker/ottla/coordinators": ("group", "consumer_clients"),
    "broker/ottla/coordinators/transactions": ("transactions",),
    "broker/ottla/dev": ("dev_broker", "pytest_plugin"),
    "broker/ottla/local": ("broker_life",),
    "broker/ottla/metadata": (
        "metadata",
        "configs",
        "dynamic_settings",
        "policies",
        "zookeeper",
        "stored_passwords",
        "inter_broker",
    ),
    "client/ottla/protocol": ("protocol", "records", "fuzzed"),
    "broker/ottla/quotas": ("quota",),
    "broker/ottla/replication": ("divergence", "follower_fetch", "log_dirs"),
    "client/ottla/security": ("secur", "acls", "authorizer", "oauth"),
    "broker/ottla/server": (
        *("fuzzed", "hostile", "fetch_sessions", "records_like", "admin_like", "security_like", "oauth_like"),
        *("single_broker", "large_requests", "kcat", "broker_life"),
    ),
    "broker/ottla/server/handlers/transactions": ("transactions",),
    "broker/ottla/server/handlers/groups": ("group",),
    "broker/ottla/server/metrics": ("metrics", "dashboards", "traces"),
    "broker/ottla/server/logs": ("compaction", "page_cache_reader", "disks", "bombs"),
    "client/ottla/wire": ("secur", "clients", "controller", "oauth"),
    "broker/ottla/storage": (
        "storage",
        "records",
        "page_cache_reader",
        "disks",
        "formats",
        "bombs",
    ),
    "broker/ottla/storage/cleaner": ("compaction",),
    "broker/ottla/testing": ("dev_broker", "pytest_plugin"),
    "operator/ottla_operator": ("up_", "backup", "crds", "operator_connect"),
    "console/ottla_console": ("console",),
    "operator/ottla_operator/kubernetes/metrics": ("dashboards",),
    "docs/get-started": ("get_started",),
    "docs/tutorials": ("tutorial",),
    "examples": ("example",),
    "charts": ("dashboards", "alerts"),
    "client/ottla/extras": ("base_install",),
    "pyproject.toml": ("base_install", "dist"),
    "release": ("dist",),
    "pipeline/ottla_pipeline/command": ("pipeline_command",),
    "pipeline/ottla_pipeline/auditing": ("audit",),
    "pipeline/ottla_pipeline/completeness": ("audit", "compare"),
    "pipeline/ottla_pipeline/decoding": ("decoding", "lake_schemas"),
    "pipeline/ottla_pipeline/lake": ("lake",),
    "pipeline/ottla_pipeline/mirroring": ("mirror",),
    "pipeline/ottla_pipeline/registry": ("registry", "lake_schemas", "pipeline_secured"),
    "pipeline/ottla_pipeline/jobs/python": ("pipeline_streams", "up_python"),
    "pipeline/ottla_pipeline/sinks": ("pipeline_streams", "windows"),
    "pipeline/ottla_pipeline/streams": ("pipeline_streams", "windows", "up_python"),
    "pipeline/ottla_pipeline/windowing": ("windows",),
}
"""Source folder (or the beginning of a file's path) → parts of the names of test files that exercise it."""


def interop_files(shard: str = "*") -> list[str]:
    """The files of a shard, which is a folder of tests/interop; of all by default."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/interop").glob(f"{shard}/test_*.py"))


def shards() -> list[str]:
    return sorted({Path(file).parent.name for file in interop_files()})


def slow_files() -> list[str]:
    """The files of tests/interop that `make test` leaves out."""
    return [file for file in interop_files() if file not in CORE]


def ranked(changed_lines: Mapping[str, int], candidates: Iterable[str]) -> list[str]:
    """The candidates that the change concerns by their names, first the one that it concerns most."""
    area_lines = {
        area: sum(lines for path, lines in changed_lines.items() if path.startswith(area)) for area in AREAS
    }

    def lines(file: str) -> int:
        name = Path(file).stem.removeprefix("test_")
        return sum(area_lines[area] for area, parts in AREAS.items() if any(part in name for part in parts))

    return _by_lines(changed_lines, {file: lines(file) for file in candidates})


def importing(changed_lines: Mapping[str, int], candidates: Iterable[str]) -> list[str]:
    """The candidates that import a changed file, first the one with most changed lines. A test also has the
    imports of the files in `tests` that it imports."""
    by_module = {_module(Path(path)): lines for path, lines in changed_lines.items() if path.endswith(".py")}
    return _by_lines(
        changed_lines,
        {file: sum(by_module.get(name, 0) for name in imports(ROOT / file)) for file in candidates},
    )


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[1:] if parts[0] in SOURCES else parts).removesuffix(".__init__")


def at_fault(test: Path, traceback: Sequence[Path]) -> list[str]:
    """The packages in which the cause of a failure probably is: that of the innermost of our files in its
    traceback, else those that the test's name says, by AREAS."""
    for file in reversed(traceback):
        if file.is_relative_to(ROOT) and (path := file.relative_to(ROOT)).parts[0] in SOURCES:
            return [str(path.parent)]
    name = test.stem.removeprefix("test_")
    return [area for area, parts in AREAS.items() if any(part in name for part in parts)]


def _by_lines(changed_lines: Mapping[str, int], lines: Mapping[str, int]) -> list[str]:
    scores = {file: (file in changed_lines, lines[file]) for file in lines}
    return sorted((file for file in scores if any(scores[file])), key=lambda file: scores[file], reverse=True)


@cache
def imports(file: Path) -> frozenset[str]:
    """The modules that a file imports at any place, and what is imported from them, which may be modules."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names):
                found.update(alias.name for alias in names)
            case ast.ImportFrom(str(module), names):
                found.add(module)
                found.update(f"{module}.{alias.name}" for alias in names)
    for name in [name for name in found if name.startswith("tests.")]:
        helper = ROOT / (name.replace(".", "/") + ".py")
        if helper.exists() and helper != file:
            found |= imports(helper)
    return frozenset(found)


def within_budget(files: Iterable[str], durations: Mapping[str, float], budget_s: float) -> list[str]:
    """The files, in their order, that fit into the budget one after the other."""
    chosen: list[str] = []
    for file in files:
        duration_s = durations.get(file, UNKNOWN_S)
        if duration_s <= budget_s:
            budget_s -= duration_s
            chosen.append(file)
    return chosen


def read_durations() -> dict[str, float]:
    lines = DURATIONS.read_text().splitlines()
    return {file: float(seconds) for seconds, file in (line.split() for line in lines)}


def durations_of(*junit_xml: str) -> dict[str, float]:
    """Seconds by test file, of the reports of runs."""
    durations: dict[str, float] = {}
    for report in junit_xml:
        for case in ElementTree.fromstring(report).iter("testcase"):
            words = case.attrib["classname"].split(".")
            module = next(i for i, word in enumerate(words) if word.startswith("test_"))
            file = "/".join(words[: module + 1]) + ".py"
            durations[file] = durations.get(file, 0.0) + float(case.attrib["time"])
    return durations


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def base_of_change() -> str:
    head, landed = _git("rev-parse", "HEAD"), _git("merge-base", "HEAD", "origin/main")
    if landed and landed != head:
        return landed
    before = int(_git("log", "-1", "--format=%ct")) - 4 * 3600
    return _git("rev-list", "-1", f"--before={before}", "HEAD") or _git("rev-list", "--max-parents=0", "HEAD")


def lines_changed_since(base: str) -> dict[str, int]:
    """Added and deleted lines by path; 1 for a binary file."""
    changed: dict[str, int] = {}
    for row in _git("diff", "--numstat", "--no-renames", base).splitlines():
        added, deleted, path = row.split("\t")
        changed[path] = 1 if added == "-" else int(added) + int(deleted)
    for path in _git("ls-files", "--others", "--exclude-standard").splitlines():
        changed[path] = 1
    return {path: lines for path, lines in changed.items() if (ROOT / path).exists()}


def main(arguments: list[str]) -> None:
    match arguments:
        case ["core"]:
            print(*CORE)
        case ["unit" | "changed" as command, *base] if len(base) < 2:
            lines = lines_changed_since(base[0] if base else base_of_change())
            if command == "unit":
                files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests/unit").glob("test_*.py")]
                concerned = importing(lines, sorted(files))
            else:
                concerned = ranked(lines, slow_files())
            chosen = within_budget(concerned, read_durations(), BUDGETS_S[command])
            left_out = [file for file in concerned if file not in chosen]
            if left_out:
                print(
                    "the change also concerns, and there is no time for:",
                    *left_out,
                    sep="\n  ",
                    file=sys.stderr,
                )
            print(*chosen)
        case ["shard", *names] if set(names) <= set(shards()):
            durations = read_durations()
            files = [file for name in names or ["*"] for file in interop_files(name)]
            print(*sorted(files, key=lambda file: -durations.get(file, UNKNOWN_S)))
        case ["shard", *names]:
            raise SystemExit(
                f"no shard {' '.join(sorted(set(names) - set(shards())))}: {', '.join(shards())}"
            )
        case ["record", _, *_]:
            durations = durations_of(*(Path(path).read_text() for path in arguments[1:]))
            DURATIONS.write_text("".join(f"{durations[file]:.1f} {file}\n" for file in sorted(durations)))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
