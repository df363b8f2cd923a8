"""Finds a Java for the embedded ZooKeeper.

Called by `ottla.local.zookeeper`, `ottla zookeeper` and `ottla up`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

JAVA_MIN: Final = 17
"""The version that Spark 4 requires; ZooKeeper requires less."""


class JavaUnusable(Exception):
    """Java is missing or too old; the message says what to do."""


def find_java() -> Path:
    """The `java` of JAVA_HOME, else of PATH, at version 17 or later. Raises JavaUnusable."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    if found is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on PATH"
        raise JavaUnusable(f"Java is missing: {where}. Install Java {JAVA_MIN} or 21, or set JAVA_HOME.")
    _check_version(found)
    return Path(found)


@cache
def _check_version(java: str) -> None:
    """Run `java -version`, once, since it takes a tenth of a second. Raises JavaUnusable."""
    ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=120, check=False)
    version = parse_java_version(ran.stderr + ran.stdout)
    if ran.returncode or version is None:
        raise JavaUnusable(f"{java} -version failed: {(ran.stderr or ran.stdout).strip()[:200]}")
    if version < JAVA_MIN:
        raise JavaUnusable(
            f"{java} is Java {version}; Java {JAVA_MIN} or 21 is needed. Set JAVA_HOME to one."
        )


def parse_java_version(text: str) -> int | None:
    """The major version in what `java -version` prints: 8 for "1.8.0_372", 17 for "17.0.15"."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2]) if major == 1 and match[2] else major
