"""The state of the page cache before a measurement: files that are not in it, free pages that were touched.

Called by the benchmarks before each sample. `make_cold` syncs the written pages of a file and drops them with
POSIX_FADV_DONTNEED; it works for files that other processes have open. The caches of other files
(drop_caches) stay, so that other programs do not affect the measurement. Data in the memory of a virtual
machine's host cannot be dropped: "disk" means the guest's disk.

`touch_free_pages` is for virtual machines whose host takes free pages back (free page reporting): the first
touch of such a page costs 10 µs, where a write of 64 KiB to the page cache costs 15 µs otherwise. That
affects every broker alike and hides their ratio (docs/adr/0011).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_MADV_POPULATE_WRITE = 23
_TOUCHED_BYTES_MAX = 2 << 30


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
