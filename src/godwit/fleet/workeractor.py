"""The actor that keeps a worker on its node: both end together."""

from pathlib import Path

import structlog

from godwit.config import Settings
from godwit.fleet import rays
from godwit.fleet.plan import worker_on
from godwit.fleet.supervisor import Supervisor
from godwit.processes import WorkerProcess, start_worker

_log = structlog.get_logger(__name__)


class WorkerActor(Supervisor):
    """One `godwit worker` as a child: it ends with this actor, and this actor with it.

    So an actor that is there is a worker that is there, and who looks at Ray's actors knows what is missing.
    """

    def __init__(self, name: str, join_url: str, settings: Settings) -> None:
        self._join_url = join_url
        log = rays.logs_folder() / f"godwit-{name}.log"
        self._life = _Life(name, join_url, worker_on(settings, rays.here().address), log)
        super().__init__(self._life.live())

    def join_url(self) -> str:
        """The head that its worker joins."""
        return self._join_url

    def pid(self) -> int | None:
        """Its worker's process id; None before it is started."""
        return None if self._life.worker is None else self._life.worker.pid


class _Life:
    """One life of a worker."""

    def __init__(self, name: str, join_url: str, settings: Settings, log: Path) -> None:
        self._name = name
        self._join_url = join_url
        self._settings = settings
        self._log = log
        self.worker: WorkerProcess | None = None

    async def live(self) -> None:
        """Run the worker until it ends, or until cancelled."""
        self.worker = await start_worker(self._name, self._join_url, self._settings, self._log)
        try:
            status = await self.worker.wait()
            _log.info("the worker has ended", worker=self._name, status=status, log=str(self._log))
        finally:
            await self.worker.stop()
