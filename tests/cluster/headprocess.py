"""A cluster whose head is a process of its own, as `godwit head` starts it."""

import asyncio
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from types import TracebackType

import aiohttp

from godwit.client import AdminClient
from godwit.config import Settings
from godwit.processes import stop_all
from tests.cluster.harness import Cluster
from tests.patience import DEADLINE_S


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class HeadCluster(Cluster):
    """Like `Cluster`, but the head can be killed and started again, on the same port."""

    def __init__(self, settings: Settings, folder: Path, num_workers: int = 2) -> None:
        super().__init__(settings, num_workers)
        self.logs = folder
        self.head_log = folder / "head.log"
        self._config = folder / "godwit.toml"
        self._port = free_port()

    async def __aenter__(self) -> "HeadCluster":
        head = self.settings.head
        self._config.write_text(
            f"[head]\nport = {self._port}\nheartbeat_s = {head.heartbeat_s}\n"
            f"dead_after_s = {head.dead_after_s}\n"
        )
        self.url = f"http://127.0.0.1:{self._port}"
        self.admin = AdminClient(self.url, self.settings.security.admin_key)
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        try:
            await self.start_head()
            for name in self.names:
                await self.start(name)
            await self.joined(self.names)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def start_head(self) -> None:
        """Start the head's process; returns once it listens."""
        with self.head_log.open("ab") as log:
            self._head = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "godwit", "head", "--config", str(self._config)),
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environ(),
            )
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                async with self.session.get(f"{self.url}/metrics") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            assert self._head.returncode is None, self.head_log.read_text()
            assert time.monotonic() < end, "the head does not listen"
            await asyncio.sleep(0.05)

    def _environ(self) -> dict[str, str]:
        """The head's secrets, as an operator would give them."""
        security = self.settings.security
        secrets = {
            "GODWIT_API_KEYS": ",".join(security.api_keys),
            "GODWIT_JOIN_TOKEN": security.join_token or "",
            "GODWIT_ADMIN_KEY": security.admin_key or "",
        }
        return {**os.environ, **secrets}

    def signal_head(self, number: signal.Signals) -> None:
        """Send a signal to the head's process."""
        os.kill(self._head.pid, number)

    async def kill_head(self) -> None:
        """End the head with SIGKILL."""
        self._head.kill()
        await self._head.wait()

    def head_wrote(self, pattern: str) -> bool:
        """Whether the head's output has this."""
        return re.search(pattern, self.head_log.read_text(encoding="utf-8")) is not None

    async def _close(self) -> None:
        await stop_all(list(self.workers.values()))
        await self.session.close()
        await self.admin.close()
        if self._head.returncode is None:
            self._head.terminate()
            await self._head.wait()
