"""The rules by which `make check` and `.ci/run` choose the test files that a change concerns."""

from __future__ import annotations

from pathlib import Path

from tests.selection import (
    AREAS,
    CORE,
    ROOT,
    at_fault,
    durations_of,
    importing,
    imports,
    interop_files,
    ranked,
    slow_files,
    within_budget,
)


def test_every_path_of_the_rule_exists() -> None:
    assert [path for path in CORE if not (ROOT / path).exists()] == []
    assert [area for area in AREAS if not list(ROOT.glob(f"{area}*"))] == []


def test_every_part_of_a_name_matches_a_test_file() -> None:
    names = [Path(file).stem for file in interop_files()]
    unmatched = [
        part for parts in AREAS.values() for part in parts if not any(part in name for name in names)
    ]
    assert unmatched == []


def test_every_slow_file_is_in_some_area() -> None:
    parts = [part for area in AREAS.values() for part in area]
    assert [file for file in slow_files() if not any(part in Path(file).stem for part in parts)] == []


def test_a_test_file_that_changed_comes_first_and_others_by_lines_changed_in_their_area() -> None:
    changed = {
        "broker/ottla/quotas/budget.py": 3,
        "pipeline/ottla_pipeline/lake/tables.py": 50,
        "tests/interop/a/test_metrics.py": 1,
        "README.md": 900,
    }
    candidates = [f"tests/interop/a/test_{name}.py" for name in ("cli", "quotas", "pipeline_lake", "metrics")]
    assert ranked(changed, candidates) == [
        "tests/interop/a/test_metrics.py",
        "tests/interop/a/test_pipeline_lake.py",
        "tests/interop/a/test_quotas.py",
    ]


def test_a_unit_test_is_chosen_if_it_or_what_it_imports_has_changed() -> None:
    changed = {"broker/ottla/quotas/rates.py": 3, "tests/unit/test_logs.py": 1}
    files = [f"tests/unit/test_{name}.py" for name in ("selection", "logs", "quotas_clients")]
    assert importing({"tests/selection.py": 1}, files) == ["tests/unit/test_selection.py"]
    assert importing(changed, files) == ["tests/unit/test_logs.py", "tests/unit/test_quotas_clients.py"]


def test_a_test_also_has_the_imports_of_the_helpers_that_it_imports() -> None:
    helper = {"tests/worlds/storage_logs.py": 1}
    files = ["tests/unit/test_storage_recovery.py", "tests/unit/test_logs.py"]
    assert importing(helper, files) == ["tests/unit/test_storage_recovery.py"]
    assert "ottla.storage.log" in imports(ROOT / "tests/unit/test_storage_recovery.py")


def test_a_file_that_does_not_fit_into_the_budget_leaves_its_room_to_the_next() -> None:
    assert within_budget(["a", "b", "c"], {"a": 10.0, "b": 100.0, "c": 5.0}, 20.0) == ["a", "c"]


def test_a_failure_names_the_package_of_its_traceback_or_those_of_the_tests_name() -> None:
    test = ROOT / "tests/interop/kafka/test_quotas_like_kafka.py"
    inner = [test, ROOT / "broker/ottla/storage/log.py", Path("/usr/lib/python3/asyncio/tasks.py")]
    assert at_fault(test, inner) == ["broker/ottla/storage"]
    assert at_fault(test, [test]) == ["broker/ottla/quotas"]


def test_durations_are_summed_by_file() -> None:
    report = """<testsuites><testsuite>
        <testcase classname="tests.interop.clients.test_cli" name="one" time="1.5"/>
        <testcase classname="tests.interop.clients.test_cli.TestGroup" name="two" time="2"/>
        <testcase classname="tests.unit.test_frames" name="three" time="0.25"/>
    </testsuite></testsuites>"""
    assert durations_of(report) == {
        "tests/interop/clients/test_cli.py": 3.5,
        "tests/unit/test_frames.py": 0.25,
    }
