"""Keeps a server's threads on the processors that it was given, whatever it does to them itself.

vLLM on CPUs with a NixlConnector moves all computing threads of the machine's servers to the last core, and a
thread of NIXL's spins there all the time.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

SIDE_NICE = 10


def pin(session: int, cores: set[int]) -> None:
    """Pin all threads of a session's processes; those beside a worker's main thread yield to it."""
    for process in _processes(session):
        with contextlib.suppress(OSError):
            is_worker = "Worker" in Path(f"/proc/{process}/comm").read_text()
            for thread in _numbers(Path(f"/proc/{process}/task")):
                os.sched_setaffinity(thread, cores)
                if is_worker and thread != process:
                    os.setpriority(os.PRIO_PROCESS, thread, SIDE_NICE)


def _processes(session: int) -> Iterator[int]:
    for process in _numbers(Path("/proc")):
        with contextlib.suppress(OSError):
            if os.getsid(process) == session:
                yield process


def _numbers(folder: Path) -> Iterator[int]:
    return (int(entry.name) for entry in folder.iterdir() if entry.name.isdigit())
