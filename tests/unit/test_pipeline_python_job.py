"""`ottla-pipeline python`: which functions can be named, and what is said of the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from ottla_pipeline.config.common import ConfigError, validate
from ottla_pipeline.errors import JobStartError
from ottla_pipeline.jobs.python import PythonConfig, function_of

GOOD: dict[str, Any] = {"name": "mine", "kafka": {"bootstrap": "a:1"}, "checkpoint": "c"}
SOURCE = """
from dataclasses import dataclass

@dataclass
class Taxed:
    amount: "float"

def total(job):
    return Taxed(job).amount
"""


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ("shop.jobs:total", None),
        ("/opt/jobs/total.py:total", None),
        ("total.py:total", None),
        ("total", SOURCE),
    ],
)
def test_a_function_is_of_a_module_a_file_or_the_source(given: str, source: str | None) -> None:
    config = validate({**GOOD, "function": given, "source": source}, PythonConfig, "job.yaml")
    assert config.function == given


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ("total", None),
        ("shop.jobs:total", SOURCE),
        ("shop.jobs:", None),
        ("shop-jobs:total", None),
        ("a b", SOURCE),
    ],
)
def test_a_function_that_cannot_be_found_is_refused(given: str, source: str | None) -> None:
    with pytest.raises(ConfigError, match="function: "):
        validate({**GOOD, "function": given, "source": source}, PythonConfig, "job.yaml")


def test_functions_are_found_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_jobs.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop_jobs", raising=False)
    for name, source in (
        ("shop_jobs:total", None),
        (f"{tmp_path / 'shop_jobs.py'}:total", None),
        ("total", SOURCE),
    ):
        function: Any = function_of(name, source)
        assert function(3.5) == 3.5


def test_functions_of_a_file_reach_spark_without_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    text = cloudpickle.dumps(function_of(f"{file}:total", None))  # type: ignore[no-untyped-call]
    del sys.modules[function_of(f"{file}:total", None).__module__]
    assert cloudpickle.loads(text)(2.0) == 2.0


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("nowhere.to:be_found", None, "function: nowhere.to cannot be loaded: ModuleNotFoundError"),
        ("/nowhere.py:total", None, "function: /nowhere.py cannot be loaded: FileNotFoundError"),
        ("total", "def total(", "function: source cannot be loaded: SyntaxError"),
        ("total", "1 / 0", "function: source cannot be loaded: ZeroDivisionError"),
        ("total", "total = 5", "function: source has no function total"),
        ("totals", SOURCE, "function: source has no function totals"),
    ],
)
def test_a_function_that_is_not_there_is_told_with_the_reason(
    name: str, source: str | None, said: str
) -> None:
    with pytest.raises(JobStartError) as raised:
        function_of(name, source)
    assert str(raised.value).startswith(said)
