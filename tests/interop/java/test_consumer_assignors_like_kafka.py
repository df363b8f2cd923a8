"""The consumer's assignors decide as those of Kafka's Java client, told in Kafka's own bytes."""

from __future__ import annotations

from pathlib import Path

from tests.assignor_cases import Case, scenario, shown
from tests.judges.kafka_tools import run_program
from tests.oracles import needs_kafka_jars

GROUPS = 1500


def decided_by_kafka(cases: list[Case], directory: Path) -> list[str]:
    needs_kafka_jars()
    asked = directory / "cases"
    asked.write_text("".join(case.line() + "\n" for case in cases))
    return run_program("Assignors", str(asked)).splitlines()


def test_assignors_have_kafkas_assignments(tmp_path: Path) -> None:
    cases = [case for seed in range(GROUPS) for case in scenario(seed)]
    kafkas = decided_by_kafka(cases, tmp_path)
    assert len(kafkas) == len(cases)
    assert not any(line.startswith("failed") for line in kafkas)
    different = [
        f"{case.line()}\n  Kafka: {kafka}\n  ours:  {shown(case.decide())}"
        for case, kafka in zip(cases, kafkas, strict=True)
        if kafka != shown(case.decide())
    ]
    assert not different, f"{len(different)} of {len(cases)}:\n" + "\n".join(different[:3])
