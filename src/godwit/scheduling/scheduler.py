"""The scheduler: events in, decisions out. It never waits for a load or a move; it reacts to their ends."""

from godwit.errors import (
    ConflictError,
    GodwitError,
    ModelNotFoundError,
    NoFreeSlotError,
    NotFoundError,
    UnavailableError,
)
from godwit.scheduling.drains import Drains, DrainSettings
from godwit.scheduling.events import (
    Batch,
    Decision,
    DrainRequested,
    Event,
    Load,
    ModelChanged,
    Move,
    MoveEnded,
    MoveRequested,
    PlacementFailed,
    RefuseMove,
    Reject,
    RequestEnded,
    RequestQueued,
    Start,
    Tick,
    Unload,
    WorkerJoined,
    WorkerLeft,
)
from godwit.scheduling.ledger import Ledger
from godwit.scheduling.policies import Choice, Policy, Step, fit
from godwit.scheduling.view import ClusterView
from godwit.scheduling.waiting import Waiting, WaitingLines
from godwit.types import ModelName, RequestId, WorkerId


class Scheduler:
    """Places requests, loads models, moves and drains; the same events give the same decisions.

    A new one that is fed a Batch of what routers and workers know goes on where another stopped.
    """

    def __init__(self, policy: Policy, settings: DrainSettings) -> None:
        self._policy = policy
        self._ledger = Ledger()
        self._lines = WaitingLines()
        self._drains = Drains(self._ledger, policy, settings)
        self._models: set[ModelName] = set()

    def handle(self, event: Event, now: float) -> list[Decision]:
        """What to do about `event`, in order; decisions for one worker must reach it in this order."""
        decisions = self._take(event, now)
        self._ledger.drop_promises()
        decisions += self._drains.interrupts(now)
        while (move := self._drains.next_move(now)) is not None:
            decisions += self._move(move[0], move[1], "drain")
        for line in self._lines.by_age():
            decisions += self._place(line)
        decisions += self._drains.emptied()
        return decisions

    def snapshot(self) -> ClusterView:
        """The cluster as the scheduler sees it."""
        return self._ledger.view

    def _take(self, event: Event, now: float) -> list[Decision]:
        match event:
            case Batch(events):
                return [decision for one in events for decision in self._take(one, now)]
            case WorkerJoined():
                self._joined(event)
            case WorkerLeft(worker):
                self._drains.forget(worker)
                self._ledger.leave(worker)
            case ModelChanged():
                self._model_changed(event)
            case RequestQueued():
                return self._queued(event)
            case RequestEnded(request):
                self._lines.forget(request)
                self._ledger.end(request)
            case PlacementFailed():
                self._placement_failed(event)
            case MoveRequested():
                return self._move_requested(event)
            case MoveEnded(request, worker):
                move = self._ledger.end_move(request, worker)
                if move is not None and worker is None:
                    self._drains.move_failed(request, move.destination)
            case DrainRequested(worker, deadline):
                if worker in self._ledger.workers:
                    self._ledger.drain(worker)
                    self._drains.begin(worker, deadline)
            case Tick():
                return self._ticked(now)
        return []

    def _joined(self, event: WorkerJoined) -> None:
        self._drains.forget(event.worker)
        for placed in event.running:
            self._lines.step_out(placed.request)
        self._ledger.join(event)
        self._lines.readmit(event.worker)
        self._models.update(info.name for info in event.models)

    def _model_changed(self, event: ModelChanged) -> None:
        self._models.add(event.model.name)
        self._ledger.set_model(event.worker, event.model, has_failed=event.error is not None)
        if event.error is not None:
            self._lines.exclude(event.model.name, event.worker, f"{event.worker}: {event.error}")

    def _queued(self, event: RequestQueued) -> list[Decision]:
        self._ledger.end(event.request)
        if self._ledger.workers and event.model not in self._models:
            self._lines.forget(event.request)
            known = ", ".join(sorted(self._models)) or "none"
            message = f"no server has the model {event.model!r}; models: {known}"
            return [Reject(event.request, ModelNotFoundError.code, message)]
        self._lines.add(event)
        return []

    def _placement_failed(self, event: PlacementFailed) -> None:
        place = self._ledger.running.get(event.request)
        if place is not None and place.worker == event.worker:
            self._ledger.end(event.request)
            self._lines.step_back(event.request, event.worker, f"{event.worker}: {event.reason}")

    def _move_requested(self, event: MoveRequested) -> list[Decision]:
        try:
            return self._move(event.request, self._choice_for(event), event.reason)
        except GodwitError as error:
            return [RefuseMove(event.request, error.code, error.message)]

    def _choice_for(self, event: MoveRequested) -> Choice:
        place = self._ledger.running.get(event.request)
        if place is None:
            raise NotFoundError(f"{event.request} does not run now; `godwit status` lists what does")
        if event.request in self._ledger.moves:
            raise ConflictError(f"{event.request} is moving already; wait for that move to end")
        if event.destination is None:
            choice = self._policy(self._ledger.view, place.model, frozenset((place.worker,)))
            if choice is None:
                raise NoFreeSlotError(f"no other server has room for one more request of {place.model}")
            return choice
        if event.destination == place.worker:
            raise ConflictError(f"{event.request} runs on {place.worker} already")
        return self._choice_at(event.destination, place.model)

    def _choice_at(self, destination: WorkerId, model: ModelName) -> Choice:
        worker = self._ledger.workers.get(destination)
        if worker is None:
            known = ", ".join(sorted(self._ledger.workers)) or "none"
            raise NotFoundError(f"there is no worker {destination!r}; workers: {known}")
        if model not in worker.models:
            raise ConflictError(
                f"{destination} does not have the model {model}; `godwit status` shows who has"
            )
        if worker.is_draining:
            raise ConflictError(f"{destination} is draining and takes nothing new")
        choice = fit(worker, model)
        if choice is None:
            raise NoFreeSlotError(
                f"{destination} has no free slot or no memory for one more request of {model}"
            )
        return choice

    def _ticked(self, now: float) -> list[Decision]:
        self._lines.stop_avoiding()
        self._drains.stop_avoiding()
        expired = self._lines.expired(now)
        for waiting in expired:
            self._lines.forget(waiting.request)
        return [Reject(one.request, UnavailableError.code, self._why(one)) for one in expired]

    def _why(self, waiting: Waiting) -> str:
        if not self._ledger.workers:
            why = "no worker is connected; start one with `godwit worker --join URL`"
        elif not any(waiting.model in worker.models for worker in self._ledger.workers.values()):
            why = f"no connected worker has the model {waiting.model}"
        else:
            why = waiting.reason or f"all slots for {waiting.model} were taken"
        return f"no server could take the request in time: {why}"

    def _move(self, request: RequestId, choice: Choice, reason: str) -> list[Decision]:
        place = self._ledger.running[request]
        decisions = self._evict(choice)
        self._ledger.begin_move(request, choice)
        return [*decisions, Move(request, place.worker, choice.worker, reason)]

    def _place(self, line: list[Waiting]) -> list[Decision]:
        decisions: list[Decision] = []
        stuck: list[frozenset[WorkerId]] = []
        for waiting in line:
            # Whoever may go nowhere else than one who found no room finds none either.
            if any(not_on <= waiting.not_on for not_on in stuck):
                continue
            choice = self._policy(self._ledger.view, waiting.model, waiting.not_on)
            if choice is None:
                stuck.append(waiting.not_on)
                continue
            decisions += self._send(waiting, choice)
        return decisions

    def _send(self, waiting: Waiting, choice: Choice) -> list[Decision]:
        if choice.step is Step.START:
            self._lines.step_out(waiting.request)
            self._ledger.start(waiting.request, waiting.model, choice.worker)
            return [Start(waiting.request, choice.worker)]
        decisions: list[Decision] = []
        if choice.step is Step.LOAD:
            decisions += self._evict(choice)
            self._ledger.set_loading(choice.worker, waiting.model, is_loading=True)
            decisions.append(Load(choice.worker, waiting.model))
        self._ledger.promise(choice.worker, waiting.model)
        return decisions

    def _evict(self, choice: Choice) -> list[Decision]:
        for model in choice.evict:
            self._ledger.evict(choice.worker, model)
        return [Unload(choice.worker, model) for model in choice.evict]
