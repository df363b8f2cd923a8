"""Making files cold: out of the page cache, and the proof of it.

Called by the bench for reads from disk. One process may do so for files that others hold open: written pages
are synced first, then POSIX_FADV_DONTNEED lets go of them. The whole machine's caches (drop_caches) are left
alone, so that neighbours are not measured too. What a virtual machine's host keeps in its own memory is out
of reach: "disk" here is what the guest sees as one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)


def make_cold(files: Iterable[Path]) -> None:
    """Write the files' pages to disk and drop them from memory; files that are gone are passed over."""
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
    """Which part of the file's pages is in memory (mincore). Looking does not bring them there."""
    size = path.stat().st_size
    if size == 0:
        return 0.0
    pages = -(-size // mmap.PAGESIZE)
    seen = (ctypes.c_ubyte * pages)()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE) as mapped:
        # mmap is mapped privately, so that ctypes may take its address; nothing is written.
        first = ctypes.c_ubyte.from_buffer(mapped)
        try:
            if _libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), seen):
                raise OSError(ctypes.get_errno(), "mincore failed", str(path))
        finally:
            del first
    return sum(flags & 1 for flags in seen) / pages
