"""Detection of Java, and the errors without a usable one."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla.local import zookeeper
from ottla.local.processes import StartFailed, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper, JavaUnusable, find_java, parse_java_version
from tests.judges.faults import has_ended


@pytest.mark.parametrize(
    ("printed", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_372"', 8),
        ("no version at all", None),
    ],
)
def test_the_major_version_is_read(printed: str, major: int | None) -> None:
    assert parse_java_version(printed) == major


def fake_java(home: Path, version: str, more: str = "") -> None:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{more}\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)


def hanging(home: Path) -> str:
    """Commands that ignore SIGTERM and do not end, in a child process whose id is in the file `pid`."""
    return f"trap '' TERM\nsleep 600 &\necho $! > {home}/part && mv {home}/part {home}/pid\nwait"


def child_of(home: Path) -> int:
    assert wait_until((home / "pid").exists, timeout_s=60)
    return int((home / "pid").read_text())


def test_java_home_without_java_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaUnusable, match=f"JAVA_HOME={tmp_path} has no bin/java"):
        find_java()


def test_no_java_at_all_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaUnusable, match="no java on PATH"):
        find_java()


def test_an_old_java_is_refused_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaUnusable, match="is Java 11; Java 17 or 21 is needed"):
        find_java()


def test_a_suitable_java_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == tmp_path / "bin" / "java"


def test_a_java_that_does_not_answer_is_refused_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, "17.0.15", hanging(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(zookeeper, "VERSION_TIMEOUT_S", 0.2)
    with pytest.raises(JavaUnusable, match=r"java -version did not end within 0.2 s"):
        find_java()
    child = child_of(tmp_path)
    assert wait_until(lambda: has_ended(child), timeout_s=60)


def test_a_start_that_is_abandoned_kills_a_java_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, "17.0.15", f'if [ "$1" != -version ]; then {hanging(tmp_path)}; fi')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(zookeeper, "ABANDONED_GRACE_S", 0.1)
    server = EmbeddedZooKeeper(tmp_path / "data")
    with ThreadPoolExecutor(1) as thread:
        start = thread.submit(server.start, timeout_s=600)
        child = child_of(tmp_path)
        server.abandon_start()
        with pytest.raises(StartFailed):
            start.result(60)
    assert wait_until(lambda: has_ended(child), timeout_s=60)
    assert not server.running
    with pytest.raises(StartFailed):
        server.start()
    server.stop()


def test_jars_that_were_installed_again_need_another_archive_of_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "zookeeper-3.jar"
    jar.touch()
    monkeypatch.setattr(zookeeper, "spark_jars", lambda: tmp_path)
    java = tmp_path / "java/bin/java"
    archive = zookeeper.class_archive(java)
    assert zookeeper.class_archive(java) == archive
    os.utime(jar, (1, 1))
    assert zookeeper.class_archive(java) != archive
