"""The head's process in virtual time: the real Control and Switchboard over modelled links."""

from collections.abc import Callable

from msgspec.structs import replace

from godwit.costs.choice import MoveCosts
from godwit.costs.sessions import SessionHazards
from godwit.costs.startup import StartupTimes
from godwit.errors import UnavailableError
from godwit.protocol.entry import MoveRecord
from godwit.protocol.head import HeadLimits
from godwit.protocol.message import Message
from godwit.protocol.messages import FromWorker, Hello, Welcome
from godwit.scheduling.control import Control
from godwit.scheduling.policies import policy_named
from godwit.scheduling.recorder import Recorder
from godwit.scheduling.scheduler import Scheduler, SchedulerSettings
from godwit.scheduling.switchboard import Switchboard
from godwit.scheduling.view import Hazards, Risks
from godwit.sim.loop import Event, Loop
from godwit.sim.notes import Notes
from godwit.sim.spec import Policies
from godwit.types import MoveId, MoveLimits, WorkerId

UNLIMITED = 1 << 30


class SimHead:
    """One life of the head. What it has learnt (`times`, `costs`, `hazards`) outlives it, as in a store."""

    def __init__(
        self,
        settings: Policies,
        loop: Loop,
        times: StartupTimes,
        costs: MoveCosts,
        hazards: Hazards,
        notes: Notes,
        send: Callable[[WorkerId, Message], None],
        new_move: Callable[[], MoveId],
        draw: Callable[[], float],
        on_record: Callable[[MoveRecord], None],
        limits: HeadLimits,
        move_limits: MoveLimits,
    ) -> None:
        self._loop = loop
        self._tick_s = settings.tick_s
        self._send_link = send
        self.is_up = True
        self._flush: Event | None = None
        policy = policy_named(settings.policy)
        waiting = SchedulerSettings(
            keep_alive_s=settings.keep_alive_s, patience_s=settings.patience_s, early=settings.early
        )
        risks = Risks(hazards, settings.stall_s)
        stays = hazards if isinstance(hazards, SessionHazards) else None
        self.control = Control(
            send=self._send,
            wake=self._wake,
            new_move=new_move,
            new_scheduler=lambda: Scheduler(policy, times, waiting, draw, risks=risks),
            limits=replace(limits, max_failovers=settings.max_failovers),
            move_limits=move_limits,
            placement_timeout_s=settings.placement_timeout_s,
            on_record=on_record,
            now=loop.now,
            policy=settings.policy,
            recorder=Recorder(times, notes, loop.now, notes, stays),
            costs=costs,
            method=settings.method,
        )
        self._board = Switchboard(self.control, self._send)
        self._timer = loop.after(self._tick_s, self._tick)

    def may_join(self, hello: Hello) -> bool:
        """Whether it takes this life of the worker."""
        return self.is_up and self._board.may_join(hello)

    def joined(self, hello: Hello) -> None:
        """A worker has a new link."""
        self._board.left(hello.worker, "replaced by a later link")
        self._send_link(hello.worker, Welcome(1.0))
        self._board.joined(hello)

    def left(self, worker: WorkerId, reason: str) -> None:
        """A worker's link is over."""
        if self.is_up and worker in self.control.members:
            self._board.left(worker, reason)

    def take(self, worker: WorkerId, message: FromWorker) -> None:
        """Take a message of a worker."""
        if self.is_up and worker in self.control.members and (why := self._board.take(worker, message)):
            self._board.left(worker, why)

    def stop(self) -> None:
        """The process is gone, and with it every request that it had."""
        self.is_up = False
        self._timer.cancel()
        if self._flush is not None:
            self._flush.cancel()
        self.control.stop(UnavailableError("the head is gone; send the request again", retry_after_s=1))

    def _send(self, worker: WorkerId, message: Message) -> None:
        if self.is_up and worker in self.control.members:
            self._send_link(worker, message)

    def _wake(self) -> None:
        if self._flush is None:
            self._flush = self._loop.after(0.0, self._flush_now, priority=1)

    def _flush_now(self) -> None:
        self._flush = None
        self.control.requests.flush()

    def _tick(self) -> None:
        self.control.tick()
        self._timer = self._loop.after(self._tick_s, self._tick)
