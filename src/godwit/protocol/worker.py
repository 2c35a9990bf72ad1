"""A worker's side of the protocol: the requests that it computes and its moves. Synchronous, no I/O.

The worker's process gives it messages, engine events and ticks, and carries what it sends. All calls come
from one thread.
"""

from collections.abc import Sequence

from godwit.errors import GodwitError, ModelLoadError, NoFreeSlotError
from godwit.ports import (
    Clock,
    Computed,
    Ended,
    Engine,
    EngineEvent,
    Failed,
    Generated,
    Held,
    Instances,
    KvExported,
    KvImported,
)
from godwit.protocol.incoming import DestinationMoves
from godwit.protocol.message import Message
from godwit.protocol.messages import (
    AbortMove,
    Accepted,
    Declined,
    Keep,
    KvDone,
    KvPart,
    KvWanted,
    Migrate,
    PeerMessage,
    Prepare,
    Rejected,
    Release,
    RequestFailed,
    Resumed,
    Stop,
    Submit,
    Tokens,
)
from godwit.protocol.outgoing import SourceMoves
from godwit.protocol.running import IsDirect, Running, SendHead, SendPeer
from godwit.types import ChatPrompt, Epoch, Prompt, RequestId, TextPrompt, Token, TokenId, WorkerId

RequestOrder = Submit | Stop | Prepare | Migrate | AbortMove | Keep | Release


def prompt_ids(engine: Engine, prompt: Prompt) -> tuple[TokenId, ...]:
    """The token ids of a prompt, as the engine's tokenizer and chat template make them."""
    match prompt:
        case ChatPrompt():
            return tuple(engine.tokenize(engine.render(prompt.messages), add_special=True))
        case TextPrompt():
            return tuple(engine.tokenize(prompt.text, add_special=True))
        case _:
            return prompt.ids


class WorkerRequests:
    """All requests at one worker, whether it owns them, is taking them in, or is giving them away."""

    def __init__(
        self,
        instances: Instances,
        send_head: SendHead,
        send_peer: SendPeer,
        is_direct: IsDirect,
        now: Clock,
    ) -> None:
        self._instances = instances
        self._send_head = send_head
        self._now = now
        self._running: dict[RequestId, Running] = {}
        self._by_sequence: dict[RequestId, Running] = {}
        self._outgoing = SourceMoves(self._queue, send_peer, is_direct, self._free, now)
        self._incoming = DestinationMoves(
            instances, self._queue, send_head, send_peer, self._adopt, self._free, now
        )
        self._queued: list[Message] = []
        self._is_stepping = False

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_moves(self) -> int:
        return len(self._outgoing) + len(self._incoming)

    @property
    def sequences(self) -> set[RequestId]:
        """The engines' names of all that holds a slot here: what runs, and what moves here."""
        return {*self._by_sequence, *self._incoming.sequences}

    @property
    def num_open_moves(self) -> int:
        """Moves under way: those without the ones that brought a request which runs here now."""
        return len(self._outgoing) + self._incoming.num_open

    def on_head(self, message: RequestOrder) -> None:
        """Do what the head ordered about a request or a move."""
        match message:
            case Submit():
                self._submit(message)
            case Stop():
                self._stop(message)
            case Prepare():
                if self._fence(message.request, message.epoch):
                    self._incoming.prepare(message)
            case Migrate():
                self._outgoing.begin(message, self._running.get(message.request))
            case AbortMove():
                self._incoming.abort(message.move)
            case Keep():
                self._outgoing.keep(message.move)
            case Release():
                self._outgoing.release(message.move)

    def on_peer(self, sender: WorkerId, message: PeerMessage | KvPart) -> None:
        """Take a message that came from another worker, by its own link or through the head."""
        if isinstance(message, Resumed | Declined | KvWanted | KvDone):
            self._outgoing.on_peer(sender, message)
        else:
            self._incoming.on_peer(sender, message)

    def peer_gone(self, peer: WorkerId, reason: str) -> None:
        """The link to another worker broke."""
        self._outgoing.peer_gone(peer, reason)
        self._incoming.peer_gone(peer, reason)

    def head_gone(self) -> None:
        """Stop everything: the head has fenced this worker off, so whatever it computes is lost anyway."""
        self._incoming.abort_all()
        for running in list(self._running.values()):
            self._end(running)
        self._queued.clear()

    def tick(self, now: float) -> None:
        """Let deadlines pass."""
        self._outgoing.tick(now)
        self._incoming.tick(now)

    def on_step(self, events: Sequence[EngineEvent]) -> None:
        """Take what one engine step made: one message to the head, and whatever the moves make of it."""
        finished: dict[RequestId, str] = {}
        drawn: dict[RequestId, Running] = {}
        self._is_stepping = True
        try:
            for event in events:
                self._take_event(event, drawn, finished)
        finally:
            self._is_stepping = False
        for sequence, running in drawn.items():
            if sequence not in finished:
                self._outgoing.drawn(running)
        if drawn:
            self._send_head(Tokens([running.tell(finished.get(s)) for s, running in drawn.items()]))
        self._flush()
        for sequence in finished:
            if ended := self._by_sequence.get(sequence):
                self._end(ended)

    def _take_event(
        self, event: EngineEvent, drawn: dict[RequestId, Running], finished: dict[RequestId, str]
    ) -> None:
        running = None if event.request is None else self._by_sequence.get(event.request)
        match event:
            case Generated() if running:
                running.output.append(event.token)
                drawn[event.request] = running
            case Ended() if running:
                drawn[event.request] = running
                finished[event.request] = event.reason
            case Computed():
                self._incoming.computed(event)
            case Held() if running:
                self._outgoing.drawn(running)
                self._outgoing.stopped(running.request, event.num_output)
            case KvExported() if running:
                self._outgoing.exported(running.request, event)
            case KvImported():
                self._incoming.imported(event)
            case Failed():
                self._failed(event)

    def _queue(self, message: Message) -> None:
        """Send to the head, but after the tokens of the step that is being taken."""
        self._queued.append(message)
        if not self._is_stepping:
            self._flush()

    def _flush(self) -> None:
        queued, self._queued = self._queued, []
        for message in queued:
            self._send_head(message)

    def _submit(self, order: Submit) -> None:
        if not self._fence(order.request, order.epoch):
            return
        try:
            engine = self._instances.get(order.model)
            if engine is None or engine.free_slots <= self._incoming.num_reserved(order.model):
                raise NoFreeSlotError(f"{order.model} has no free slot here")
            if order.digest not in ("", engine.info.digest):
                raise ModelLoadError("another checkpoint has this model's name here")
            ids = prompt_ids(engine, order.prompt)
            output = [Token(token, engine.piece(token)) for token in order.output_ids]
            running = Running(
                order.request, order.epoch, order.model, engine, ids, order.sampling, output, len(output)
            )
            engine.check(running.spec)
            engine.open(running.sequence, running.spec)
        except GodwitError as error:
            self._send_head(Rejected(order.request, order.epoch, error.code, error.message))
            return
        self._take(running)
        self._send_head(Accepted(order.request, order.epoch, ids, engine.info.digest))

    def _fence(self, request: RequestId, epoch: Epoch) -> bool:
        """End what is left of a request's earlier epochs; False where `epoch` has begun here or is past."""
        running = self._running.get(request)
        if running is not None and running.epoch >= epoch:
            return False
        self._incoming.fence(request, epoch)
        if running := self._running.get(request):
            self._end(running)
        return True

    def _stop(self, order: Stop) -> None:
        running = self._running.get(order.request)
        if running is not None and running.epoch <= order.epoch:
            self._end(running)

    def _failed(self, event: Failed) -> None:
        self._incoming.engine_failed(event.request, event.model, event.message)
        for sequence, running in list(self._by_sequence.items()):
            if sequence == event.request or (event.request is None and running.model == event.model):
                self._end(running)
                self._queue(RequestFailed(running.request, running.epoch, event.code, event.message))

    def _adopt(self, running: Running) -> None:
        self._fence(running.request, running.epoch)
        if not running.num_told:
            # The head had no token of the source yet, so the source's own Accepted may come too late.
            digest = running.engine.info.digest
            self._queue(Accepted(running.request, running.epoch, running.prompt_ids, digest))
        self._take(running)

    def _take(self, running: Running) -> None:
        self._running[running.request] = running
        self._by_sequence[running.sequence] = running
        running.engine.generate(running.sequence)

    def _end(self, running: Running) -> None:
        self._outgoing.ended(running.request)
        self._free(running)

    def _free(self, running: Running) -> None:
        running.engine.release(running.sequence)
        if self._by_sequence.pop(running.sequence, None):
            del self._running[running.request]
            self._incoming.forget(running)
