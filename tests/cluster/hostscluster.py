"""A cluster on hosts of their own, whose head and workers are started by docs/deployment.md's commands."""

import asyncio
import os
import re
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import aiohttp

from godwit.client import AdminClient
from godwit.config import Settings
from godwit.processes import WorkerProcess, stop_all
from tests.cluster.harness import POLL_S, Cluster
from tests.cluster.hosts import HEAD, B, C, Hosts, script
from tests.patience import DEADLINE_S

URL = f"https://{HEAD}:8443"
LISTENS = "The head listens on"
# These commands are not told to end when the test does, as they run as an operator's: the kernel does it.
WITH_US = ("setpriv", "--pdeathsig", "KILL")
FAKE = """
[[models]]
name = "fake"
engine = "fake"
options = { decode_s = 0.02 }
"""


class HostsCluster(Cluster):
    """The head on the first host, a worker on each other one; `folder` has certificates, secrets and logs.

    `head` and `worker` are arguments added to the commands; workers serve a fake or the docs' model.
    """

    def __init__(
        self,
        hosts: Hosts,
        folder: Path,
        *,
        head: Sequence[str] = (),
        worker: Sequence[str] = (),
        is_fake: bool = True,
    ) -> None:
        super().__init__(Settings(), 2)
        self.names = [B, C]
        self.logs = folder
        self.url = URL
        self.hosts = hosts
        self._is_fake = is_fake
        self._arguments = {HEAD: tuple(head), B: tuple(worker), C: tuple(worker)}

    async def __aenter__(self) -> "HostsCluster":
        (self.logs / "models.toml").write_text(FAKE)
        self.admin = AdminClient(self.url, self.secret("admin-key"), connector=self.connector())
        self.session = self.client(self.secret("api-key"))
        try:
            await self.start_head()
            for name in self.names:
                await self.start(name)
            async with asyncio.timeout(DEADLINE_S):
                await self.joined(self.names)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    def secret(self, name: str) -> str:
        """One of the secrets that the docs' commands made."""
        return (self.logs / name).read_text().strip()

    def connector(self) -> aiohttp.TCPConnector:
        """Opens connections on the head's host, to those alone whom the authority has signed."""
        tls = ssl.create_default_context(cafile=str(self.logs / "ca.pem"))
        return aiohttp.TCPConnector(ssl=tls, socket_factory=self.hosts.sockets(HEAD))

    def client(self, key: str | None) -> aiohttp.ClientSession:
        """A client with an API key."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        timeout = aiohttp.ClientTimeout(total=None)
        return aiohttp.ClientSession(connector=self.connector(), headers=headers, timeout=timeout)

    async def start(self, name: str) -> None:
        """Start a host's worker, or a new life of one that has ended."""
        self._started_ns[name] = time.time_ns()
        commands = worker_script(name, is_fake=self._is_fake)
        self.workers[name] = await self.run_on(name, commands, self._arguments[name])

    async def start_head(self, certificate: str = HEAD) -> None:
        """Start the head, or a new one with this certificate; returns once it listens."""
        lives = self.log_of(HEAD).count(LISTENS) if HEAD in self.workers else 0
        commands = head_script(certificate)
        self.workers[HEAD] = await self.run_on(HEAD, commands, self._arguments[HEAD])
        await wrote(self.workers[HEAD], LISTENS, lives + 1)

    async def run_on(
        self, host: str, commands: str, arguments: Sequence[str] = (), log: str | None = None
    ) -> WorkerProcess:
        """Run commands on a host, with more arguments for the last `godwit`; `log` names the output file."""
        before, mark, last = commands.rpartition("\ngodwit ")
        # `exec`, so that the process id is Godwit's.
        text = f"{before}\nexec godwit {last.rstrip()} {' '.join(arguments)}" if mark else commands
        return await self._spawn(host, text, self.logs / f"{log or host}.log")

    async def _spawn(self, host: str, text: str, log: Path) -> WorkerProcess:
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(*self.hosts.inside(host), *WITH_US, "sh", "-ec", text),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.logs,
                env=environ(),
                start_new_session=True,
            )
        return WorkerProcess(host, log, process)

    async def stale_tokens(self) -> int:
        """How many tokens the head has refused from former owners."""
        async with self.session.get(f"{self.url}/metrics") as response:
            found = re.search(r"^godwit_stale_tokens_total (\S+)$", await response.text(), re.MULTILINE)
        assert found is not None
        return int(float(found[1]))

    async def has_stale_tokens(self) -> None:
        """Wait until the head has refused some."""
        end = time.monotonic() + DEADLINE_S
        while await self.stale_tokens() == 0:
            assert time.monotonic() < end, "no late tokens came"
            await asyncio.sleep(POLL_S)

    async def _close(self) -> None:
        await stop_all(list(self.workers.values()))
        await self.session.close()
        await self.admin.close()


async def ended(process: WorkerProcess) -> tuple[int, str]:
    """Wait for a process that is to end; its status, and what it wrote as one line."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            status = await process.wait()
    finally:
        process.kill()
    return status, " ".join(process.log.read_text(encoding="utf-8").split())


async def wrote(process: WorkerProcess, text: str, occurrences: int = 1) -> None:
    """Wait until a process has written this so many times."""
    end = time.monotonic() + DEADLINE_S
    while (log := process.log.read_text(encoding="utf-8")).count(text) < occurrences:
        assert process.is_running, log
        assert time.monotonic() < end, log
        await asyncio.sleep(POLL_S)


def head_script(certificate: str = HEAD) -> str:
    """The docs' commands for the head, with this certificate."""
    commands = script("The head")
    for end in (".pem", "-key.pem"):
        commands = commands.replace(f"={HEAD}{end}", f"={certificate}{end}")
    return commands


def worker_script(host: str, *, is_fake: bool = True) -> str:
    """The docs' commands for a worker, on this host, with their model or with those of `FAKE`."""
    commands = script("A worker").replace(f"HOST={B}", f"HOST={host}")
    return commands.replace("--model smollm2-135m", "--config models.toml") if is_fake else commands


def environ() -> Mapping[str, str]:
    """An operator's shell: `godwit` is on the path, and nothing of Godwit or of TLS is set yet."""
    theirs = {name: value for name, value in os.environ.items() if not re.match(r"GODWIT_|SSL_|CURL_", name)}
    kept = {name: value for name, value in os.environ.items() if name in ("GODWIT_CACHE", "GODWIT_DATA")}
    bin_folder = str(Path(sys.executable).parent)
    return {**theirs, **kept, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
