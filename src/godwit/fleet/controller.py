"""Keeps a worker on each node that shall have one, and passes Ray's notices of leaving on to the head."""

import asyncio
import time

import structlog

from godwit.client import AdminClient
from godwit.errors import GodwitError, LinkError, NotFoundError
from godwit.fleet import rays
from godwit.fleet.plan import FleetPlan, Node, Retries, actor_resources, has_resources, left_s
from godwit.fleet.workeractor import WorkerActor

POLL_S = 0.5
RAY_S = 10.0
CHECK_S = 1.0
_log = structlog.get_logger(__name__)


class Controller:
    """Remembers nothing that it cannot ask again, so that a new one goes on where the last one was.

    Ray's answers decide: which nodes there are, which of them drain, and which actors there are by name.
    Notices come first in a tick, and nothing in it takes long.
    """

    def __init__(self, plan: FleetPlan, url: str) -> None:
        self._plan = plan
        self._url = url
        self._admin = AdminClient(url, plan.settings.security.admin_key)
        self._retries = Retries()
        self._checked: set[str] = set()
        self._told: dict[str, int] = {}
        self.problem: str | None = None

    async def close(self) -> None:
        """End its connections; the workers stay."""
        await self._admin.close()

    async def is_listening(self) -> bool:
        """Whether the head answers; else `problem` says what it did instead."""
        try:
            await self._admin.status_json()
        except GodwitError as error:
            self.problem = error.message
            return False
        self.problem = None
        return True

    def head_is_new(self) -> None:
        """A new head has heard of no drain."""
        self._told.clear()

    async def tick(self) -> None:
        """Look at the cluster once, and do what is to be done; what fails now is tried at the next tick."""
        try:
            async with asyncio.timeout(RAY_S):
                nodes = await asyncio.to_thread(rays.nodes)
                draining = await asyncio.to_thread(rays.draining)
                actors = await asyncio.to_thread(rays.actors)
        except (TimeoutError, LinkError) as error:
            _log.warning("Ray does not answer; the streams do not need it", reason=str(error))
            return
        for node in nodes:
            if node.id in draining and node.actor in actors:
                await self._drain(node, draining[node.id])
        staying = (node for node in nodes if node.id not in draining)
        wanted = [node for node in staying if has_resources(node, self._plan.wanted)]
        await asyncio.gather(*(self._keep(node, node.actor in actors) for node in wanted))
        alive = {node.id for node in nodes}
        self._retries.keep_only(alive)
        self._checked &= alive
        self._told = {node: deadline for node, deadline in self._told.items() if node in alive}

    async def stop_workers(self) -> None:
        """End all workers and their actors."""
        names = sorted(await asyncio.to_thread(rays.actors) - {rays.HEAD})
        stops = (asyncio.to_thread(_stop, name) for name in names)
        await asyncio.gather(*stops)

    async def _drain(self, node: Node, deadline_ms: int) -> None:
        if self._told.get(node.id) == deadline_ms:
            return
        deadline_s = left_s(deadline_ms, time.time())
        try:
            await self._admin.drain(node.worker, deadline_s)
        except NotFoundError:
            # It is about to join, or has left already: in the first case the next tick finds it.
            return
        except GodwitError as error:
            _log.warning("the head took no reclaim notice", worker=node.worker, reason=error.message)
            return
        _log.info("reclaim notice", worker=node.worker, deadline_s=deadline_s)
        self._told[node.id] = deadline_ms

    async def _keep(self, node: Node, is_there: bool) -> None:
        if is_there:
            if node.id not in self._checked:
                await self._check(node)
            return
        self._checked.discard(node.id)
        if not self._retries.may_try(node.id, time.monotonic()):
            return
        _log.info("a worker for a node", worker=node.worker, address=node.address)
        resources = actor_resources(self._plan.wanted)
        arguments = (node.worker, self._url, self._plan.settings)
        is_detached = self._plan.is_detached
        try:
            await asyncio.to_thread(
                rays.start_worker, WorkerActor, node, resources, *arguments, is_detached=is_detached
            )
        except GodwitError as error:
            _log.warning("no actor for a node", worker=node.worker, reason=error.message)
        else:
            self._checked.add(node.id)

    async def _check(self, node: Node) -> None:
        """An actor that was there before this controller must know this head."""
        try:
            url = await asyncio.to_thread(rays.ask, node.actor, "join_url", CHECK_S)
        except LinkError as error:
            _log.info("a worker's actor does not answer yet", worker=node.worker, reason=error.message)
            return
        if url == self._url:
            self._checked.add(node.id)
        else:
            _log.info("a worker of a former head", worker=node.worker, url=url)
            await asyncio.to_thread(_stop, node.actor)


def _stop(name: str) -> None:
    try:
        rays.ask(name, "stop", timeout_s=15.0)
    except LinkError as error:
        _log.info("an actor could not be asked to stop", actor=name, reason=error.message)
    try:
        rays.kill(name)
    except LinkError as error:
        _log.warning("an actor could not be ended", actor=name, reason=error.message)


async def watch(plan: FleetPlan, url: str) -> None:
    """Control the fleet of a head that runs here, until cancelled; then stop the workers."""
    controller = Controller(plan, url)
    try:
        while True:
            await controller.tick()
            await asyncio.sleep(POLL_S)
    finally:
        await controller.stop_workers()
        await controller.close()
