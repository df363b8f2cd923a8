"""A Hadoop file system, used through the session's JVM.

Called on the driver by the commit log, checkpoints and ledgers. Works on every file system that renames
one file atomically (local disks, HDFS).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession


class FileSystem:
    """The operations that the jobs need of Hadoop's FileSystem. Paths may name any file system that Hadoop
    knows."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self._systems: dict[str, Any] = {}

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _of(self, path: str) -> Any:
        parts = urlsplit(path)
        root = f"{parts.scheme}://{parts.netloc}"
        if root not in self._systems:  # Hadoop's look-up takes longer than a rename
            self._systems[root] = self._path(path).getFileSystem(self._conf)
        return self._systems[root]

    def absolute(self, path: str) -> str:
        """The path with its scheme and without a trailing slash, as listings return it."""
        return str(self._of(path).makeQualified(self._path(path)).toString()).rstrip("/")

    def exists(self, path: str) -> bool:
        return bool(self._of(path).exists(self._path(path)))

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted; empty if the directory does not exist."""
        if not self.exists(directory):
            return []
        found = self._of(directory).listStatus(self._path(directory))
        # One call to the JVM for all names: a commit log has thousands.
        paths = self._jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(found)
        text = str(self._jvm.scala.Predef.genericWrapArray(paths).mkString("\n"))
        return sorted(line.rpartition("/")[2] for line in text.split("\n") if line)

    def walk(self, directory: str) -> Iterator[str]:
        """Every file below a directory."""
        if not self.exists(directory):
            return
        files = self._of(directory).listFiles(self._path(directory), True)
        while files.hasNext():
            yield str(files.next().getPath().toString())

    def read(self, path: str) -> str:
        stream = self._of(path).open(self._path(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        stream = self._of(path).create(self._path(path), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def make_directories(self, path: str) -> None:
        self._of(path).mkdirs(self._path(path))

    def rename(self, source: str, target: str) -> None:
        """Renames one file to a name that does not exist. Raises OSError."""
        if not self._of(source).rename(self._path(source), self._path(target)):
            raise OSError(f"cannot rename {source} to {target}")

    def remove(self, path: str) -> None:
        """Deletes a file, or a directory with its contents; does nothing if it does not exist."""
        self._of(path).delete(self._path(path), True)

    def size(self, path: str) -> int:
        return int(self._of(path).getFileStatus(self._path(path)).getLen())
