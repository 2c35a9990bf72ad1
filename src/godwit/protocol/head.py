"""The head's side of the protocol: every request's journal, its moves and its failovers. No I/O.

Who drives it gives it the workers' messages, the losses of workers, the scheduler's decisions and ticks.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from godwit.errors import (
    BadRequestError,
    ConflictError,
    ContextTooLongError,
    GodwitError,
    InvariantBrokenError,
    ModelLoadError,
    NoFreeSlotError,
    OverloadedError,
    from_code,
)
from godwit.ports import Clock, Sink
from godwit.protocol.entry import Entry, MovePlan
from godwit.protocol.events import (
    DestinationFailed,
    Tick,
)
from godwit.protocol.journal import ADOPTED, GAP, TAKEN, Journal, Verdict
from godwit.protocol.message import Message
from godwit.protocol.messages import (
    Accepted,
    Rejected,
    RequestFailed,
    Stop,
    Submit,
    TokenEvent,
    Tokens,
)
from godwit.protocol.moves import HeadMoves, MoveReport, Observer
from godwit.types import (
    CARRIES_ALL,
    Carries,
    ModelName,
    MoveId,
    MoveLimits,
    Promise,
    Prompt,
    RequestId,
    Sampling,
    TokenPrompt,
    WorkerId,
)

RequestReport = Accepted | Rejected | Tokens | RequestFailed | MoveReport
_TRY_ELSEWHERE = (NoFreeSlotError.code, ModelLoadError.code)


class HeadLimits(Struct, frozen=True):
    """Bounds on what the head takes on.

    `prepare_timeout_s` covers a load at a move's destination. A request that runs and makes no progress for
    `progress_timeout_s` (its prompt's computation included) is taken off its worker.
    """

    max_queued: int = 1024
    max_running: int = 4096
    max_prompt_tokens: int = 1 << 20
    max_output_tokens: int = 1 << 20
    max_failovers: int = 5
    progress_timeout_s: float = 300.0
    prepare_timeout_s: float = 120.0


class HeadRequests:
    """All requests at this head. Calls come from one thread; sinks are called in it and never waited for."""

    def __init__(
        self,
        send: Callable[[WorkerId, Message], None],
        observer: Observer,
        wake: Callable[[], None],
        new_move: Callable[[], MoveId],
        limits: HeadLimits,
        now: Clock,
    ) -> None:
        self._send = send
        self._observer = observer
        self._wake = wake
        self._limits = limits
        self._now = now
        self._entries: dict[RequestId, Entry] = {}
        self._dirty: list[Entry] = []
        self.num_stale_tokens = 0
        """Tokens that were refused since the epoch of their sender was over."""
        self._moves = HeadMoves(
            send,
            observer,
            self._finish,
            self._fail,
            new_move,
            limits.prepare_timeout_s,
            limits.max_failovers,
            now,
        )

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def get(self, request: RequestId) -> Entry | None:
        """The request's entry, None where it is unknown or over."""
        return self._entries.get(request)

    @property
    def num_queued(self) -> int:
        return sum(entry.journal.owner is None for entry in self._entries.values())

    # --- what the router asks for ---------------------------------------------------------------------------

    def start(
        self,
        request: RequestId,
        model: ModelName,
        prompt: Prompt,
        sampling: Sampling,
        sink: Sink,
        expected_tokens: int | None = None,
        *,
        has_seed: bool = True,
    ) -> None:
        """Queue a request; OverloadedError where the queue or the whole table is full.

        `expected_tokens` is the client's guess of how long the output will be. `has_seed`: it named the seed.
        """
        num_entries, limits = len(self._entries), self._limits
        # No more can be queued than there are, so that they are counted only where it may matter.
        is_full = num_entries >= limits.max_queued and self.num_queued >= limits.max_queued
        if is_full or num_entries >= limits.max_running:
            raise OverloadedError("too many requests are waiting; try again in a moment", retry_after_s=1)
        if request in self._entries:
            raise ConflictError(f"there is a request {request} already")
        max_output = min(sampling.max_tokens, self._limits.max_output_tokens)
        sampling = replace(sampling, max_tokens=max_output)
        journal = Journal(max_output=max_output)
        arrived_s = self._now()
        entry = Entry(request, model, prompt, sampling, sink, arrived_s, journal, expected_tokens, has_seed)
        self._entries[request] = entry
        self._observer.queued(request, model, frozenset(), False)

    def cancel(self, request: RequestId) -> None:
        """Forget a request and free its slots wherever they are; its sink hears nothing more."""
        if entry := self._entries.get(request):
            self._stop_everywhere(entry)
            self._close(entry)

    def flush(self) -> None:
        """Let every sink with new tokens write them out."""
        dirty, self._dirty = [entry for entry in self._dirty if entry.is_dirty], []
        for entry in dirty:
            entry.is_dirty = False
        for entry in dirty:
            if entry.request in self._entries:
                entry.sink.flush()

    # --- what the scheduler decides -------------------------------------------------------------------------

    def place(self, request: RequestId, worker: WorkerId, carries: Carries = CARRIES_ALL) -> None:
        """Submit a queued request to `worker`, from where its journal ends; its engine `carries` so much."""
        entry = self._entries.get(request)
        if entry is None:
            return
        journal = entry.journal
        if journal.owner is not None:
            raise InvariantBrokenError(f"{request} is placed on {worker}, but {journal.owner} owns it")
        epoch = journal.assign(worker)
        entry.is_computing, entry.placed = False, carries
        entry.last_heard_s = self._now()
        prompt = entry.prompt if journal.prompt_ids is None else TokenPrompt(journal.prompt_ids)
        ids = tuple(journal.output_ids)
        order = Submit(request, epoch, entry.model, prompt, ids, entry.sampling, entry.digest)
        self._send(worker, order)

    def reject(self, request: RequestId, error: GodwitError) -> None:
        """End a request that no server can take."""
        if entry := self._entries.get(request):
            self._fail(entry, error)

    def move(
        self,
        request: RequestId,
        destination: WorkerId,
        peer_url: str | None,
        limits: MoveLimits,
        plan: MovePlan,
        reason: str,
    ) -> None:
        """Begin a planned move; `Observer.move_ended` follows."""
        entry = self._entries.get(request)
        if entry is None or entry.journal.owner is None or entry.moving is not None:
            raise InvariantBrokenError(f"{request} cannot move now")
        self._moves.begin(entry, destination, peer_url, limits, plan, reason)

    def interrupt(self, request: RequestId, reason: str) -> None:
        """Take a request off its worker without waiting for a move; it fails over."""
        entry = self._entries.get(request)
        if entry is None or entry.journal.owner is None:
            return
        if entry.moving is not None and entry.moving.is_adopted:
            return  # It has left that worker already; the scheduler will hear of it with the source's report.
        owner, epoch = entry.journal.owner, entry.journal.epoch
        self._moves.source_lost(entry, owner, reason)
        self._send(owner, Stop(request, epoch))

    # --- what workers report --------------------------------------------------------------------------------

    def on_worker(self, worker: WorkerId, message: RequestReport) -> None:
        """Take a worker's report on its requests and moves; whatever it is not entitled to is refused."""
        match message:
            case Tokens():
                self._tokens(worker, message.events)
            case Accepted():
                self._accepted(worker, message)
            case Rejected():
                self._rejected(worker, message)
            case RequestFailed():
                self._request_failed(worker, message)
            case _:
                self._moves.on_worker(self._entries, worker, message)

    def worker_gone(self, worker: WorkerId, reason: str) -> None:
        """A worker is lost: abandon its moves, fail its requests over."""
        for entry in list(self._entries.values()):
            if entry.request not in self._entries:
                continue  # A sink that failed has just cancelled it.
            if entry.moving is not None and entry.moving.destination == worker:
                self._moves.feed(entry, DestinationFailed(f"{worker}: {reason}"))
            if worker in (entry.journal.owner, entry.moving and entry.moving.source):
                self._moves.source_lost(entry, worker, reason)

    def tick(self, now: float) -> None:
        """Let deadlines pass."""
        timeout_s = self._limits.progress_timeout_s
        for entry in list(self._entries.values()):
            if entry.moving is not None:
                self._moves.feed(entry, Tick(now))
            elif entry.journal.owner is not None and now - entry.last_heard_s > timeout_s:
                self.interrupt(entry.request, f"no progress for {timeout_s:g} s")

    def _tokens(self, worker: WorkerId, events: list[TokenEvent]) -> None:
        now = self._now()
        entries = self._entries
        for event in events:
            entry = entries.get(event.request)
            if entry is None:
                self._send(worker, Stop(event.request, event.epoch))
                continue
            verdict, fresh = entry.journal.take(worker, event)
            if verdict is not TAKEN:
                if verdict is not ADOPTED:
                    self._refuse(worker, entry, event, verdict)
                    continue
                entry.is_computing = False
                self._moves.adopted(entry, now)
            if fresh is None:
                continue
            broken: tuple[Promise, ...] = ()
            if entry.placed is not None:
                broken = entry.drawn(entry.placed, is_begun=fresh.first_index > 0)
            if entry.failover is not None:
                self._moves.recovered(entry, worker, fresh.first_index, now, broken)
            entry.last_token_s = entry.last_heard_s = now
            if fresh.ids:
                if entry.is_computing:
                    entry.is_computing = False
                    self._observer.drew_first(entry)
                if not entry.is_dirty:
                    entry.is_dirty = True
                    if not self._dirty:
                        self._wake()
                    self._dirty.append(entry)
                entry.sink.tokens(fresh.first_index, fresh.ids, fresh.texts, fresh.alternatives)
            if fresh.finish is not None and event.request in entries:
                if event.finish is None:
                    self._stop_everywhere(entry)
                self._finish(entry, fresh.finish)

    def _refuse(self, worker: WorkerId, entry: Entry, event: TokenEvent, verdict: Verdict) -> None:
        if verdict is GAP:
            # Links keep order, so a gap means that the sender lost tokens: the journal is the truth.
            self._send(worker, Stop(event.request, event.epoch))
            if entry.journal.is_candidate(worker, event.epoch):
                self._moves.feed(entry, DestinationFailed("tokens were lost"))
            else:
                self._moves.source_lost(entry, worker, "tokens were lost")
            return
        self.num_stale_tokens += len(event.ids)
        if event.first_index + len(event.ids) > len(entry.journal.output_ids):
            self._send(worker, Stop(event.request, event.epoch))

    def _accepted(self, worker: WorkerId, message: Accepted) -> None:
        entry = self._entries.get(message.request)
        if entry is None or not (
            entry.journal.is_entitled(worker, message.epoch)
            or entry.journal.is_candidate(worker, message.epoch)
        ):
            self._send(worker, Stop(message.request, message.epoch))
            return
        entry.last_heard_s = self._now()
        if entry.journal.prompt_ids is not None:
            self._has_begun(entry, worker)
            return
        if len(message.prompt_ids) > self._limits.max_prompt_tokens:
            self._stop_everywhere(entry)
            bound = self._limits.max_prompt_tokens
            text = f"the prompt has {len(message.prompt_ids)} tokens; this server takes {bound} at most"
            self._fail(entry, BadRequestError(text))
            return
        entry.journal.prompt_ids, entry.digest = message.prompt_ids, message.digest
        self._has_begun(entry, worker)
        entry.sink.accepted(message.prompt_ids)

    def _has_begun(self, entry: Entry, worker: WorkerId) -> None:
        if entry.journal.owner == worker:
            entry.is_computing = True
            self._observer.accepted(entry.request, worker, entry.journal.num_tokens)

    def _rejected(self, worker: WorkerId, message: Rejected) -> None:
        entry = self._entries.get(message.request)
        if entry is None or not entry.journal.is_entitled(worker, message.epoch):
            return
        is_too_long = message.code == ContextTooLongError.code
        if is_too_long or message.code in _TRY_ELSEWHERE:
            self._moves.source_rejected(entry, message.message)
            if entry.moving is not None:
                return  # It had the request and handed it over: this answers a Submit that came twice.
            entry.journal.disown()
            self._observer.placement_failed(message.request, worker, message.message, is_too_long=is_too_long)
        else:
            self._fail(entry, from_code(message.code, message.message))

    def _request_failed(self, worker: WorkerId, message: RequestFailed) -> None:
        entry = self._entries.get(message.request)
        if entry is None:
            return
        journal = entry.journal
        if journal.is_candidate(worker, message.epoch):
            self._moves.feed(entry, DestinationFailed(message.message))
        elif journal.is_entitled(worker, message.epoch):
            error = from_code(message.code, message.message)
            if isinstance(error, BadRequestError):
                # It is the request's own fault: another server would fare no better.
                self._stop_everywhere(entry)
                self._fail(entry, error)
                return
            self._moves.source_lost(entry, worker, message.message)

    # --- ends -----------------------------------------------------------------------------------------------

    def _stop_everywhere(self, entry: Entry) -> None:
        journal = entry.journal
        for worker, epoch in ((journal.owner, journal.epoch), (journal.candidate, journal.candidate_epoch)):
            if worker is not None:
                self._send(worker, Stop(entry.request, epoch))

    def _finish(self, entry: Entry, reason: str) -> None:
        self._close(entry, is_whole=True)
        entry.sink.flush()
        entry.sink.finished(reason)

    def _fail(self, entry: Entry, error: GodwitError) -> None:
        self._close(entry)
        entry.sink.flush()
        entry.sink.failed(error)

    def _close(self, entry: Entry, *, is_whole: bool = False) -> None:
        entry.is_dirty = False
        entry.journal.is_finished = True
        self._moves.ended(entry)
        del self._entries[entry.request]
        self._observer.ended(entry, is_whole=is_whole)
