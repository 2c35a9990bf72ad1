"""The head's moves: feeds the coordinators, performs their effects, and fails requests over."""

from collections.abc import Callable, Mapping
from typing import Protocol

from godwit.errors import GodwitError, InvariantBrokenError, UnavailableError
from godwit.ports import Clock
from godwit.protocol.coordinator import COORDINATOR, Coordinator
from godwit.protocol.entry import Entry, Failover, MovePlan, MoveRecord, Moving
from godwit.protocol.events import (
    Adopted,
    DestinationFailed,
    DestinationReady,
    Do,
    RequestEnded,
    SourceGaveUp,
    SourceGone,
    SourceInDoubt,
    SourceStopped,
)
from godwit.protocol.message import Message
from godwit.protocol.messages import (
    AbortMove,
    InDoubt,
    Keep,
    KvTaken,
    Migrate,
    Migrated,
    MoveFailed,
    Prepare,
    Prepared,
    Refused,
    Release,
)
from godwit.types import ModelName, MoveId, MoveLimits, Promise, RequestId, WorkerId

MoveReport = Prepared | Refused | KvTaken | MoveFailed | Migrated | InDoubt


class Observer(Protocol):
    """Who wants to know: the scheduler's driver and the metrics. Calls may come while the head is at work,
    so decisions that follow must be made after the call that led to them has returned."""

    def queued(
        self, request: RequestId, model: ModelName, exclude: frozenset[WorkerId], has_started: bool
    ) -> None:
        """The request needs a worker: `place` or `reject` must follow."""
        ...

    def placement_failed(
        self, request: RequestId, worker: WorkerId, reason: str, *, is_too_long: bool
    ) -> None:
        """The worker had no room, or no context for so many tokens: `place` elsewhere or `reject` must
        follow."""
        ...

    def accepted(self, request: RequestId, worker: WorkerId, num_tokens: int) -> None:
        """The worker that it was placed on has begun with its tokens so far, prompt and output."""
        ...

    def drew_first(self, entry: Entry) -> None:
        """That worker has computed them and drawn the first token there."""
        ...

    def ended(self, entry: Entry, *, is_whole: bool) -> None:
        """The request is over and its slots are free; `is_whole`: it came to its own end."""
        ...

    def move_ended(self, record: MoveRecord) -> None:
        """A move or failover is over."""
        ...


class HeadMoves:
    """Planned and unplanned moves of the head's requests."""

    def __init__(
        self,
        send: Callable[[WorkerId, Message], None],
        observer: Observer,
        finish: Callable[[Entry, str], None],
        fail: Callable[[Entry, GodwitError], None],
        new_move: Callable[[], MoveId],
        prepare_timeout_s: float,
        max_failovers: int,
        now: Clock,
    ) -> None:
        self._send = send
        self._observer = observer
        self._finish = finish
        self._fail = fail
        self._new_move = new_move
        self._prepare_timeout_s = prepare_timeout_s
        self._max_failovers = max_failovers
        self._now = now

    def begin(
        self,
        entry: Entry,
        destination: WorkerId,
        peer_url: str | None,
        limits: MoveLimits,
        plan: MovePlan,
        reason: str,
    ) -> None:
        """Offer the request to `destination` and have it prepare."""
        source, now = entry.journal.owner, self._now()
        if source is None:
            raise InvariantBrokenError(f"{entry.request} has no owner to move from")
        epoch = entry.journal.offer(destination)
        prepare_by_s = now + self._prepare_timeout_s
        # Twice the source's own bound: the source gives up first, and its word ends the move cleanly.
        machine = Coordinator(limits, prepare_by_s, prepare_by_s + 2 * limits.timeout_s)
        move = self._new_move()
        entry.moving = Moving(
            move, source, destination, peer_url, reason, now, machine, plan, entry.journal.num_tokens
        )
        timeout_s = self._prepare_timeout_s + 2 * limits.timeout_s
        self._send(destination, Prepare(move, entry.request, epoch, entry.model, source, timeout_s))

    def on_worker(self, entries: Mapping[RequestId, Entry], worker: WorkerId, message: MoveReport) -> None:
        """Take a report on a move from the end that it is about; any other worker's is ignored."""
        entry = next((e for e in entries.values() if e.moving and e.moving.move == message.move), None)
        if entry is None or entry.moving is None:
            if isinstance(message, InDoubt):
                self._settle_doubt(entries.get(message.request), worker, message)
            return
        is_destination = isinstance(message, Prepared | Refused | KvTaken)
        if worker != (entry.moving.destination if is_destination else entry.moving.source):
            return
        match message:
            case Prepared():
                self.feed(entry, DestinationReady())
            case Refused():
                self.feed(entry, DestinationFailed(message.reason))
            case MoveFailed():
                entry.moving.rounds = message.rounds
                self.feed(entry, SourceGaveUp(message.reason))
            case Migrated():
                entry.moving.rounds, entry.moving.ready_s = message.rounds, message.ready_s
                entry.moving.gap_tokens, entry.moving.num_output = message.gap_tokens, message.num_output
                self.feed(entry, SourceStopped())
            case KvTaken():
                entry.moving.kv = message.report
            case InDoubt():
                self.feed(entry, SourceInDoubt(message.reason))

    def _settle_doubt(self, entry: Entry | None, worker: WorkerId, message: InDoubt) -> None:
        """The move is over, and the source does not know: the journal says whose the request is."""
        is_its_own = entry is not None and entry.journal.is_entitled(worker, message.epoch)
        self._send(worker, Keep(message.move) if is_its_own else Release(message.move))

    def adopted(self, entry: Entry, now: float) -> None:
        """The journal has just taken the first event of a move's destination."""
        if entry.moving is None:
            raise InvariantBrokenError(f"{entry.request} was adopted without a move")
        entry.moving.is_adopted = True
        # Even where the head has no output yet, the source has drawn: the destination begins with that.
        entry.moving.broken = entry.drawn(entry.moving.plan.carries, is_begun=True)
        entry.moving.pause_s = now - entry.last_token_s if entry.last_token_s else None
        entry.num_moves += 1
        self.feed(entry, Adopted())

    def recovered(
        self, entry: Entry, worker: WorkerId, num_output: int, now: float, broken: tuple[Promise, ...] = ()
    ) -> None:
        """The first token after a failover has come, as output `num_output`; the promises that this broke."""
        if (lost := entry.failover) is None:
            return
        entry.failover = None
        record = MoveRecord(
            self._new_move(),
            entry.request,
            lost.source,
            worker,
            "failover",
            "done",
            lost.reason,
            (),
            0,
            num_output,
            now - lost.last_token_s if lost.last_token_s else None,
            now - lost.started_s,
            model=entry.model,
            broken=broken,
        )
        self._observer.move_ended(record)

    def source_lost(self, entry: Entry, worker: WorkerId, reason: str) -> None:
        """`worker`, source or owner, has lost the request: the move decides, or it fails over."""
        if entry.moving is not None and entry.moving.source == worker:
            self.feed(entry, SourceGone(f"{worker}: {reason}"))
        elif entry.moving is not None and entry.moving.is_adopted:
            self.feed(entry, DestinationFailed(reason))
        if entry.journal.owner == worker and not entry.is_orphaned:
            self._fail_over(entry, worker, reason)

    def source_rejected(self, entry: Entry, reason: str) -> None:
        """The source never took the request that it was to move."""
        self.feed(entry, SourceGaveUp(reason))

    def ended(self, entry: Entry) -> None:
        """The request is over, and so is its move."""
        self.feed(entry, RequestEnded())

    def feed(self, entry: Entry, event: object) -> None:
        """Give an event to the request's move, if it has one."""
        moving = entry.moving
        if moving is None:
            return
        moving.machine, effects = COORDINATOR.step(moving.machine, event)
        for effect in effects:
            self._perform(entry, moving, effect)

    def _perform(self, entry: Entry, moving: Moving, effect: object) -> None:
        match effect:
            case Do.ORDER_MIGRATE:
                # While the destination loaded the model, the request has gone on.
                moving.context_tokens = entry.journal.num_tokens
                order = Migrate(
                    moving.move,
                    entry.request,
                    entry.journal.epoch,
                    moving.destination,
                    moving.peer_url,
                    len(entry.journal.output_ids),
                    moving.machine.limits,
                    moving.plan.kv,
                )
                self._send(moving.source, order)
            case Do.ORDER_ABORT:
                self._send(moving.destination, AbortMove(moving.move))
            case Do.ORDER_KEEP:
                self._send(moving.source, Keep(moving.move))
            case Do.ORDER_RELEASE:
                self._send(moving.source, Release(moving.move))
            case Do.REVOKE:
                entry.journal.revoke()
            case Do.FAIL_OVER:
                self._fail_over(entry, moving.source, moving.machine.reason)
            case Do.RECORD:
                self._record(entry, moving)
            case _:
                raise InvariantBrokenError(f"the head cannot {effect}")

    def _record(self, entry: Entry, moving: Moving) -> None:
        entry.moving = None
        kv = moving.kv
        record = MoveRecord(
            moving.move,
            entry.request,
            moving.source,
            moving.destination,
            moving.method,
            "done" if moving.is_adopted else "failed",
            moving.machine.reason or moving.reason,
            moving.rounds,
            moving.gap_tokens,
            moving.num_output,
            moving.pause_s,
            self._now() - moving.started_s,
            kv.num_tokens if kv is not None else 0,
            kv.num_bytes if kv is not None else 0,
            kv.problem if kv is not None else None,
            entry.model,
            moving.context_tokens,
            moving.computed.tokens,
            moving.machine.limits.live,
            moving.plan.predicted,
            moving.actual,
            moving.broken,
        )
        self._observer.move_ended(record)

    def _fail_over(self, entry: Entry, worker: WorkerId, reason: str) -> None:
        entry.journal.disown()
        if entry.failover is None:
            entry.failover = Failover(worker, self._now(), entry.last_token_s, reason)
        entry.num_failovers += 1
        if len(entry.journal.output_ids) >= entry.sampling.max_tokens:
            self._finish(entry, "length")
        elif entry.num_failovers > self._max_failovers:
            text = f"lost its server {entry.num_failovers} times, the last time: {reason}; send it again"
            self._fail(entry, UnavailableError(text, retry_after_s=1))
        else:
            has_started = bool(entry.journal.output_ids)
            self._observer.queued(entry.request, entry.model, frozenset((worker,)), has_started)
