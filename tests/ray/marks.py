"""Finding every process that a test has begun, however far down, by a mark in its environment."""

import os
import signal
import uuid
from pathlib import Path

VARIABLE = "GODWIT_TEST_MARK"


class Marked:
    """Processes that were started while the mark was in this process's environment, and theirs."""

    def __init__(self) -> None:
        self._mark = f"{VARIABLE}={uuid.uuid4().hex}"

    def __enter__(self) -> "Marked":
        os.environ[VARIABLE] = self._mark.partition("=")[2]
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.pop(VARIABLE, None)

    def pids(self) -> dict[int, str]:
        """Those that run now, with their command lines; one that only waits for its parent does not run."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(folder.name)] = command.strip()
            except OSError:  # it has ended meanwhile, or belongs to somebody else
                continue
        found.pop(os.getpid(), None)
        return found

    def kill(self) -> None:
        """End them all, by id."""
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)

    def listening(self) -> dict[str, str]:
        """Addresses on which they listen for TCP, in the kernel's hexadecimal, with the command of each."""
        sockets = {}
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":  # LISTEN
                    sockets[f"socket:[{fields[9]}]"] = fields[1]
        found = {}
        for pid, command in self.pids().items():
            for link in Path(f"/proc/{pid}/fd").glob("*"):
                try:
                    target = str(link.readlink())
                except OSError:
                    continue
                if target in sockets:
                    found[sockets[target]] = command
        return found


def parent(pid: int) -> int:
    """A process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
