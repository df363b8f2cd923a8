"""What the pipeline's jobs are told, and what they say when told wrong."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ottla_pipeline import prefetch, spark


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("no such command", None),
    ],
)
def test_the_version_of_java_is_read(text: str, version: int | None) -> None:
    assert spark.parse_java_version(text) == version


def java_that_says(text: str, folder: Path) -> str:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    java.chmod(0o755)
    return str(java)


def test_a_fitting_java_is_found_by_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = java_that_says('openjdk version "21.0.1"', tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert spark.check_java() == java


def test_an_old_java_is_refused_with_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that_says('openjdk version "11.0.2"', tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(spark.JavaMissing, match=r"Java 17 or 21, but .* is 11"):
        spark.check_java()


def test_no_java_is_told_apart_from_a_wrong_java_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(spark.JavaMissing, match="no java on PATH"):
        spark.check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(spark.JavaMissing, match="JAVA_HOME"):
        spark.check_java()


def test_prefetched_jars_spare_the_resolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_IVY_HOME", str(tmp_path))
    assert "spark.jars.packages" in spark.package_settings()
    assert spark.EXTRAS["sqlite"] in spark.package_settings(["sqlite"])["spark.jars.packages"]
    jar = tmp_path / "connector.jar"
    jar.touch()
    spark.jar_list().write_text(f"{jar}\n")
    assert spark.package_settings() == {"spark.jars": str(jar)}
    extra = tmp_path / spark.jar_name(spark.EXTRAS["sqlite"])
    extra.touch()
    spark.jar_list().write_text(f"{jar}\n{extra}\n")
    assert spark.package_settings() == {"spark.jars": str(jar)}, "a job has those that it names"
    assert spark.package_settings(["sqlite"]) == {"spark.jars": f"{jar},{extra}"}
    jar.unlink()
    assert "spark.jars.packages" in spark.package_settings()


def test_jars_that_were_installed_again_need_another_archive_of_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "spark-core.jar"
    jar.touch()
    monkeypatch.setattr(spark, "spark_jars", lambda: tmp_path)
    java = str(tmp_path / "java/bin/java")
    archive = spark.class_archive(java)
    assert spark.class_archive(java) == archive
    os.utime(jar, (1, 1))
    assert spark.class_archive(java) != archive


def test_an_archive_of_classes_replaces_those_of_other_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "ottla-classes" / "spark-1.jsa"

    def write(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        Path(command[-1]).touch()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(prefetch, "class_archive", lambda java: archive)
    monkeypatch.setattr(prefetch, "check_java", lambda: "java")
    monkeypatch.setattr(prefetch.subprocess, "run", write)
    archive.parent.mkdir()
    kept, replaced = archive.with_name("zookeeper-2.jsa"), archive.with_name("spark-2.jsa")
    kept.touch()
    replaced.touch()
    assert prefetch.create_class_archive() == archive
    assert set(archive.parent.iterdir()) == {archive, kept}
