"""The moves away from a worker: feeds the source machines and performs their effects."""

from collections.abc import Callable
from dataclasses import dataclass

from godwit.errors import InvariantBrokenError
from godwit.ports import Clock, KvExported
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
from godwit.protocol.kv import MAX_BLOCK_BYTES, BlockDigests, KvSending
from godwit.protocol.machine import Step
from godwit.protocol.messages import (
    Abandon,
    Append,
    Commit,
    Declined,
    InDoubt,
    KvDone,
    KvEnd,
    KvWanted,
    Migrate,
    Migrated,
    MoveFailed,
    PeerMessage,
    Resume,
    Resumed,
)
from godwit.protocol.running import IsDirect, Running, SendHead, SendPeer
from godwit.protocol.source import SOURCE, Source, begin_source
from godwit.types import KvOffer, KvPlan, KvRange, MoveId, RequestId, Round, WorkerId

KV_SHARE = 0.5
"""Of the time for the source's phase: KV that is not there by then is computed, and the move still ends."""


@dataclass(slots=True)
class Outgoing:
    """One move: its order, its request, its machine, how many outputs were sent, its KV if that goes too."""

    order: Migrate
    running: Running
    machine: Source
    started_s: float
    num_sent: int = 0
    ready_s: float | None = None
    kv: KvSending | None = None


class SourceMoves:
    """All moves for which this worker is the source; at most one a request."""

    def __init__(
        self,
        send_head: SendHead,
        send_peer: SendPeer,
        is_direct: IsDirect,
        free: Callable[[Running], None],
        now: Clock,
    ) -> None:
        self._send_head = send_head
        self._send_peer = send_peer
        self._is_direct = is_direct
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
        now = self._now()
        machine, effects = begin_source(order.limits, len(running.output), now)
        outgoing = Outgoing(order, running, machine, now)
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

    def exported(self, request: RequestId, event: KvExported) -> None:
        """The engine has copied the KV of a range."""
        outgoing = self._by_request.get(request)
        if outgoing is None or (kv := outgoing.kv) is None or not kv.is_exporting(event.kv):
            return
        if len(event.data) > MAX_BLOCK_BYTES:
            self._give_kv_up(outgoing, f"a block of it has more than {MAX_BLOCK_BYTES} bytes")
        elif event.problem is not None:
            self._give_kv_up(outgoing, event.problem)
        else:
            kv.exported(event.kv, event.data, outgoing.running.ids)
            self._pump(outgoing, kv)

    def on_peer(self, sender: WorkerId, message: Resumed | Declined | KvWanted | KvDone) -> None:
        """An answer of the destination; another worker's is ignored."""
        outgoing = self._by_move.get(message.move)
        if outgoing is None or outgoing.order.destination != sender:
            return
        match message:
            case Resumed():
                if outgoing.ready_s is None:
                    outgoing.ready_s = self._now() - outgoing.started_s
                self._feed(outgoing, RoundDone(message.num_output, Round(message.tokens, message.seconds)))
            case Declined():
                self._feed(outgoing, PeerGone(f"declined: {message.reason}"))
            case KvWanted():
                self._kv_wanted(outgoing, message.num_bytes)
            case KvDone() if outgoing.kv is not None:
                outgoing.kv.end()

    def peer_gone(self, peer: WorkerId, reason: str) -> None:
        """The link to `peer` broke."""
        for outgoing in [o for o in self._by_move.values() if o.order.destination == peer]:
            self._feed(outgoing, PeerGone(reason))

    def tick(self, now: float) -> None:
        for outgoing in list(self._by_move.values()):
            if outgoing.kv is not None and now >= outgoing.kv.give_up_s:
                self._give_kv_up(outgoing, "it took too long")
            self._feed(outgoing, Tick(now))

    # --- KV -------------------------------------------------------------------------------------------------

    def _offer_kv(self, outgoing: Outgoing, plan: KvPlan) -> str | None:
        """Offer the KV of all tokens but the last, which has none yet; or say why not."""
        running, order, ids = outgoing.running, outgoing.order, outgoing.running.ids
        layout = running.engine.kv_layout
        if layout is None:
            return "this engine exports no ranges of KV"
        if not running.output:
            return "the prompt is being computed"
        share, block_tokens = plan.share, plan.block_tokens
        if running.engine.ships_whole_kv:
            share, block_tokens = 0.0, len(ids)
        offer = KvOffer(KvRange(0, len(ids) - 1), layout, share, block_tokens)
        give_up_s = outgoing.started_s + KV_SHARE * order.limits.timeout_s
        digests = BlockDigests(running.engine.info.digest, offer, ids)
        ships_tail = plan.ships_tail and order.limits.live
        outgoing.kv = KvSending(order.move, offer, ships_tail, digests, give_up_s)
        return None

    def _kv_wanted(self, outgoing: Outgoing, num_bytes: int) -> None:
        kv = outgoing.kv
        if kv is None or kv.is_over:
            return
        if not kv.is_asked and not self._is_direct(outgoing.order.destination):
            self._give_kv_up(outgoing, "there is no direct link to the destination")
            return
        kv.is_asked = True
        kv.num_acked = max(kv.num_acked, min(num_bytes, kv.num_sent))
        self._pump(outgoing, kv)

    def _pump(self, outgoing: Outgoing, kv: KvSending) -> None:
        """Send what may be sent, and have the engine copy what comes next."""
        running = outgoing.running
        for part in kv.parts():
            self._send_peer(outgoing.order.destination, outgoing.order.peer_url, part)
        for wanted in kv.ranges(running.num_tokens - 1):
            running.engine.export_kv(running.sequence, wanted)
        if kv.is_asked and not kv.is_over and kv.is_all_sent:
            self._end_kv(outgoing, kv, None)

    def _give_kv_up(self, outgoing: Outgoing, reason: str) -> None:
        """Ship no (more) KV: the destination has the tokens and computes it."""
        if outgoing.kv is not None and not outgoing.kv.is_over:
            self._end_kv(outgoing, outgoing.kv, reason)

    def _end_kv(self, outgoing: Outgoing, kv: KvSending, problem: str | None) -> None:
        kv.end()
        end = KvEnd(outgoing.order.move, problem)
        self._send_peer(outgoing.order.destination, outgoing.order.peer_url, end)

    # --- the machine ----------------------------------------------------------------------------------------

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
                done = Migrated(
                    order.move,
                    machine.num_output,
                    machine.gap_tokens,
                    machine.rounds,
                    outgoing.ready_s,
                )
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
        running, order, problem = outgoing.running, outgoing.order, None
        if order.kv is not None:
            problem = self._offer_kv(outgoing, order.kv)
        return Resume(
            outgoing.order.move,
            running.request,
            running.model,
            running.engine.info.digest,
            running.prompt_ids,
            tuple(running.output),
            running.sampling,
            order.journaled,
            None if outgoing.kv is None else outgoing.kv.offer,
            problem,
        )
