"""Three hosts on one machine: network namespaces of our own, with addresses of their own, at one switch.

The commands that run on them are those of docs/deployment.md.
"""

import ctypes
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from godwit.bench.netns import inside, run_tool, start_holder, why_no_namespaces, words

HEAD, B, C = HOSTS = ("10.77.0.1", "10.77.0.2", "10.77.0.3")
DOCS = Path(__file__).parents[2] / "docs" / "deployment.md"
_CLONE_NEWNET = 0x40000000
_COMMAND_S = 30.0


def why_no_hosts() -> str | None:
    """What is missing for the hosts and their certificates here; None where all is there."""
    if missing := [tool for tool in ("openssl", "curl", "setpriv") if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)}"
    return why_no_namespaces()


def script(heading: str) -> str:
    """The commands below a heading of the docs."""
    found = re.search(rf"^## {heading}\n.*?^```sh\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None, f"{DOCS.name} has no commands under {heading!r}"
    return found[1]


def make_certificates(folder: Path) -> None:
    """An authority, a certificate for each host, and the secrets, made as the docs say."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ("sh", "-ec", script("Certificates and keys"))
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_COMMAND_S)


class Hosts:
    """A context manager: inside it the hosts are there, joined by a switch, and gone with its end.

    A holder process keeps each namespace, and ends when this process does, however that happens.
    """

    def __enter__(self) -> "Hosts":
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for name in ("switch", *HOSTS):
                self._holders[name] = start_holder()
            self._join()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def holders(self) -> list[int]:
        """The ids of the processes that keep the namespaces."""
        return [holder.pid for holder in self._holders.values()]

    def inside(self, host: str) -> tuple[str, ...]:
        """What stands before a command that is to run on a host."""
        return inside(self._holders[host].pid)

    def plug(self, host: str, *, is_in: bool) -> None:
        """Pull a host's cable out of the switch, or put it back; nobody is told."""
        port = f"port{HOSTS.index(host)}"
        run_tool(*self.inside("switch"), *words("ip link set", port, "up" if is_in else "down"))

    def sockets(self, host: str) -> Callable[[Any], socket.socket]:
        """Makes sockets on a host for this process, which stays where it is: for aiohttp's connector."""
        pid = self._holders[host].pid

        def make(address: tuple[Any, ...]) -> socket.socket:
            # A namespace is a thread's, a socket's for good: so a thread goes there, makes it and ends.
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(_socket_in, pid, address).result()

        return make

    def _join(self) -> None:
        switch = self.inside("switch")
        run_tool(*switch, *words("ip link add switch type bridge"))
        run_tool(*switch, *words("ip link set switch up"))
        for number, host in enumerate(HOSTS):
            there, port = self.inside(host), f"port{number}"
            end = ("peer name eth0 netns", str(self._holders[host].pid))
            run_tool(*switch, *words("ip link add", port, "type veth", *end))
            run_tool(*switch, *words("ip link set", port, "master switch up"))
            run_tool(*there, *words("ip addr add", f"{host}/24", "dev eth0"))
            for device in ("lo", "eth0"):
                run_tool(*there, *words("ip link set", device, "up"))

    def _stop(self) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.wait()
            if holder.stdin is not None:
                holder.stdin.close()
        self._holders.clear()


def _socket_in(pid: int, address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, *_ = address
    libc = ctypes.CDLL(None, use_errno=True)
    space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(space, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(space)
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    return made
