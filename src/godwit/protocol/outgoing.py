"""The moves away from a worker: feeds the source machines and performs their effects."""

from collections.abc import Callable
from dataclasses import dataclass

from godwit.errors import InvariantBrokenError
from godwit.ports import Clock
from godwit.protocol.events import (
    Do,
    Drawn,
    HoldAt,
    KeepOrdered,
    Pace,
    PeerGone,
    ReleaseOrdered,
    RequestEnded,
    RoundDone,
    Stopped,
    Tick,
)
from godwit.protocol.machine import Step
from godwit.protocol.messages import (
    Abandon,
    Append,
    Commit,
    Declined,
    InDoubt,
    Migrate,
    Migrated,
    MoveFailed,
    PeerMessage,
    Resume,
    Resumed,
)
from godwit.protocol.running import Running, SendHead, SendPeer
from godwit.protocol.source import SOURCE, Source, begin_source
from godwit.types import MoveId, RequestId, Round, WorkerId


@dataclass(slots=True)
class Outgoing:
    """One move: its order, its request, its machine, and how many outputs the destination was sent."""

    order: Migrate
    running: Running
    machine: Source
    num_sent: int = 0


class SourceMoves:
    """All moves for which this worker is the source; at most one a request."""

    def __init__(
        self, send_head: SendHead, send_peer: SendPeer, free: Callable[[Running], None], now: Clock
    ) -> None:
        self._send_head = send_head
        self._send_peer = send_peer
        self._free = free
        self._now = now
        self._by_move: dict[MoveId, Outgoing] = {}
        self._by_request: dict[RequestId, Outgoing] = {}

    def __len__(self) -> int:
        return len(self._by_move)

    def begin(self, order: Migrate, running: Running | None) -> None:
        """Start what the head ordered, or tell it why not."""
        if order.move in self._by_move:
            return
        if running is None or running.epoch != order.epoch:
            self._send_head(MoveFailed(order.move, "the request is not here", ()))
            return
        if order.request in self._by_request:
            self._send_head(MoveFailed(order.move, "the request is moving already", ()))
            return
        machine, effects = begin_source(order.limits, len(running.output), self._now())
        outgoing = Outgoing(order, running, machine)
        self._by_move[order.move] = outgoing
        self._by_request[order.request] = outgoing
        self._follow(outgoing, (machine, effects))

    def drawn(self, running: Running) -> None:
        """The engine drew tokens for a request of this worker."""
        if outgoing := self._by_request.get(running.request):
            self._feed(outgoing, Drawn(len(running.output)))

    def stopped(self, request: RequestId, num_output: int) -> None:
        """The engine holds a request at a token boundary."""
        if outgoing := self._by_request.get(request):
            self._feed(outgoing, Stopped(num_output))

    def ended(self, request: RequestId) -> None:
        """The request finished or was cancelled here."""
        if outgoing := self._by_request.get(request):
            self._feed(outgoing, RequestEnded())

    def keep(self, move: MoveId) -> None:
        if outgoing := self._by_move.get(move):
            self._feed(outgoing, KeepOrdered())

    def release(self, move: MoveId) -> None:
        if outgoing := self._by_move.get(move):
            self._feed(outgoing, ReleaseOrdered())

    def on_peer(self, sender: WorkerId, message: Resumed | Declined) -> None:
        """An answer of the destination; another worker's is ignored."""
        outgoing = self._by_move.get(message.move)
        if outgoing is None or outgoing.order.destination != sender:
            return
        if isinstance(message, Resumed):
            self._feed(outgoing, RoundDone(message.num_output, Round(message.tokens, message.seconds)))
        else:
            self._feed(outgoing, PeerGone(f"declined: {message.reason}"))

    def peer_gone(self, peer: WorkerId, reason: str) -> None:
        """The link to `peer` broke."""
        for outgoing in [o for o in self._by_move.values() if o.order.destination == peer]:
            self._feed(outgoing, PeerGone(reason))

    def tick(self, now: float) -> None:
        for outgoing in list(self._by_move.values()):
            self._feed(outgoing, Tick(now))

    def _feed(self, outgoing: Outgoing, event: object) -> None:
        self._follow(outgoing, SOURCE.step(outgoing.machine, event))

    def _follow(self, outgoing: Outgoing, step: Step[Source]) -> None:
        outgoing.machine, effects = step
        if outgoing.machine.state in SOURCE.ends:
            del self._by_move[outgoing.order.move]
            del self._by_request[outgoing.order.request]
        for effect in effects:
            self._perform(outgoing, effect)

    def _perform(self, outgoing: Outgoing, effect: object) -> None:
        running, order, machine = outgoing.running, outgoing.order, outgoing.machine
        match effect:
            case HoldAt(num_output):
                running.engine.hold(running.sequence, num_output)
            case Pace(factor):
                running.engine.pace(running.sequence, factor)
            case Do.GENERATE:
                running.engine.generate(running.sequence)
            case Do.FREE:
                self._free(running)
            case Do.SEND_RESUME:
                self._to_peer(outgoing, self._resume(outgoing))
            case Do.SEND_APPEND:
                new = tuple(running.output[outgoing.num_sent :])
                self._to_peer(outgoing, Append(order.move, outgoing.num_sent, new))
            case Do.SEND_ABANDON:
                self._to_peer(outgoing, Abandon(order.move, machine.reason))
            case Do.SEND_COMMIT:
                self._to_peer(outgoing, Commit(order.move, machine.num_output))
                done = Migrated(order.move, machine.num_output, machine.gap_tokens, machine.rounds)
                self._send_head(done)
            case Do.SEND_IN_DOUBT:
                self._send_head(InDoubt(order.move, order.request, order.epoch, machine.reason))
            case Do.SEND_FAILED:
                self._send_head(MoveFailed(order.move, machine.reason, machine.rounds))
            case _:
                raise InvariantBrokenError(f"a source cannot {effect}")

    def _to_peer(self, outgoing: Outgoing, message: PeerMessage) -> None:
        outgoing.num_sent = len(outgoing.running.output)
        self._send_peer(outgoing.order.destination, outgoing.order.peer_url, message)

    def _resume(self, outgoing: Outgoing) -> Resume:
        running = outgoing.running
        return Resume(
            outgoing.order.move,
            running.request,
            running.model,
            running.engine.info.digest,
            running.prompt_ids,
            tuple(running.output),
            running.sampling,
            outgoing.order.journaled,
        )
