"""Files in memory: mapped and locked while they are in DRAM, out of the page cache when they are not."""

import contextlib
import ctypes
import mmap
import os
import resource
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import structlog

_log = structlog.get_logger(__name__)


class Resident:
    """A file's pages in memory, mapped read-only and locked where that is allowed, until `close`."""

    def __init__(self, path: Path) -> None:
        """Blocks until all pages are there; OSError where the file cannot be read."""
        with path.open("rb") as file:
            self._view = mmap.mmap(
                file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ
            )
        self.num_bytes = len(self._view)
        if _libc().mlock(ctypes.c_void_p(_address(self._view)), ctypes.c_size_t(self.num_bytes)) != 0:
            _warn_once(os.strerror(ctypes.get_errno()))

    def close(self) -> None:
        """Unmap it; the pages stay in the page cache until they are dropped."""
        self._view.close()


def raise_lock_limit() -> None:
    """Let this process lock as much memory as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))


def drop_pages(path: Path) -> None:
    """Put a file out of the page cache, as far as nobody has it mapped; harmless where it cannot be."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY)
        try:
            # Pages that are not written yet would stay.
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _address(view: mmap.mmap) -> int:
    """Where a mapping begins; ctypes alone takes addresses of writable memory only."""
    return np.frombuffer(view, dtype=np.uint8).ctypes.data


@cache
def _warn_once(reason: str) -> None:
    _log.warning(
        "checkpoints cannot be locked in memory, so the system may page them out: raise the limit "
        "(ulimit -l unlimited, or LimitMEMLOCK=infinity in a systemd unit) and restart the worker",
        reason=reason,
    )
