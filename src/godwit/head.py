"""The head's process: router and scheduler behind one port, links to the workers, the admin API."""

import asyncio
import random
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from secrets import randbits

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from godwit.admin.app import Admin
from godwit.config import HazardSettings, HeadSettings, MoveSettings, Settings, check_listen
from godwit.costs.choice import PHASES
from godwit.errors import LinkError, ProtocolError, UnauthorizedError, UnavailableError
from godwit.keeper import Keeper
from godwit.profile import read_profile
from godwit.protocol.entry import MoveRecord
from godwit.protocol.head import HeadLimits
from godwit.protocol.message import Message
from godwit.protocol.messages import FromWorker, Hello, Welcome
from godwit.protocol.wire import decode_from_worker, encode
from godwit.router.app import make_app, make_runner
from godwit.router.metrics import RouterMetrics
from godwit.router.settings import RouterSettings
from godwit.runtime.doors import server_tls
from godwit.runtime.link import Link, accept
from godwit.runtime.store import HEAD_STOPS, Store
from godwit.scheduling.control import Control
from godwit.scheduling.drains import DrainSettings
from godwit.scheduling.early import EarlySettings
from godwit.scheduling.eventlog import EventLog
from godwit.scheduling.observations import observation
from godwit.scheduling.policies import policy_named
from godwit.scheduling.recorder import Recorder
from godwit.scheduling.scheduler import Scheduler, SchedulerSettings
from godwit.scheduling.switchboard import Switchboard
from godwit.scheduling.view import Risks
from godwit.types import MoveId, MoveLimits, WorkerId

TICK_S = 0.1
NUM_RECORDS = 1000
_log = structlog.get_logger(__name__)


async def run_head(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve until cancelled; `ready` is called with the URL once the port is open.

    ConfigError where the address would let anybody in or a file is wrong, OSError where the port is not free.
    """
    head, profile = settings.head, settings.moves.profile
    check_listen("head.host", head.host, settings.security, serves_clients=True)
    known = None if profile is None else read_profile(Path(profile)).constants
    with closing(Store(None if head.store is None else Path(head.store))) as store:
        metrics = RouterMetrics(CollectorRegistry())
        keeper = Keeper(store, metrics, known, settings.hazard.family)
        await _serve(settings, keeper, metrics, ready)


async def _serve(
    settings: Settings, keeper: Keeper, metrics: RouterMetrics, ready: Callable[[str], None]
) -> None:
    head = settings.head
    log = EventLog(head.max_events)
    records: deque[MoveRecord] = deque(maxlen=NUM_RECORDS)
    hub = Hub(head, keeper, settings.security.join_token)
    control = _control(settings, hub, keeper, metrics, log, records)
    hub.serve(control)
    keeper.restore(control.catalog)
    # The scheduler has heard nothing yet: this tells it what is pinned.
    control.restart_scheduler()
    router_settings = RouterSettings(
        api_keys=settings.security.api_keys,
        max_body_bytes=head.max_body_bytes,
        max_unread_bytes=head.max_unread_bytes,
        max_header_bytes=head.max_header_bytes,
        body_timeout_s=head.body_timeout_s,
        idle_timeout_s=head.idle_timeout_s,
    )
    app = make_app(
        control,
        settings=router_settings,
        metrics=metrics,
        new_id=lambda: f"req-{uuid.uuid4().hex[:16]}",
        new_seed=lambda: randbits(63),
        now=time.monotonic,
        is_ready=lambda: bool(control.members),
    )
    app.router.add_get("/link", hub.handle)
    admin_key = settings.security.admin_key
    Admin(control, keeper, log, records, admin_key, head.body_timeout_s).add_routes(app)
    runner = make_runner(app, router_settings)
    await runner.setup()
    try:
        url = await _open(runner, head)
        ready(url)
        await _tick(control, keeper, log)
    finally:
        # A stream that ends for this says so in-band; cut by `cleanup` it would look complete.
        control.stop(UnavailableError("the head is stopping; send the request again", retry_after_s=1))
        hub.close()
        await runner.cleanup()


def _control(
    settings: Settings,
    hub: "Hub",
    keeper: Keeper,
    metrics: RouterMetrics,
    log: EventLog,
    records: deque[MoveRecord],
) -> Control:
    head, moves = settings.head, settings.moves
    policy = policy_named(head.policy)
    drains = DrainSettings(moves.max_moves_per_worker, moves.max_tries)
    early = _early_settings(settings.hazard, moves) if head.policy == "hazard" else None
    limits = SchedulerSettings(drains, head.keep_alive_s, head.patience_s, early)
    risks = Risks(keeper.hazards, settings.hazard.stall_s)

    def on_record(record: MoveRecord) -> None:
        records.append(record)
        count_move(metrics, record)

    control = Control(
        send=hub.send,
        wake=hub.wake,
        new_move=lambda: MoveId(f"move-{uuid.uuid4().hex[:12]}"),
        new_scheduler=lambda: Scheduler(policy, keeper.times, limits, random.random, risks),
        policy=head.policy,
        recorder=Recorder(keeper.times, log, time.monotonic, keeper, keeper.hazards),
        limits=HeadLimits(
            head.max_queued,
            head.max_running,
            head.max_prompt_tokens,
            head.max_output_tokens,
            head.max_failovers,
            head.progress_timeout_s,
            head.prepare_timeout_s,
        ),
        move_limits=move_limits(moves),
        placement_timeout_s=head.placement_timeout_s,
        on_record=on_record,
        now=time.monotonic,
        costs=keeper.costs,
        method=moves.method,
    )
    metrics.watch(
        num_queued=lambda: control.requests.num_queued,
        num_running=lambda: len(control.requests) - control.requests.num_queued,
        num_stale_tokens=lambda: control.requests.num_stale_tokens,
        bias_s={phase: partial(control.costs.bias_s, phase) for phase in PHASES},
    )
    return control


def _early_settings(hazard: HazardSettings, moves: MoveSettings) -> EarlySettings | None:
    if hazard.early == "off":
        return None
    return EarlySettings(
        hazard.early,
        hazard.hysteresis_s,
        hazard.max_hops,
        hazard.min_remaining_tokens,
        hazard.check_s,
        moves.max_moves_per_worker,
    )


def move_limits(moves: MoveSettings) -> MoveLimits:
    """The protocol's limits, as configured."""
    return MoveLimits(
        moves.max_rounds,
        moves.pause_budget_steps,
        moves.shadow_tokens,
        moves.max_shadow_rounds,
        moves.patience_rounds,
        moves.pace,
        moves.timeout_s,
    )


def count_move(metrics: RouterMetrics, record: MoveRecord) -> None:
    """Count a move or failover that is over."""
    if record.method == "failover":
        metrics.failover()
    else:
        metrics.migration(record.method, record.outcome)
        metrics.rounds(len(record.rounds))
        metrics.kv_bytes(record.kv_bytes)
        if (seen := observation(record)) is not None:
            for phase, predicted_s, actual_s in seen.errors():
                metrics.prediction_error(record.method, phase, abs(actual_s - predicted_s))
    metrics.approximate(record.broken)
    if record.pause_s is not None:
        metrics.pause(record.pause_s)


async def _open(runner: web.AppRunner, head: HeadSettings) -> str:
    tls = server_tls("head", head.tls_cert, head.tls_key)
    site = web.TCPSite(runner, head.host, head.port, ssl_context=tls, backlog=1024)
    await site.start()
    port = runner.addresses[0][1]
    host = f"[{head.host}]" if ":" in head.host else head.host
    return f"{'http' if tls is None else 'https'}://{host}:{port}"


async def _tick(control: Control, keeper: Keeper, log: EventLog) -> None:
    while True:
        control.tick()
        keeper.tick(time.monotonic(), log, control.catalog)
        await asyncio.sleep(TICK_S)


class Hub:
    """The links to the workers: frames in, messages out, losses reported once."""

    def __init__(self, settings: HeadSettings, keeper: Keeper, token: str | None) -> None:
        self._settings = settings
        self._keeper = keeper
        self._token = token
        self._links: dict[WorkerId, Link] = {}
        self._control: Control
        self._board: Switchboard

    def serve(self, control: Control) -> None:
        """Be the links of `control`, which needs a hub to be made; call it first of all."""
        self._control = control
        self._board = Switchboard(control, self.send)

    def send(self, worker: WorkerId, message: Message) -> None:
        """Send to a connected worker; one that is gone, or on its way, loses the message."""
        if (link := self._links.get(worker)) is None:
            return
        try:
            link.send(encode(message))
        except LinkError as error:
            _log.info("message lost with the link", worker=worker, reason=error.message)

    def wake(self) -> None:
        """Flush the streams once the frames that are here have been read."""
        asyncio.get_running_loop().call_soon(self._control.requests.flush)

    def close(self) -> None:
        """End all links."""
        for link in self._links.values():
            link.close(HEAD_STOPS)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """The route `/link`: a worker joins and stays until its link ends."""
        try:
            link = await accept(request, self._token, self._settings.dead_after_s)
        except UnauthorizedError as error:
            _log.warning("worker refused", address=request.remote, reason=error.message)
            raise
        try:
            hello = decode_from_worker(await link.receive_first())
            if not isinstance(hello, Hello):
                raise ProtocolError("a link starts with Hello")
        except (LinkError, ProtocolError) as error:
            _log.warning("link refused", address=request.remote, reason=error.message)
            await link.refuse(error.message)
            return web.Response()
        worker = hello.worker
        if not self._board.may_join(hello):
            _log.warning("worker refused", worker=worker, reason="a later life of it has joined")
            link.close(f"a later life of {worker} has joined; this one must not")
        else:
            self._join(hello, link)
        # The server cancels this handler when the connection is lost, so the loss is handled in `finally`.
        reason = "its connection was lost"
        try:
            reason = await link.run(lambda frame: self._take(worker, link, decode_from_worker(frame)))
        finally:
            if self._links.get(worker) is link:
                self._leave(worker, link.reason or reason)
        return web.Response()

    def _join(self, hello: Hello, link: Link) -> None:
        worker = hello.worker
        if (former := self._links.get(worker)) is not None:
            former.close("replaced by a later link")
            self._leave(worker, "replaced by a later link")
        self._links[worker] = link
        _log.info("worker joined", worker=worker, incarnation=hello.incarnation)
        self._keeper.joined(worker, hello.incarnation)
        self.send(worker, Welcome(self._settings.heartbeat_s))
        self._board.joined(hello)

    def _leave(self, worker: WorkerId, reason: str) -> None:
        del self._links[worker]
        _log.info("worker gone", worker=worker, reason=reason)
        self._keeper.left(worker, reason)
        self._board.left(worker, reason)

    def _take(self, worker: WorkerId, link: Link, message: FromWorker) -> None:
        if self._links.get(worker) is not link:
            return
        if (why := self._board.take(worker, message)) is not None:
            link.close(why)
