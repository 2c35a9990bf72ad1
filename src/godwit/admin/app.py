"""The routes under /admin/."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from msgspec.structs import replace

from godwit.admin.door import Door, answer
from godwit.admin.events import EventAdmin
from godwit.admin.models import ModelAdmin
from godwit.admin.shapes import DrainOrder, Estimates, Explained, MigrateOrder
from godwit.admin.status import cluster_status, emulated_tiers
from godwit.errors import BadRequestError, GodwitError
from godwit.keeper import Keeper
from godwit.protocol.entry import MoveRecord
from godwit.scheduling.control import Control
from godwit.scheduling.eventlog import EventLog
from godwit.scheduling.wishes import Outcome
from godwit.types import ModelName

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Admin:
    """The handlers under /admin/; with an admin key it is needed, without one only this machine gets in."""

    def __init__(
        self,
        control: Control,
        keeper: Keeper,
        log: EventLog,
        records: Iterable[MoveRecord],
        key: str | None,
        body_timeout_s: float,
    ) -> None:
        self._control = control
        self._keeper = keeper
        self._records = records
        self._door = Door(key, body_timeout_s)
        self._models = ModelAdmin(control, keeper, self._door)
        self._events = EventAdmin(log, self._door, wall_now=time.time, now=time.monotonic)

    def add_routes(self, app: web.Application) -> None:
        """Add the routes to an application whose middleware answers a GodwitError."""
        routes: list[tuple[str, str, Handler]] = [
            ("GET", "/admin/status", self.status),
            ("GET", "/admin/costs", self.costs),
            ("GET", "/admin/estimates", self.estimates),
            ("GET", "/admin/explain", self.explain),
            ("GET", "/admin/events", self._events.events),
            ("GET", "/admin/models", self._models.list_all),
            ("POST", "/admin/models", self._models.add),
            ("DELETE", "/admin/models/{name:.+}", self._models.remove),
            ("POST", "/admin/models/{name:.+}/pin", self._models.pin),
            ("POST", "/admin/migrate", self.migrate),
            ("POST", "/admin/drain", self.drain),
            ("POST", "/admin/scheduler/restart", self.restart_scheduler),
        ]
        for method, path, handler in routes:
            app.router.add_route(method, path, handler)
        app.on_shutdown.append(self._events.close)

    async def status(self, request: web.Request) -> web.Response:
        """Workers, requests and the moves that are over."""
        self._door.check(request)
        return answer(cluster_status(self._control, self._records))

    async def costs(self, request: web.Request) -> web.Response:
        """The constants from which moves are chosen now, and how far predictions were from what happened."""
        self._door.check(request)
        return answer(self._control.costs.report())

    async def estimates(self, request: web.Request) -> web.Response:
        """The times from which starts are chosen now, how far off they were, and who is likely to leave."""
        self._door.check(request)
        leaving = self._keeper.hazards.report(self._control.now())
        return answer(Estimates(self._keeper.times.report(), emulated_tiers(self._control), leaving))

    async def explain(self, request: web.Request) -> web.Response:
        """Where a request for a model would start now, and why there."""
        self._door.check(request)
        if not (model := request.query.get("model")):
            raise BadRequestError("which model? /admin/explain?model=NAME", param="model")
        return answer(Explained(self._control.explain(ModelName(model)), emulated_tiers(self._control)))

    async def migrate(self, request: web.Request) -> web.Response:
        """Move a request; the answer is the move's record once it is over."""
        self._door.check(request)
        order = await self._door.read(request, MigrateOrder)
        over: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        limits = replace(self._control.move_limits, live=order.live)

        def done(outcome: Outcome) -> None:
            if not over.done():
                over.set_result(outcome)

        self._control.ask_move(order.request, order.to, limits, done, order.method, is_forced=order.force)
        outcome = await over
        if isinstance(outcome, GodwitError):
            raise outcome
        return answer(outcome)

    async def drain(self, request: web.Request) -> web.Response:
        """Begin to empty a worker; it leaves when it is empty."""
        self._door.check(request)
        order = await self._door.read(request, DrainOrder)
        self._control.ask_drain(order.worker, order.deadline_s)
        return answer({"worker": order.worker, "draining": True}, status=202)

    async def restart_scheduler(self, request: web.Request) -> web.Response:
        """Start the scheduler anew from what workers and journals tell; streams go on."""
        self._door.check(request)
        self._control.restart_scheduler()
        return answer({"restarted": True})
