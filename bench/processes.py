"""CPU time and memory of processes, from /proc; the page cache before a measurement; processes that serve it.

Called by the benchmarks before and after a run, with all brokers of a side. `make_cold` syncs the written
pages of a file and drops them with POSIX_FADV_DONTNEED; it works for files that other processes have open.
The caches of other files (drop_caches) stay, so that other programs do not affect the measurement. Data in
the memory of a virtual machine's host cannot be dropped: "disk" means the guest's disk.

`touch_free_pages` is for virtual machines whose host takes free pages back (free page reporting): the first
touch of such a page costs 10 µs, where a write of 64 KiB to the page cache costs 15 µs otherwise. That
affects every broker alike and hides their ratio (docs/adr/0011).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click

from ottla.local.processes import ChildProcess, wait_until

_libc = ctypes.CDLL(None, use_errno=True)
_MADV_POPULATE_WRITE = 23
_TOUCHED_BYTES_MAX = 2 << 30
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """CPU time and memory of one or several processes."""

    cpu_s: float
    """User and system time of the whole processes so far."""
    kernel_s: float
    """The system time of it."""
    rss_mib: float
    pss_mib: float
    """RSS with each shared page divided by its users: three brokers count the interpreter's code once."""


def usage_of(pids: Iterable[int]) -> Usage:
    """The sum over the processes. Raises FileNotFoundError when one of them has ended."""
    cpu_s = kernel_s = rss_mib = pss_mib = 0.0
    for pid in pids:
        user, system = cpu_ticks(pid)
        kernel_s += system / _TICKS_PER_S
        cpu_s += (user + system) / _TICKS_PER_S
        rollup = parse_rollup(Path(f"/proc/{pid}/smaps_rollup").read_text())
        rss_mib += rollup["Rss"] / 1024
        pss_mib += rollup["Pss"] / 1024
    return Usage(cpu_s, kernel_s, rss_mib, pss_mib)


def cpu_s_of(pid: int) -> float:
    """CPU time of all threads, by the kernel's ticks. Raises FileNotFoundError after the process ended."""
    return sum(cpu_ticks(pid)) / _TICKS_PER_S


def cpu_ticks(pid: int) -> tuple[int, int]:
    """(user, system) clock ticks of a process."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(stat[11]), int(stat[12])


def main_thread_cpu_s(pid: int) -> float:
    """CPU time of the main thread, where a broker's event loop runs; in nanoseconds' precision."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def parse_rollup(text: str) -> dict[str, int]:
    """The fields of smaps_rollup, in KiB."""
    fields = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0])
    return fields


def touch_free_pages() -> None:
    """Allocate and free a sixth of the free memory, 2 GiB at most, so that the host backs its pages."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = min(free // 6, _TOUCHED_BYTES_MAX)
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        pages.madvise(_MADV_POPULATE_WRITE)


def make_cold(files: Iterable[Path]) -> None:
    """Write the files' pages to disk and drop them from memory; missing files are skipped."""
    for path in files:
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def resident_share(path: Path) -> float:
    """The share of the file's pages in memory (mincore), 0.0 to 1.0; reads no page."""
    size = path.stat().st_size
    if size == 0:
        return 0.0
    pages = -(-size // mmap.PAGESIZE)
    residency = (ctypes.c_ubyte * pages)()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE) as mapped:
        # A private mapping, because ctypes takes the address of writable buffers only; nothing is written.
        first = ctypes.c_ubyte.from_buffer(mapped)
        try:
            if _libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), residency):
                raise OSError(ctypes.get_errno(), "mincore failed", str(path))
        finally:
            del first
    return sum(flags & 1 for flags in residency) / pages


@contextmanager
def serving(name: str, command: Sequence[str], directory: Path) -> Iterator[tuple[int, int]]:
    """A process that calls `serve_at` with this directory: its id and port. Raises ClickException with its
    log if it ends before."""
    ready, log = directory / "ready", directory / f"{name}.log"
    process = ChildProcess(name, command, log=log)
    process.start()
    try:
        if not wait_until(lambda: ready.exists() or not process.running, timeout_s=30) or not ready.exists():
            raise click.ClickException(log.read_text())
        assert process.pid is not None
        yield process.pid, int(ready.read_text())
    finally:
        process.stop(timeout_s=20)


def serve_at(port: int, directory: Path) -> None:
    """Report to `serving` that this process accepts connections."""
    (directory / "port").write_text(str(port))
    (directory / "port").rename(directory / "ready")
