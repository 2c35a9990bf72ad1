"""The scheduler: events in, decisions out. It never waits for a load or a move; it reacts to their ends."""

from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from godwit.errors import ContextTooLongError, GodwitError, ModelNotFoundError, UnavailableError
from godwit.scheduling.ask import NOTHING_KNOWN, Ask
from godwit.scheduling.asked import asked_choice
from godwit.scheduling.bookings import Place
from godwit.scheduling.choices import Choice, Step
from godwit.scheduling.clearing import Clearing, idle_for
from godwit.scheduling.drains import Drains, DrainSettings
from godwit.scheduling.early import EarlyMoves, EarlySettings
from godwit.scheduling.events import (
    Batch,
    Decision,
    DrainRequested,
    Event,
    ModelChanged,
    ModelPinned,
    ModelRemoved,
    MoveEnded,
    MoveRequested,
    Placed,
    PlacementFailed,
    RefuseMove,
    Reject,
    RequestAccepted,
    RequestEnded,
    RequestQueued,
    Start,
    Tick,
    Unload,
    WorkerJoined,
    WorkerLeft,
)
from godwit.scheduling.keeping import NOBODY, Avoided, avoided_by_waiting, no_longer_contexts
from godwit.scheduling.ledger import Ledger
from godwit.scheduling.policies import Policy, ending, quickest, start_of
from godwit.scheduling.startup import describe, fit
from godwit.scheduling.view import ClusterView, Risks, Times
from godwit.scheduling.waiting import Waiting, WaitingLines, why_not_placed
from godwit.types import ModelName, RequestId, WorkerId

MAX_STIRRED = 16
"""Models that wait and are looked at again at each tick, although nothing has changed where they are."""


class SchedulerSettings(Struct, frozen=True):
    """Limits of a drain; an instance that is idle for `keep_alive_s` is unloaded, None: never for that.

    For a request that has found no place for `patience_s`, instances that are in its way take nothing new.
    `early` None: nothing moves early.
    """

    drains: DrainSettings = DrainSettings()
    keep_alive_s: float | None = None
    patience_s: float = 5.0
    early: EarlySettings | None = None


class Scheduler:
    """Places requests, loads models, moves and drains; the same events and draws give the same decisions.

    `draw` gives a random number from [0, 1) for each placement. Without `risks` no worker ever leaves, and
    nothing moves early. `start` says where a request starts at once, None: as the policy does. A new
    scheduler that is fed a Batch of what routers and workers know goes on where another stopped; only how
    often a request has moved early it has forgotten.
    """

    def __init__(
        self,
        policy: Policy,
        times: Times,
        settings: SchedulerSettings | None = None,
        draw: Callable[[], float] = lambda: 0.0,
        risks: Risks | None = None,
        start: Policy | None = None,
    ) -> None:
        settings = settings or SchedulerSettings()
        self._policy = policy
        self._start = start or start_of(policy)
        self._risks = risks
        self._times = times
        self._draw = draw
        self._keep_alive_s = settings.keep_alive_s
        self._patience_s = settings.patience_s
        self._ledger = Ledger()
        self._lines = WaitingLines()
        self._clearing = Clearing(self._ledger, times)
        self._drains = Drains(self._ledger, times, settings.drains)
        self._early: EarlyMoves | None = None
        if risks is not None and settings.early is not None:
            self._early = EarlyMoves(self._ledger, times, risks, settings.early)
        self._models: set[ModelName] = set()
        self._num_stirred = 0

    def handle(self, event: Event, now: float) -> list[Decision]:
        """What to do about `event`, in order; decisions for one worker must reach it in this order."""
        self._ledger.now = now
        decisions = self._take(event)
        decisions += self._drains.interrupts(now)
        while (move := self._drains.next_move(now)) is not None:
            decisions += self._clearing.move(move[0], move[1], "drain")
        while (stirred := self._ledger.stirred.take()) is not None:
            workers, models = stirred
            for worker in sorted(workers):
                decisions += self._clearing.advance(worker)
            decisions += self._place_all(workers & self._ledger.workers.keys(), models & self._lines.models)
        if self._early is not None and isinstance(event, Tick):
            for early in self._early.due(now):
                decisions += self._clearing.move(*early)
        decisions += self._drains.emptied()
        return decisions

    def snapshot(self) -> ClusterView:
        """The cluster as the scheduler sees it."""
        return self._ledger.snapshot(self._times, self._risks)

    @property
    def waiting(self) -> list[Waiting]:
        """The requests that have no place."""
        return self._lines.all

    def _take(self, event: Event) -> list[Decision]:
        match event:
            case Batch(events):
                return [decision for one in events for decision in self._take(one)]
            case WorkerJoined():
                self._joined(event)
            case WorkerLeft(worker):
                self._drains.forget(worker)
                self._ledger.leave(worker)
            case ModelChanged():
                self._model_changed(event)
            case ModelRemoved(worker, model):
                return self._model_removed(worker, model)
            case ModelPinned(model, is_pinned):
                self._ledger.pin(model, is_pinned)
            case RequestQueued():
                return self._queued(event)
            case RequestAccepted(request, num_tokens):
                self._ledger.accepted(request, num_tokens)
            case RequestEnded(request):
                self._forget(request)
                self._ledger.end(request)
            case PlacementFailed():
                return self._placement_failed(event)
            case MoveRequested():
                return self._move_requested(event)
            case MoveEnded():
                self._move_ended(event)
            case DrainRequested(worker, deadline):
                if worker in self._ledger.workers:
                    self._ledger.drain(worker)
                    self._drains.begin(worker, deadline)
            case Tick():
                return self._ticked()
        return []

    # --- workers and models ---------------------------------------------------------------------------------

    def _joined(self, event: WorkerJoined) -> None:
        self._drains.forget(event.worker)
        for placed in event.running:
            self._lines.step_out(placed.request)
        self._ledger.join(event)
        self._lines.readmit(event.worker)
        self._models.update(info.name for info in event.models)

    def _model_changed(self, event: ModelChanged) -> None:
        self._models.add(event.model.name)
        is_over = event.load is not None or event.error is not None
        self._ledger.set_model(event.worker, event.model, is_load_over=is_over)
        if event.error is not None:
            self._lines.exclude(event.model.name, event.worker, f"{event.worker}: {event.error}")

    def _model_removed(self, worker: WorkerId, model: ModelName) -> list[Decision]:
        self._clearing.give_up(worker, model)
        self._ledger.remove_model(worker, model)
        if model in self._ledger.holders:
            return []
        self._models.discard(model)
        gone = self._lines.waiting(model)
        for one in gone:
            self._forget(one.request)
        return [self._no_model(one.request, model) for one in gone]

    def _forget(self, request: RequestId) -> None:
        """The request is over, or nobody can take it."""
        self._lines.forget(request)
        self._clearing.has_left(request)
        self._ledger.release(request)
        if self._early is not None:
            self._early.forget(request)

    def _no_model(self, request: RequestId, model: ModelName) -> Reject:
        known = ", ".join(sorted(self._models)) or "none"
        message = f"no server has the model {model!r}; models: {known}"
        return Reject(request, ModelNotFoundError.code, message)

    # --- requests -------------------------------------------------------------------------------------------

    def _queued(self, event: RequestQueued) -> list[Decision]:
        self._ledger.end(event.request)
        self._ledger.release(event.request)
        if self._ledger.workers and event.model not in self._models:
            self._lines.forget(event.request)
            return [self._no_model(event.request, event.model)]
        # It has lost no server that was preempted there, and may come back.
        preempted_from = self._clearing.has_left(event.request)
        event = replace(event, exclude=event.exclude - {preempted_from})
        self._lines.add(event, self._ledger.now)
        self._ledger.stirred.stir(event.model)
        return []

    def _placement_failed(self, event: PlacementFailed) -> list[Decision]:
        request, place = event.request, self._ledger.running.get(event.request)
        if place is None or place.worker != event.worker:
            return []
        view = self._ledger.view(self._times)
        no_longer = no_longer_contexts(view, place.model, place.worker) if event.is_too_long else NOBODY
        self._ledger.end(request)
        if event.is_too_long and no_longer.issuperset(self._ledger.holders[place.model]):
            self._forget(request)
            return [Reject(request, ContextTooLongError.code, event.reason)]
        reason = f"{event.worker}: {event.reason}"
        self._lines.step_back(request, event.worker, reason, exclude=no_longer)
        return []

    def _ticked(self) -> list[Decision]:
        self._drains.stop_avoiding()
        for model in self._lines.stop_avoiding():
            self._ledger.stirred.stir(model)
        self._stir_some()
        decisions: list[Decision] = []
        for waiting in self._lines.expired(self._ledger.now):
            self._forget(waiting.request)
            decisions.append(Reject(waiting.request, UnavailableError.code, self._why_not(waiting)))
        if self._keep_alive_s is not None:
            for worker, model in list(idle_for(self._ledger, self._keep_alive_s)):
                self._ledger.evict(worker, model)
                decisions.append(Unload(worker, model, f"idle for {self._keep_alive_s:g} s"))
        return decisions

    def _why_not(self, waiting: Waiting) -> str:
        holders = self._ledger.holders.get(waiting.model, ())
        why = why_not_placed(waiting, len(self._ledger.workers), holders, self._avoided(waiting)[-1])
        return f"no server could take the request in time: {why}"

    def _stir_some(self) -> None:
        """Look again at some models that wait, each in its turn: for them a server may have changed that has
        not got them, but would take what is in their way; or a move that failed may be tried again."""
        models = list(self._lines.models)
        first = self._num_stirred % max(1, len(models))
        for model in (models[first:] + models[:first])[:MAX_STIRRED]:
            self._ledger.stirred.stir(model)
        self._num_stirred += MAX_STIRRED

    # --- moves ----------------------------------------------------------------------------------------------

    def _move_requested(self, event: MoveRequested) -> list[Decision]:
        try:
            return self._clearing.move(
                event.request, asked_choice(self._ledger, self._view(), event), event.reason
            )
        except GodwitError as error:
            return [RefuseMove(event.request, error.code, error.message)]

    def _move_ended(self, event: MoveEnded) -> None:
        move = self._ledger.end_move(event.request, event.worker, event.num_tokens)
        if move is not None and event.worker is None:
            self._drains.move_failed(event.request, move.destination)
            self._clearing.move_failed(event.request)
            if self._early is not None:
                self._early.move_failed(event.request)

    # --- placement ------------------------------------------------------------------------------------------

    def _view(self, ask: Ask = NOTHING_KNOWN) -> ClusterView:
        return self._ledger.view(self._times, self._draw(), self._risks, ask)

    def _place_all(self, eased: set[WorkerId], stirred: set[ModelName]) -> list[Decision]:
        """Place what can be of those who wait for models that were stirred, or are on eased workers.

        Free slots come first: nobody evicts an idle instance that somebody else waits for.
        """
        decisions: list[Decision] = []
        waiting, workers = self._lines.models, self._ledger.workers
        models = stirred.union(*(waiting & workers[name].models.keys() for name in eased))
        promised = self._suspend(models, eased, stirred)
        for line in self._lines.by_age(models):
            decisions += self._place(self._unpromised(line), self._free_slot, 0)
        choose = partial(self._choose, promised)
        for line in self._lines.by_age(models):
            some = self._unpromised(line)
            # Once those before have taken what came free, nothing new is possible for the others.
            if line[0].model not in stirred and not any(workers[name].has_room for name in eased):
                some = [one for one in some if one.request in promised]
            decisions += self._place(some, choose, -1)
        for request, promise in promised.items():
            self._ledger.resume(request, promise)
        return decisions

    def _suspend(
        self, models: set[ModelName], eased: set[WorkerId], stirred: set[ModelName]
    ) -> dict[RequestId, Place]:
        """Take promises back for a moment where something has changed: where they are, or for their model."""
        suspended: dict[RequestId, Place] = {}
        for model in sorted(models):
            there = [self._ledger.workers[name] for name in eased]
            # Where it is loaded now, the first in line starts, whoever the slot was promised to.
            is_open = model in stirred or any(
                model in one.models and one.models[model].info.is_loaded for one in there
            )
            for one in self._lines.waiting(model):
                promise = self._ledger.promises.get(one.request)
                if promise is not None and (is_open or promise.worker in eased):
                    suspended[one.request] = promise
        for request in suspended:
            self._ledger.suspend(request)
        return suspended

    def _unpromised(self, line: list[Waiting]) -> list[Waiting]:
        return [one for one in line if one.request not in self._ledger.promises]

    def _place(
        self, line: list[Waiting], choose: Callable[[Waiting, Avoided], Choice | None], last: int
    ) -> list[Decision]:
        """Place what can be; `choose` avoids, in the end, those at the index `last` of what it is given."""
        decisions: list[Decision] = []
        stuck: list[frozenset[WorkerId]] = []
        for waiting in line:
            avoided = self._avoided(waiting)
            avoids = waiting.not_on | avoided[last]
            # Whoever may go nowhere else than one who found no room finds none either.
            if any(others <= avoids for others in stuck):
                continue
            choice = choose(waiting, avoided)
            sent = None if choice is None else self._send(waiting, choice)
            if sent is not None:
                decisions += sent
            else:
                stuck.append(avoids)
        return decisions

    def _choose(
        self, promised: Mapping[RequestId, Place], waiting: Waiting, avoided: Avoided
    ) -> Choice | None:
        """The load that was promised before, so that nobody changes his mind at each event; else what the
        policy says; else, after some time, room by and by."""
        view, model = self._view(waiting.ask), waiting.model
        promise = promised.get(waiting.request)
        if promise is not None and promise.worker not in waiting.not_on:
            choice = fit(view, self._ledger.workers[promise.worker], model)
            if choice is not None and choice.step is Step.WAIT_FOR_LOAD:
                return choice
        # A request that was preempted once must not drive out others in its turn: they would go on for ever.
        policy = quickest if waiting.was_preempted else self._policy
        for avoid in avoided:
            if (choice := policy(view, model, waiting.not_on | avoid)) is not None:
                return choice
        if self._ledger.now - waiting.since >= self._patience_s:
            return ending(view, model, waiting.not_on | avoided[-1])
        return None

    def _free_slot(self, waiting: Waiting, avoided: Avoided) -> Choice | None:
        """A free slot where it can go on exactly; others only once `_choose` has found nothing better."""
        return self._start(self._view(waiting.ask), waiting.model, waiting.not_on | avoided[0])

    def _avoided(self, waiting: Waiting) -> Avoided:
        return avoided_by_waiting(self._ledger.view(self._times), waiting.model, waiting.ask)

    def _send(self, waiting: Waiting, choice: Choice) -> list[Decision] | None:
        """Book and order what the choice says; None, and nothing booked, where its victims cannot go."""
        request, model = waiting.request, waiting.model
        reason = describe(self._view(), model, choice)
        if choice.step is Step.START:
            self._lines.step_out(request)
            placed = Placed(request, model, was_preempted=waiting.was_preempted, ask=waiting.ask)
            self._ledger.start(placed, choice.worker)
            return [Start(request, choice.worker, reason)]
        decisions: list[Decision] | None = []
        if choice.step is Step.LOAD:
            decisions = self._clearing.load(choice.worker, model, choice, f"for {request}: {reason}")
        elif choice.step is Step.CLEAR:
            decisions = self._clearing.begin(model, choice, f"for {request}: {reason}")
        if decisions is not None:
            self._ledger.promise(request, choice.worker, model)
        return decisions
