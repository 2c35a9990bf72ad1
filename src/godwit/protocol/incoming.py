"""The moves to a worker: reserves slots, feeds the destination machines and performs their effects."""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from godwit.errors import GodwitError, InvariantBrokenError
from godwit.ports import Clock, Computed, Engine, Instances, KvImported
from godwit.protocol.destination import DESTINATION, Destination, DestinationState
from godwit.protocol.events import (
    AbortOrdered,
    AppendArrived,
    CommitArrived,
    DestinationFailed,
    Do,
    KvReady,
    PeerGone,
    ResumeArrived,
    Tick,
)
from godwit.protocol.kv import SILENCE_S, BlockDigests, KvReceiving
from godwit.protocol.messages import (
    Abandon,
    Append,
    Commit,
    Declined,
    KvDone,
    KvEnd,
    KvPart,
    KvTaken,
    KvWanted,
    PeerMessage,
    Prepare,
    Prepared,
    Refused,
    Resume,
    Resumed,
)
from godwit.protocol.running import Running, SendHead, SendPeer
from godwit.types import Epoch, KvOffer, KvReport, ModelName, MoveId, RequestId, Round, Token, WorkerId


@dataclass(slots=True)
class Incoming:
    """One move: its order, its machine, what has arrived, and whether its model was loaded for it.

    `kv` is on its way here, since `offered_s`; `kv_report` is what became of it so far, `kv_refusal` why it
    is not wanted. `num_pulled` bytes came to the engine by a way of its own.
    """

    order: Prepare
    machine: Destination
    running: Running | None = None
    fresh: tuple[Token, ...] = ()
    last_round: KvReady | None = None
    kv: KvReceiving | None = None
    kv_refusal: str | None = None
    kv_report: KvReport = field(default_factory=KvReport)
    offered_s: float = 0.0
    num_pulled: int = 0


class DestinationMoves:
    """All moves for which this worker is the destination.

    `send_head` comes after the tokens of the engine step that is being taken, `send_head_first` before them.
    """

    def __init__(
        self,
        instances: Instances,
        send_head: SendHead,
        send_head_first: SendHead,
        send_peer: SendPeer,
        adopt: Callable[[Running], None],
        free: Callable[[Running], None],
        now: Clock,
    ) -> None:
        self._instances = instances
        self._send_head = send_head
        self._send_head_first = send_head_first
        self._send_peer = send_peer
        self._adopt = adopt
        self._free_running = free
        self._now = now
        self._by_move: dict[MoveId, Incoming] = {}

    def __len__(self) -> int:
        return len(self._by_move)

    @property
    def num_open(self) -> int:
        """Those whose request is not this worker's yet."""
        return sum(one.machine.state is not DestinationState.OWNER for one in self._by_move.values())

    @property
    def sequences(self) -> list[RequestId]:
        """The engine's names of those that hold a slot."""
        return [m.running.sequence for m in self._by_move.values() if m.running is not None]

    def num_reserved(self, model: ModelName) -> int:
        """Slots of `model` promised to moves whose first round has not come."""
        waiting = DestinationState.PREPARED
        return sum(m.order.model == model and m.machine.state is waiting for m in self._by_move.values())

    def prepare(self, order: Prepare) -> None:
        """Reserve a slot, loading the model where it is missing; Prepared or Refused follows."""
        if order.move in self._by_move:
            return
        engine = self._instances.get(order.model)
        if engine is not None and engine.free_slots <= self.num_reserved(order.model):
            self._send_head(Refused(order.move, "no free slot"))
            return
        incoming = Incoming(order, Destination(self._now() + order.timeout_s))
        self._by_move[order.move] = incoming
        if engine is not None:
            self._send_head(Prepared(order.move))
            return
        self._instances.load(order.model, lambda result: self._loaded(incoming, result))

    def _loaded(self, incoming: Incoming, result: Engine | GodwitError) -> None:
        if isinstance(result, GodwitError):
            self._feed(incoming, DestinationFailed(result.message))
        elif incoming.machine.state is DestinationState.PREPARED:
            self._send_head(Prepared(incoming.order.move))

    def on_peer(self, sender: WorkerId, message: Resume | Append | Commit | Abandon | KvPart | KvEnd) -> None:
        """A message of the source; one for a move unknown here is declined, another worker's too."""
        incoming = self._by_move.get(message.move)
        if incoming is None or incoming.order.source != sender:
            if not isinstance(message, Abandon | KvPart | KvEnd):
                self._send_peer(sender, None, Declined(message.move, "no such move here"))
            return
        match message:
            case Resume():
                self._on_resume(incoming, message)
            case Append():
                skip = incoming.machine.num_known - message.first_index
                incoming.fresh = message.output[skip:] if skip >= 0 else ()
                end = message.first_index + len(message.output)
                self._feed(incoming, AppendArrived(message.first_index, end))
            case Commit():
                self._feed(incoming, CommitArrived(message.num_output))
            case Abandon():
                self._feed(incoming, PeerGone(message.reason))
            case KvPart():
                self._on_kv_part(incoming, message)
            case KvEnd():
                self._end_kv(incoming, message.problem)

    def _on_resume(self, incoming: Incoming, message: Resume) -> None:
        engine = self._instances.get(incoming.order.model)
        if engine is None:
            refusal: str | None = "the model is not loaded"
        elif engine.info.digest != message.digest:
            refusal = "another checkpoint has this model's name here"
        else:
            refusal = None
            if incoming.running is None:
                incoming.running = Running(
                    incoming.order.request,
                    incoming.order.epoch,
                    incoming.order.model,
                    engine,
                    message.prompt_ids,
                    message.sampling,
                    list(message.output),
                    message.journaled,
                )
                incoming.kv_refusal = message.kv_problem
                if message.kv is not None:
                    self._consider_kv(incoming, incoming.running, message.kv)
        self._feed(incoming, ResumeArrived(len(message.output), refusal))

    def _consider_kv(self, incoming: Incoming, running: Running, offer: KvOffer) -> None:
        engine, ids = running.engine, running.ids
        if engine.kv_layout != offer.layout:
            incoming.kv_refusal = f"the destination's KV is {engine.kv_layout}, not {offer.layout}"
        elif not 0 <= offer.kv.first < offer.kv.last < len(ids):
            incoming.kv_refusal = f"{len(ids)} tokens have no KV up to {offer.kv.last} before them"
        else:
            incoming.offered_s = self._now()
            digests = BlockDigests(engine.info.digest, offer, ids)
            incoming.kv = KvReceiving(offer, digests, incoming.offered_s)

    def _on_kv_part(self, incoming: Incoming, part: KvPart) -> None:
        kv, running = incoming.kv, incoming.running
        if kv is None or running is None:
            return
        num_before, now = kv.num_received, self._now()
        block = kv.take(part, running.num_tokens, lambda: running.ids, now)
        if isinstance(block, str):
            self._without_kv(incoming, block)
            return
        if kv.num_received > num_before:
            seconds = now - incoming.offered_s
            incoming.kv_report = replace(incoming.kv_report, num_bytes=kv.num_received, seconds=seconds)
            self._to_source(incoming, KvWanted(incoming.order.move, kv.num_received))
        if block is not None:
            running.engine.import_kv(running.sequence, *block)

    def _end_kv(self, incoming: Incoming, problem: str | None) -> None:
        """No more will come: what is missing is computed."""
        if incoming.kv is None or incoming.running is None or incoming.kv.is_all:
            return
        if problem is not None:
            self._without_kv(incoming, problem)
        else:
            incoming.kv.is_all = True
            incoming.running.engine.stop_awaiting(incoming.running.sequence)

    def _without_kv(self, incoming: Incoming, problem: str) -> None:
        """Compute what was to be shipped; nothing is lost, for its tokens are here."""
        if incoming.kv is not None and incoming.running is not None:
            incoming.running.engine.stop_awaiting(incoming.running.sequence)
            self._kv_done(incoming, problem)

    def _kv_done(self, incoming: Incoming, problem: str | None) -> None:
        """Tell both what became of the KV: the source stops sending, the head keeps the record."""
        incoming.kv = None
        incoming.kv_report = replace(incoming.kv_report, problem=problem)
        self._to_source(incoming, KvDone(incoming.order.move))
        # Before the first token, with which the head closes the record.
        self._send_head_first(KvTaken(incoming.order.move, incoming.kv_report))

    def imported(self, event: KvImported) -> None:
        """The engine has taken KV that was shipped, refused it, or needs no more."""
        if (incoming := self._of_sequence(event.request)) is None or incoming.kv is None:
            return
        report = incoming.kv_report
        num_tokens = report.num_tokens + event.kv.last - event.kv.first
        computed = Round(
            report.computed.tokens + event.computed.tokens, report.computed.seconds + event.computed.seconds
        )
        incoming.kv_report = replace(report, num_tokens=num_tokens, computed=computed)
        if event.num_bytes is not None:
            num_bytes, seconds = incoming.num_pulled + event.num_bytes, self._now() - incoming.offered_s
            incoming.num_pulled = num_bytes
            incoming.kv_report = replace(incoming.kv_report, num_bytes=num_bytes, seconds=seconds)
        if event.is_last or event.problem is not None:
            self._kv_done(incoming, event.problem)

    def computed(self, event: Computed) -> None:
        """The engine did a round for a held sequence."""
        if (incoming := self._of_sequence(event.request)) and incoming.running:
            num_output = event.num_tokens - len(incoming.running.prompt_ids)
            incoming.last_round = KvReady(num_output, Round(event.round_tokens, event.seconds))
            self._feed(incoming, incoming.last_round)

    def engine_failed(self, sequence: RequestId | None, model: ModelName | None, reason: str) -> None:
        """The engine cannot go on with a sequence, or (None) with any of `model`."""
        if sequence is None:
            for incoming in [m for m in self._by_move.values() if m.order.model == model]:
                self._feed(incoming, DestinationFailed(reason))
        elif found := self._of_sequence(sequence):
            self._feed(found, DestinationFailed(reason))

    def abort(self, move: MoveId) -> None:
        if incoming := self._by_move.get(move):
            self._feed(incoming, AbortOrdered())

    def fence(self, request: RequestId, epoch: Epoch) -> None:
        """A later epoch of the request begins here: its earlier moves are over."""
        for incoming in list(self._by_move.values()):
            if incoming.order.request == request and incoming.order.epoch < epoch:
                self._feed(incoming, AbortOrdered())

    def abort_all(self) -> None:
        for move in list(self._by_move):
            self.abort(move)

    def forget(self, running: Running) -> None:
        """The request ended or left here after its move: nothing is left to abort."""
        if incoming := self._of_sequence(running.sequence):
            del self._by_move[incoming.order.move]

    def peer_gone(self, peer: WorkerId, reason: str) -> None:
        """The link to `peer` broke."""
        for incoming in [m for m in self._by_move.values() if m.order.source == peer]:
            self._without_kv(incoming, reason)
            self._feed(incoming, PeerGone(reason))

    def tick(self, now: float) -> None:
        for incoming in list(self._by_move.values()):
            kv = incoming.kv
            if kv is not None and not kv.is_all and now >= kv.heard_s + SILENCE_S:
                self._without_kv(incoming, "it did not come")
            self._feed(incoming, Tick(now))

    def _of_sequence(self, sequence: RequestId) -> Incoming | None:
        known = (m for m in self._by_move.values() if m.running is not None)
        return next((m for m in known if m.running and m.running.sequence == sequence), None)

    def _feed(self, incoming: Incoming, event: object) -> None:
        incoming.machine, effects = DESTINATION.step(incoming.machine, event)
        if incoming.machine.state in DESTINATION.ends:
            self._by_move.pop(incoming.order.move, None)
        for effect in effects:
            self._perform(incoming, effect)

    def _perform(self, incoming: Incoming, effect: object) -> None:
        order, reason = incoming.order, incoming.machine.reason
        match effect:
            case Do.OPEN:
                self._open(incoming)
            case Do.APPEND if running := incoming.running:
                running.output.extend(incoming.fresh)
                running.engine.append(running.sequence, [token.id for token in incoming.fresh])
            case Do.ADOPT if running := incoming.running:
                self._adopt(running)
            case Do.FREE:
                self._free(incoming)
            case Do.SEND_RESUMED if done := incoming.last_round:
                message = Resumed(order.move, done.num_output, done.round.tokens, done.round.seconds)
                self._to_source(incoming, message)
            case Do.SEND_DECLINED:
                self._to_source(incoming, Declined(order.move, reason))
            case Do.SEND_REFUSED:
                self._send_head(Refused(order.move, reason))
            case _:
                raise InvariantBrokenError(f"a destination cannot {effect}")

    def _open(self, incoming: Incoming) -> None:
        running = incoming.running
        if running is None:
            raise InvariantBrokenError("a round before its tokens")
        try:
            running.engine.check(running.spec)
            awaits = None if incoming.kv is None else incoming.kv.offer
            running.engine.open(running.sequence, running.spec, awaits)
        except GodwitError as error:
            incoming.running = None
            self._feed(incoming, DestinationFailed(error.message))
            return
        if incoming.kv is not None:
            self._to_source(incoming, KvWanted(incoming.order.move, 0))
        elif incoming.kv_refusal is not None:
            self._kv_done(incoming, incoming.kv_refusal)

    def _free(self, incoming: Incoming) -> None:
        if incoming.running is not None:
            self._free_running(incoming.running)

    def _to_source(self, incoming: Incoming, message: PeerMessage) -> None:
        self._send_peer(incoming.order.source, None, message)
