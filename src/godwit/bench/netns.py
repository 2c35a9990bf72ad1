"""Two network namespaces joined by a veth pair that `tc` shapes: a link on which bytes take their time.

This process moves into a namespace of its own, and one holder process keeps each worker's. A namespace and
its veths vanish with its last process, and a holder ends when the pipe from this process closes, however
that happens. Nothing has a name in /run/netns, and nothing outside is changed.
"""

import asyncio
import ctypes
import os
import shutil
import subprocess
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from godwit.errors import GodwitError
from godwit.local import Site

HEAD_HOST = "10.201.0.1"
TOOLS = ("ip", "tc", "nsenter", "unshare")
_CLONE_NEWNET = 0x40000000
_COMMAND_S = 10.0
_PROBE = (
    "ip link set lo up && ip link add type veth && "
    "tc qdisc add dev lo root tbf rate 1mbit burst 16000 limit 99999"
)

# What may wait in front of the link: more than a move ever has under way, so that nothing is dropped.
_QUEUE_BYTES = 4 * 1024 * 1024
# A bucket of a millisecond, or of ten packets: small, as what is in it costs no time.
_BUCKET_S, _MIN_BUCKET_BYTES = 0.001, 16_000

# A plain TCP transfer: the receiver times it from the first byte to the last.
_RECEIVE = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 0))
server.settimeout(60)
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
connection.settimeout(60)
buffer, total, start = bytearray(1 << 20), 0, None
while count := connection.recv_into(buffer):
    total += count if start is not None else 0
    start = start if start is not None else time.monotonic()
print(total / (time.monotonic() - start))
"""
_SEND = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
connection.sendall(bytes(int(sys.argv[3])))
"""
_UNSHAPED_MBIT = 2000.0


class NetnsError(GodwitError):
    """A namespace or a link in it could not be made; the message has what the tool said."""


def why_no_namespaces() -> str | None:
    """What is missing for namespaces and shaped links here; None where they are permitted."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)}"
    try:
        run_tool("unshare", "--net", "sh", "-c", _PROBE)
    except NetnsError as error:
        return error.message
    return None


class VethLinks:
    """A context manager: inside it this process is in its own namespace and each worker has one too.

    Enter it before any thread or event loop starts, for a namespace is a thread's and only later threads and
    children share it. This process stays in its namespace to its end. Raises NetnsError.
    """

    are = "veth + tbf"

    def __init__(self, workers: Sequence[str]) -> None:
        self._workers = tuple(workers)
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._mbit: float | None = None

    def __enter__(self) -> "VethLinks":
        _enter_own_namespace()
        try:
            for name in self._workers:
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
    def head_host(self) -> str:
        """Where the head is to listen."""
        return HEAD_HOST

    @property
    def holders(self) -> list[int]:
        """The ids of the processes that keep the workers' namespaces."""
        return [holder.pid for holder in self._holders.values()]

    def sites(self) -> Mapping[str, Site]:
        """Where each worker runs: in its namespace, and reached by the other one over the shaped link."""
        return {
            name: Site({"peer_host": _peer_host(number)}, inside(holder.pid))
            for number, (name, holder) in enumerate(self._holders.items(), 1)
        }

    def shape(self, mbit: float | None) -> None:
        """Give both directions of the link between the workers this rate from now on; None: all it can do."""
        self._mbit = mbit
        for holder in self._holders.values():
            tc = (*inside(holder.pid), "tc", "qdisc")
            # A qdisc that is not there cannot be deleted, so there is one to delete.
            run_tool(*tc, "replace", "dev", "peer", "root", *_tbf(mbit or 1.0))
            if mbit is None:
                run_tool(*tc, "del", "dev", "peer", "root")

    async def transfer_mbit(self) -> float | None:
        """What a plain TCP transfer of about a second gets over the link, headers not counted."""
        first, second = self._holders.values()
        num_bytes = int((self._mbit or _UNSHAPED_MBIT) * 125_000)
        code = (sys.executable, "-c")
        receiver = await asyncio.create_subprocess_exec(
            *(*inside(second.pid), *code, _RECEIVE, _peer_host(2)), stdin=DEVNULL, stdout=PIPE
        )
        sender = None
        try:
            async with asyncio.timeout(60):
                if receiver.stdout is None:
                    raise ValueError("the receiver's stdout is a pipe")
                port = (await receiver.stdout.readline()).decode().strip()
                sender = await asyncio.create_subprocess_exec(
                    *(*inside(first.pid), *code, _SEND, _peer_host(2), port, str(num_bytes)), stdin=DEVNULL
                )
                await sender.wait()
                rate = float(await receiver.stdout.read())
        except (TimeoutError, ValueError) as error:
            raise NetnsError(f"no plain transfer got through the link: {error}") from error
        finally:
            for process in (receiver, sender):
                if process is not None and process.returncode is None:
                    process.kill()
                if process is not None:
                    await process.wait()
        return rate * 8 / 1e6

    def _join(self) -> None:
        """Join the workers by one link and each of them to this process by another, all with addresses."""
        pids = [str(holder.pid) for holder in self._holders.values()]
        first, second = pids
        run_tool(*words("ip link add peer netns", first, "type veth peer name peer netns", second))
        for number, pid in enumerate(pids, 1):
            here, host = f"ctl{number}", f"10.201.0.{number + 1}"
            there = inside(int(pid))
            run_tool(*words("ip link add", here, "type veth peer name ctl netns", pid))
            run_tool(*words("ip addr add", HEAD_HOST, "peer", host, "dev", here))
            run_tool(*words("ip link set", here, "up"))
            run_tool(*there, *words("ip addr add", host, "peer", HEAD_HOST, "dev ctl"))
            run_tool(*there, *words("ip addr add", f"{_peer_host(number)}/30", "dev peer"))
            for device in ("lo", "ctl", "peer"):
                run_tool(*there, *words("ip link set", device, "up"))

    def _stop(self) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.wait()
            if holder.stdin is not None:
                holder.stdin.close()
        self._holders.clear()


def _enter_own_namespace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise NetnsError(f"no namespace of one's own: {os.strerror(ctypes.get_errno())}")
    run_tool(*words("ip link set lo up"))


def start_holder() -> "subprocess.Popen[bytes]":
    """A process in a new namespace that ends when its stdin closes; returns once it is there."""
    holder = subprocess.Popen(
        ("unshare", "--net", "cat"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    end = time.monotonic() + _COMMAND_S
    mine = _namespace(os.getpid())
    while _namespace(holder.pid) in (mine, None):
        if holder.poll() is not None or time.monotonic() > end:
            holder.kill()
            holder.wait()
            raise NetnsError("unshare has made no namespace")
        time.sleep(0.01)  # nothing tells of it, and there is no event loop yet
    return holder


def _namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return None


def _peer_host(number: int) -> str:
    return f"10.201.1.{number}"


def inside(pid: int) -> tuple[str, ...]:
    """What stands before a command that is to run in the network namespace of a process."""
    return ("nsenter", f"--net=/proc/{pid}/ns/net")


def _tbf(mbit: float) -> tuple[str, ...]:
    bytes_per_s = mbit * 1e6 / 8
    bucket = max(_MIN_BUCKET_BYTES, int(bytes_per_s * _BUCKET_S))
    return ("tbf", "rate", f"{bytes_per_s * 8:.0f}bit", "burst", str(bucket), "limit", str(_QUEUE_BYTES))


def words(*parts: str) -> list[str]:
    """A command's words, from texts of one or more."""
    return " ".join(parts).split()


def run_tool(*command: str) -> None:
    """Run a command to its end; NetnsError, with what it said, where it fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetnsError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        said = done.stderr.strip() or f"status {done.returncode}"
        raise NetnsError(f"`{' '.join(command)[:120]}` failed: {said}")
