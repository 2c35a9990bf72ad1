"""The actor that keeps the head running and watches Ray's nodes; Ray starts it again when it dies."""

import asyncio
import time

import structlog
from msgspec import Struct

from godwit.config import Settings
from godwit.fleet import rays
from godwit.fleet.controller import POLL_S, Controller
from godwit.fleet.headprocess import HeadProcess
from godwit.fleet.plan import FleetPlan, Retries, head_on, head_url
from godwit.fleet.supervisor import Supervisor

START_S = 30.0
_log = structlog.get_logger(__name__)


class HeadState(Struct, frozen=True):
    """What the head's actor says of its head; `problem` is why there is none yet."""

    url: str
    pid: int | None
    is_listening: bool
    problem: str | None


class HeadActor(Supervisor):
    """A head in a process that outlives this actor's: the actor's next life finds it and goes on."""

    def __init__(self, plan: FleetPlan) -> None:
        node = rays.here()
        lock = rays.session_folder() / f"godwit-head-{node.id}.lock"
        process = HeadProcess(lock, rays.logs_folder() / f"godwit-head-{node.id[:8]}.log")
        self._url = head_url(plan, node.address)
        self._care = HeadCare(process, head_on(plan, node.address), rays.raylet_pid())
        super().__init__(self._care.run(plan, self._url))

    def state(self) -> HeadState:
        """How the head is."""
        care = self._care
        return HeadState(self._url, care.process.pid, care.is_listening, care.problem)


class HeadCare:
    """Keeps one head process running on this node, and lets a controller work while it listens."""

    def __init__(self, process: HeadProcess, settings: Settings, node_pid: int) -> None:
        self.process = process
        self.is_listening = False
        self.problem: str | None = None
        self._settings = settings
        self._node_pid = node_pid
        self._retries = Retries()

    async def run(self, plan: FleetPlan, url: str) -> None:
        """Keep the head and its workers until cancelled; then stop them all."""
        controller = Controller(plan, url)
        try:
            while True:
                if await self._keep_head(controller):
                    await controller.tick()
                await asyncio.sleep(POLL_S)
        except asyncio.CancelledError:
            await self.process.stop()
            await controller.stop_workers()
            raise
        finally:
            await controller.close()

    async def _keep_head(self, controller: Controller) -> bool:
        """Start the head where there is none; whether it listens."""
        if self.process.pid is None:
            self.is_listening = False
            if not self._retries.may_try("head", time.monotonic()):
                return False
            controller.head_is_new()
            await self.process.start(self._settings, self._node_pid)
        elif not self.is_listening:
            _log.info("found the head of a former life", pid=self.process.pid)
        if not self.is_listening:
            self.is_listening = await self._until_listening(controller)
            told = (controller.problem, self.process.log_tail())
            self.problem = None if self.is_listening else "\n".join(text for text in told if text)
            _log.info("head", pid=self.process.pid, problem=self.problem)
        return self.is_listening

    async def _until_listening(self, controller: Controller) -> bool:
        has_run = False
        try:
            async with asyncio.timeout(START_S):
                while not await controller.is_listening():
                    if self.process.pid is not None:
                        has_run = True
                    elif has_run:
                        return False
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return False
        # Whoever answers there may be another program's head, while ours found the port taken.
        return self.process.pid is not None
