"""The admin API: what operators see and order, for `godwit status`, `costs`, `migrate` and `drain`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from godwit.config import MoveMethod, is_loopback
from godwit.errors import BadRequestError, GodwitError, UnauthorizedError
from godwit.protocol.entry import Entry, MoveRecord, Moving
from godwit.runtime.doors import is_from_web_page, shows_key
from godwit.scheduling.control import Control, Outcome
from godwit.scheduling.member import Member
from godwit.types import RequestId, WorkerId

T = TypeVar("T")


class MigrateOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /admin/migrate; `live` False stops the request before anything travels.

    `method` None is the configured one.
    """

    request: RequestId
    to: WorkerId | None = None
    live: bool = True
    method: MoveMethod | None = None


class DrainOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /admin/drain."""

    worker: WorkerId
    deadline_s: float | None = None


class Admin:
    """The handlers under /admin/; with an admin key it is needed, without one only this machine gets in."""

    def __init__(self, control: Control, records: Iterable[MoveRecord], key: str | None) -> None:
        self._control = control
        self._records = records
        self._key = key

    def add_routes(self, app: web.Application) -> None:
        """Add the routes to an application whose middleware answers a GodwitError."""
        routes: list[tuple[str, str, Callable[[web.Request], Awaitable[web.Response]]]] = [
            ("GET", "/admin/status", self.status),
            ("GET", "/admin/costs", self.costs),
            ("POST", "/admin/migrate", self.migrate),
            ("POST", "/admin/drain", self.drain),
            ("POST", "/admin/scheduler/restart", self.restart_scheduler),
        ]
        for method, path, handler in routes:
            app.router.add_route(method, path, handler)

    async def status(self, request: web.Request) -> web.Response:
        """Workers by name, requests, and the moves that are over, latest last."""
        self._check(request)
        workers = [self._worker(member) for _, member in sorted(self._control.members.items())]
        requests = [_request(entry) for entry in self._control.requests]
        return _json({"workers": workers, "requests": requests, "moves": list(self._records)})

    async def costs(self, request: web.Request) -> web.Response:
        """The constants from which moves are chosen now, and how far predictions were from what happened."""
        self._check(request)
        return _json(self._control.costs.report())

    async def migrate(self, request: web.Request) -> web.Response:
        """Move a request; the answer is the move's record once it is over."""
        self._check(request)
        order = _decode(await request.read(), MigrateOrder)
        over: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        limits = replace(self._control.move_limits, live=order.live)

        def done(outcome: Outcome) -> None:
            if not over.done():
                over.set_result(outcome)

        self._control.ask_move(order.request, order.to, limits, done, order.method)
        outcome = await over
        if isinstance(outcome, GodwitError):
            raise outcome
        return _json(outcome)

    async def drain(self, request: web.Request) -> web.Response:
        """Begin to empty a worker; it leaves when it is empty."""
        self._check(request)
        order = _decode(await request.read(), DrainOrder)
        self._control.ask_drain(order.worker, order.deadline_s)
        return _json({"worker": order.worker, "draining": True}, status=202)

    async def restart_scheduler(self, request: web.Request) -> web.Response:
        """Start the scheduler anew from what workers and journals tell; streams go on."""
        self._check(request)
        self._control.restart_scheduler()
        return _json({"restarted": True})

    def _check(self, request: web.Request) -> None:
        if self._key is None:
            if not is_loopback(request.remote or "") or is_from_web_page(request.headers):
                raise UnauthorizedError("the admin API is for this machine only; set security.admin_key")
        elif not shows_key(request.headers, (self._key,)):
            raise UnauthorizedError("wrong or missing admin key: send security.admin_key as a Bearer token")

    def _worker(self, member: Member) -> dict[str, object]:
        hello = member.hello
        mine = [entry for entry in self._control.requests if entry.journal.owner == hello.worker]
        return {
            "name": hello.worker,
            "state": "draining" if member.is_draining else "up",
            "incarnation": hello.incarnation,
            "slots": hello.slots,
            "used": len(mine),
            "draining": member.is_draining,
            "device_bytes": hello.device_bytes,
            "emulated_bandwidth_bytes_per_s": hello.emulated_bytes_per_s,
            "models": list(member.models.values()),
        }


def _request(entry: Entry) -> dict[str, object]:
    return {
        "id": entry.request,
        "model": entry.model,
        "worker": entry.journal.owner,
        "state": entry.state,
        "num_prompt": len(entry.journal.prompt_ids or ()),
        "num_output": len(entry.journal.output_ids),
        "epoch": entry.journal.epoch,
        "moves": entry.num_moves,
        "move": None if (moving := entry.moving) is None else _move(moving),
    }


def _move(moving: Moving) -> dict[str, object]:
    """A move in hand; `state` is that of the head's machine of section "Migration" in the docs."""
    return {
        "move": moving.move,
        "source": moving.source,
        "destination": moving.destination,
        "state": moving.machine.state.value,
    }


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise BadRequestError(f"not a valid body: {error}") from error


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
