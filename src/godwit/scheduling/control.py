"""The head without its I/O: the request table and the scheduler, each told what the other does."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from godwit.config import ModelSettings
from godwit.costs.choice import MoveCosts
from godwit.costs.crossover import Method
from godwit.errors import ConflictError, GodwitError, ModelNotFoundError, NotFoundError, from_code
from godwit.ports import Clock, Sink
from godwit.protocol import messages
from godwit.protocol.entry import Entry, MovePlan, MoveRecord
from godwit.protocol.head import HeadLimits, HeadRequests, RequestReport
from godwit.protocol.message import Message
from godwit.protocol.messages import Hello
from godwit.protocol.model_messages import (
    Load,
    LoadProgress,
    ModelChanged,
    ModelRefused,
    ModelRemoved,
    ModelReport,
    Unload,
)
from godwit.scheduling import events
from godwit.scheduling.catalog import Answers, Catalog
from godwit.scheduling.explain import Explanation, explain
from godwit.scheduling.joining import ask_of, join_events
from godwit.scheduling.member import LostInDrain, Member, carries_of, with_another
from godwit.scheduling.observations import observation
from godwit.scheduling.planning import move_plan
from godwit.scheduling.recorder import Recorder
from godwit.scheduling.scheduler import Scheduler
from godwit.scheduling.view import ClusterView
from godwit.scheduling.wishes import Outcome, Wish
from godwit.types import (
    ModelInfo,
    ModelName,
    MoveId,
    MoveLimits,
    Prompt,
    RequestId,
    Sampling,
    WorkerId,
)


@dataclass(slots=True)
class Control:
    """One cluster's requests, workers and scheduler. Calls come from one thread; there is no I/O.

    `send` must ignore workers that are gone; `wake` asks for a `flush` soon; `on_record` hears every move.
    """

    send: Callable[[WorkerId, Message], None]
    wake: Callable[[], None]
    new_move: Callable[[], MoveId]
    new_scheduler: Callable[[], Scheduler]
    limits: HeadLimits
    move_limits: MoveLimits
    placement_timeout_s: float
    on_record: Callable[[MoveRecord], None]
    now: Clock
    policy: str
    recorder: Recorder
    costs: MoveCosts = field(default_factory=MoveCosts)
    method: str = Method.TOKENS
    requests: HeadRequests = field(init=False)
    scheduler: Scheduler = field(init=False)
    catalog: Catalog = field(init=False)
    members: dict[WorkerId, Member] = field(default_factory=dict)
    _lost_in_drain: LostInDrain = field(default_factory=LostInDrain)
    _wishes: dict[RequestId, Wish] = field(default_factory=dict)
    _moving_loaded: set[RequestId] = field(default_factory=set)
    _events: deque[events.Event] = field(default_factory=deque)
    _is_pumping: bool = False

    def __post_init__(self) -> None:
        self.requests = HeadRequests(self.send, self, self.wake, self.new_move, self.limits, self.now)
        self.scheduler = self.new_scheduler()
        self.catalog = Catalog(self.send)

    # --- the router's side (router.generation.Generations) --------------------------------------------------

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
        """Queue a request; OverloadedError where too many wait."""
        self.requests.start(request, model, prompt, sampling, sink, expected_tokens, has_seed=has_seed)
        self._pump()

    def cancel(self, request: RequestId) -> None:
        """Forget a request and free its slots; its sink hears nothing more."""
        self.requests.cancel(request)
        self._pump()

    def models(self) -> Sequence[ModelInfo]:
        """One entry a model name that some worker can serve; loaded ones win."""
        found: dict[ModelName, ModelInfo] = {}
        for member in self.members.values():
            for info in member.models.values():
                if info.name not in found or info.is_loaded:
                    found[info.name] = info
        return list(found.values())

    def stop(self, error: GodwitError) -> None:
        """End every request with `error`."""
        for entry in list(self.requests):
            self.requests.reject(entry.request, error)

    # --- workers --------------------------------------------------------------------------------------------

    def joined(self, hello: Hello) -> None:
        """A worker has connected; a former life of it must have been reported gone."""
        member = Member(hello, {info.name: info for info in hello.models}, set(hello.loading))
        self._lost_in_drain.is_back(member)
        self.members[hello.worker] = member
        self.recorder.joined(hello)
        self.catalog.joined(hello.worker, member.models)
        self._events.append(events.Batch(tuple(join_events(member, self.requests))))
        self._pump()

    def gone(self, worker: WorkerId, reason: str) -> None:
        """A worker is lost: its requests fail over, its moves end."""
        if (member := self.members.pop(worker, None)) is None:
            return
        self._lost_in_drain.is_gone(member)
        self.recorder.left(worker, reason)
        self._events.append(events.WorkerLeft(worker))
        self.catalog.gone(worker)
        self.requests.worker_gone(worker, reason)
        self._pump()

    def on_worker(self, worker: WorkerId, message: RequestReport | ModelReport) -> None:
        """Take a report of a connected worker."""
        match message:
            case ModelChanged():
                self._model_changed(worker, message)
            case LoadProgress():
                self.members[worker].progress[message.model] = message
            case ModelRefused() | ModelRemoved():
                self.catalog.heard(worker, message)
            case _:
                self.requests.on_worker(worker, message)
        if self._events:
            self._pump()

    def _model_changed(self, worker: WorkerId, message: ModelChanged) -> None:
        member, name = self.members[worker], message.model.name
        if self.catalog.is_removing(name, worker):
            return  # It unloads it first, and says so.
        member.models[name] = message.model
        if message.load is not None or message.error is not None or message.model.is_loaded:
            member.loading.discard(name)
            member.progress.pop(name, None)
        self.recorder.model_changed(worker, message)
        self._events.append(events.ModelChanged(worker, message.model, message.error, message.load))
        self.catalog.heard(worker, message)

    # --- operators ------------------------------------------------------------------------------------------

    def ask_move(
        self,
        request: RequestId,
        destination: WorkerId | None,
        limits: MoveLimits | None,
        done: Callable[[Outcome], None],
        method: str | None = None,
        *,
        is_forced: bool = False,
    ) -> None:
        """Move a request to `destination` (None: the quickest) by `method` (None: as configured).

        `is_forced`: also where it could go on only approximately.
        """
        if request in self._wishes:
            done(ConflictError(f"{request} is moving already; wait for that move to end"))
            return
        if destination is not None and destination not in self.members:
            done(self._no_worker(destination))
            return
        self._wishes[request] = Wish(limits or self.move_limits, method or self.method, done)
        self._events.append(events.MoveRequested(request, destination, "asked for", is_forced))
        self._pump()

    def ask_drain(self, worker: WorkerId, deadline_s: float | None) -> None:
        """Empty a worker and let it leave, within `deadline_s` seconds if given; NotFoundError."""
        member = self.members.get(worker)
        if member is None:
            raise self._no_worker(worker)
        member.is_draining = True
        member.drain_deadline_s = None if deadline_s is None else self.now() + deadline_s
        if member.drain_deadline_s is not None:
            self.recorder.leaves_by(worker, member.drain_deadline_s)
        self._events.append(events.DrainRequested(worker, member.drain_deadline_s))
        self._pump()

    def add_model(self, settings: ModelSettings, done: Callable[[Answers], None]) -> None:
        """Have all workers serve one more model; `done` hears what each of them said. ConflictError."""
        self.catalog.add(settings, self.members, done)
        self.recorder.ordered("AddModel", ModelName(settings.name))

    def remove_model(self, name: ModelName, done: Callable[[Answers], None]) -> None:
        """Have all workers forget a model that was added; requests that wait for it are rejected.

        NotFoundError, or ConflictError where requests of it run.
        """
        if any(entry.model == name and entry.journal.owner is not None for entry in self.requests):
            raise ConflictError(f"{name} serves requests; wait for them to end, then remove it")
        if any(name in member.loading for member in self.members.values()):
            raise ConflictError(f"{name} is being loaded; wait for that to end, then remove it")
        known = {w: member.models[name] for w, member in self.members.items() if name in member.models}

        def over(answers: Answers) -> None:
            for worker, problem in answers.items():
                if problem is not None and worker in known and worker in self.members:
                    self._model_changed(worker, ModelChanged(known[worker]))
            done(answers)

        if name not in self.catalog.added:
            self._check_model(name)
        self.catalog.remove(name, self.members, over)
        self.recorder.ordered("RemoveModel", name)
        # First of all nothing new goes there.
        for worker in known:
            del self.members[worker].models[name]
            self._events.append(events.ModelRemoved(worker, name))
        self._pump()

    def pin(self, name: ModelName, is_pinned: bool) -> None:
        """Let no instance of a model be evicted, or let them again; ModelNotFoundError."""
        if name not in self.catalog.pinned:
            self._check_model(name)
        (self.catalog.pinned.add if is_pinned else self.catalog.pinned.discard)(name)
        self.recorder.ordered("PinModel" if is_pinned else "UnpinModel", name)
        self._events.append(events.ModelPinned(name, is_pinned))
        self._pump()

    def explain(self, model: ModelName) -> Explanation:
        """Where a request of the model would start now, and why; nothing is done. ModelNotFoundError."""
        self._check_model(model)
        return explain(self.view(), model, self.policy)

    def _no_worker(self, name: WorkerId) -> NotFoundError:
        return NotFoundError(f"no worker {name!r}; workers: {', '.join(sorted(self.members)) or 'none'}")

    def _check_model(self, model: ModelName) -> None:
        names = {info.name for info in self.models()}
        if model not in names:
            raise ModelNotFoundError(f"no server has the model {model!r}; models: {', '.join(sorted(names))}")

    def restart_scheduler(self) -> None:
        """Replace the scheduler by a new one that knows only what workers and journals tell."""
        self.scheduler = self.new_scheduler()
        self._events.clear()
        self._events.extend(events.ModelPinned(name, True) for name in sorted(self.catalog.pinned))
        for entry in self.requests:
            # Those that run need no place, but a worker that has not accepted one may still refuse it.
            if not entry.is_orphaned:
                self.queued(entry.request, entry.model, frozenset(), bool(entry.journal.output_ids))
        for member in self.members.values():
            self._events.extend(join_events(member, self.requests))
        # One event, so that nothing is placed before it is known who runs where.
        self._events = deque([events.Batch(tuple(self._events))])
        self._pump()

    def tick(self) -> None:
        """Let deadlines pass; call it several times a second."""
        self.requests.tick(self.now())
        self._events.append(events.Tick())
        self._pump()

    def view(self) -> ClusterView:
        """The cluster as the scheduler sees it."""
        return self.scheduler.snapshot()

    # --- what the request table tells (protocol.moves.Observer) ---------------------------------------------

    def queued(
        self, request: RequestId, model: ModelName, exclude: frozenset[WorkerId], has_started: bool
    ) -> None:
        deadline = self.now() + self.placement_timeout_s
        self.recorder.queued(request, model, "it has lost its server" if has_started else "it is new")
        entry = self.requests.get(request)
        if entry is not None and entry.digest:
            exclude |= with_another(self.members, model, entry.digest)
        queued = events.RequestQueued(request, model, deadline, exclude, has_started)
        if entry is not None:
            queued = replace(queued, was_preempted=entry.was_preempted, ask=ask_of(entry))
        self._events.append(queued)

    def placement_failed(
        self, request: RequestId, worker: WorkerId, reason: str, *, is_too_long: bool
    ) -> None:
        self._events.append(events.PlacementFailed(request, worker, reason, is_too_long))

    def accepted(self, request: RequestId, worker: WorkerId, num_tokens: int) -> None:
        self.recorder.accepted(request, worker, num_tokens)
        self._events.append(events.RequestAccepted(request, num_tokens))

    def drew_first(self, entry: Entry) -> None:
        self.recorder.drew_first(entry)

    def ended(self, entry: Entry, *, is_whole: bool) -> None:
        self.recorder.ended(entry, is_whole=is_whole)
        self._events.append(events.RequestEnded(entry.request))

    def move_ended(self, record: MoveRecord) -> None:
        self.on_record(record)
        entry = self.requests.get(record.request)
        num_tokens = 0 if entry is None else entry.journal.num_tokens
        self.recorder.move_ended(record, num_tokens)
        if record.method == "failover":
            return
        both_loaded = record.request in self._moving_loaded
        self._moving_loaded.discard(record.request)
        if (seen := observation(record, both_loaded=both_loaded)) is not None:
            self.costs.learn(seen)
        on = record.destination if record.outcome == "done" else None
        self._events.append(events.MoveEnded(record.request, on, num_tokens))
        if wish := self._wishes.pop(record.request, None):
            wish.done(record)

    # --- what the scheduler decides -------------------------------------------------------------------------

    def _pump(self) -> None:
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._events:
                for decision in self.scheduler.handle(self._events.popleft(), self.now()):
                    self._perform(decision)
        finally:
            self._is_pumping = False

    def _perform(self, decision: events.Decision) -> None:
        entry = self.requests.get(decision.request) if hasattr(decision, "request") else None
        self.recorder.decided(decision, None if entry is None else entry.model)
        match decision:
            case events.Start():
                if entry is not None:
                    carries = carries_of(self.members, decision.worker, entry.model)
                    self.requests.place(decision.request, decision.worker, carries)
            case events.Load():
                if (member := self.members.get(decision.worker)) is not None:
                    member.loading.add(decision.model)
                self.send(decision.worker, Load(decision.model))
            case events.Unload():
                self.send(decision.worker, Unload(decision.model))
            case events.Move():
                self._move(decision)
            case events.Reject():
                self.requests.reject(decision.request, from_code(decision.code, decision.message))
            case events.RefuseMove():
                if wish := self._wishes.pop(decision.request, None):
                    wish.done(from_code(decision.code, decision.message))
            case events.Leave():
                self.send(decision.worker, messages.Leave("drained"))
            case events.Interrupt():
                if entry is not None and entry.journal.owner == decision.worker:
                    entry.was_preempted |= decision.is_preemption
                    self.requests.interrupt(decision.request, decision.reason)

    def _move(self, decision: events.Move) -> None:
        entry = self.requests.get(decision.request)
        member = self.members.get(decision.destination)
        can_move = entry is not None and entry.moving is None and entry.journal.owner == decision.source
        if member is None or entry is None or not can_move:
            # The world moved on between the event and the decision; the events behind it say how.
            self._events.append(events.MoveEnded(decision.request, None))
            if wish := self._wishes.pop(decision.request, None):
                wish.done(NotFoundError(f"{decision.request} ended before it could move"))
            return
        wish = self._wishes.get(decision.request)
        limits = wish.limits if wish else self.move_limits
        plan = self._plan(entry, decision.source, decision.destination, wish.method if wish else self.method)
        url = member.hello.peer_url
        self.recorder.move_began(entry, decision.destination, decision.load_s)
        self.requests.move(decision.request, decision.destination, url, limits, plan, decision.reason)

    def _plan(self, entry: Entry, source: WorkerId, to: WorkerId, method: str) -> MovePlan:
        both_loaded = self._serves_others(source, entry) and self._serves_others(to, entry)
        if both_loaded:
            self._moving_loaded.add(entry.request)
        return move_plan(self.costs, method, entry, self.members, source, to, both_loaded=both_loaded)

    def _serves_others(self, worker: WorkerId, but: Entry) -> bool:
        return any(entry.journal.owner == worker and entry is not but for entry in self.requests)
