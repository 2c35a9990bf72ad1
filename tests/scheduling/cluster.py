"""A cluster that performs a scheduler's decisions and checks each of them against its own books."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from godwit.costs.startup import StartupTimes
from godwit.scheduling.drains import DrainSettings
from godwit.scheduling.early import EarlySettings
from godwit.scheduling.events import (
    Batch,
    Decision,
    DrainRequested,
    Event,
    Interrupt,
    Leave,
    Load,
    ModelChanged,
    ModelPinned,
    Move,
    MoveEnded,
    Placed,
    PlacementFailed,
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
from godwit.scheduling.policies import POLICIES
from godwit.scheduling.scheduler import Scheduler, SchedulerSettings
from godwit.scheduling.view import Risks
from godwit.types import LoadRecord, ModelInfo, ModelName, RequestId, Tier, WorkerId
from tests.scheduling.hazards import Rates

SMALL, OTHER, HUGE = ModelName("small"), ModelName("other"), ModelName("huge")
BYTES = {SMALL: 30, OTHER: 30, HUGE: 60}
DEVICE_BYTES = 60
MAX_MOVES = 2
PATIENCE_S = 10.0
KEEP_ALIVE_S = 20.0


@dataclass
class Worker:
    """One worker; its device never holds more than DEVICE_BYTES."""

    slots: int
    loaded: set[ModelName] = field(default_factory=set)
    loading: set[ModelName] = field(default_factory=set)
    has_left: bool = False

    def load(self, model: ModelName) -> None:
        assert model not in self.loaded | self.loading
        self.loading.add(model)
        assert sum(BYTES[one] for one in self.loaded | self.loading) <= DEVICE_BYTES


@dataclass
class Request:
    """`worker` is None while it waits; `destination` is set while it moves."""

    model: ModelName
    number: int
    deadline: float
    exclude: set[WorkerId]
    has_started: bool
    was_preempted: bool = False
    avoid: set[WorkerId] = field(default_factory=set)
    worker: WorkerId | None = None
    destination: WorkerId | None = None

    @property
    def order(self) -> tuple[bool, int]:
        return (not self.has_started, self.number)


class Cluster:
    """Tells the scheduler what happens, and does what it decides."""

    def __init__(self, policy: str = "availability") -> None:
        self.policy = policy
        self.now = 0.0
        self.workers: dict[WorkerId, Worker] = {}
        self.requests: dict[RequestId, Request] = {}
        self.drains: dict[WorkerId, float | None] = {}
        self.num_requests = 0
        self.pinned: set[ModelName] = set()
        self.scheduler = self._new_scheduler()

    # --- what happens ---------------------------------------------------------------------------------

    def join(self, name: WorkerId, slots: int) -> None:
        self.workers[name] = Worker(slots)
        for one in self.requests.values():
            one.exclude.discard(name)
        self.tell(self._joined(name))

    def leave(self, name: WorkerId, *, is_handed_over: bool) -> None:
        """A worker dies; moves away from it end well, where they can, if they had got that far."""
        del self.workers[name]
        self.drains.pop(name, None)
        self.tell(WorkerLeft(name))
        for request, one in list(self.requests.items()):
            if one.worker == name and is_handed_over and self.can_end_move(request):
                self.end_move(request, is_done=True)
            elif one.worker == name:
                self._queue_again(request, name)
            elif one.destination == name:
                self.end_move(request, is_done=False)

    def queue(self, model: ModelName, exclude: set[WorkerId]) -> list[Decision]:
        self.num_requests += 1
        name = RequestId(f"r{self.num_requests}")
        one = Request(model, self.num_requests, self.now + PATIENCE_S, exclude, has_started=False)
        self.requests[name] = one
        return self.tell(_queued(name, one))

    def end(self, name: RequestId) -> None:
        self._free(name)
        del self.requests[name]
        self.tell(RequestEnded(name))

    def refuse(self, name: RequestId) -> None:
        """The worker of a request has no room for it after all."""
        one = self.requests[name]
        worker = one.worker
        assert worker is not None
        self._free(name)
        one.avoid.add(worker)
        self.tell(PlacementFailed(name, worker, "no room"))

    def load_ended(self, name: WorkerId, model: ModelName, error: str | None) -> None:
        worker = self.workers[name]
        worker.loading.remove(model)
        if error is None:
            worker.loaded.add(model)
        for one in self.requests.values():
            if error is not None and one.model == model and one.worker is None:
                one.exclude.add(name)
        record = LoadRecord(Tier.SSD, BYTES[model], 0.0, 1.0)
        self.tell(ModelChanged(name, self._info(worker, model), error, None if error else record))
        for request, one in list(self.requests.items()):
            if error is not None and one.model == model and one.destination == name:
                self.end_move(request, is_done=False)

    def accept(self, name: RequestId) -> None:
        """Its worker has begun with a request."""
        self.tell(RequestAccepted(name, 100))

    def pin(self, model: ModelName, *, is_pinned: bool) -> None:
        (self.pinned.add if is_pinned else self.pinned.discard)(model)
        self.tell(ModelPinned(model, is_pinned))

    def can_end_move(self, name: RequestId) -> bool:
        one = self.requests[name]
        return one.destination in self.workers and one.model in self.workers[one.destination].loaded

    def end_move(self, name: RequestId, *, is_done: bool) -> None:
        one = self.requests[name]
        source, destination = one.worker, one.destination
        self._free(name)
        one.worker = destination if is_done else source
        self.tell(MoveEnded(name, destination if is_done else None))

    def drain(self, name: WorkerId, deadline: float | None) -> None:
        self.drains[name] = deadline
        self.workers[name].has_left = False
        self.tell(DrainRequested(name, deadline))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for one in self.requests.values():
            one.avoid.clear()
        self.tell(Tick())

    def restart_scheduler(self) -> None:
        """A new scheduler, told only what routers and workers know."""
        self.scheduler = self._new_scheduler()
        for worker in self.workers.values():
            worker.has_left = False
        for one in self.requests.values():
            one.avoid.clear()
            one.exclude.difference_update(self.workers)
        self.tell(
            Batch(
                (
                    *(ModelPinned(model, True) for model in self.pinned),
                    *(_queued(request, one) for request, one in self.requests.items()),
                    *(self._joined(name) for name in self.workers),
                    *(DrainRequested(name, deadline) for name, deadline in self.drains.items()),
                )
            )
        )

    # --- what the scheduler decides -------------------------------------------------------------------

    def used(self, name: WorkerId, model: ModelName | None = None) -> int:
        places = (
            (one.worker, one.destination)
            for one in self.requests.values()
            if model is None or one.model == model
        )
        return sum(place.count(name) for place in places)

    def tell(self, event: Event) -> list[Decision]:
        """Have the scheduler handle an event and do what it decides, which is given too."""
        interrupted: list[Interrupt] = []
        decisions = self.scheduler.handle(event, self.now)
        for decision in decisions:
            if isinstance(decision, Interrupt):
                interrupted.append(decision)
            self._perform(decision)
        for decision in interrupted:
            self._queue_again(decision.request, decision.worker, may_return=decision.is_preemption)
        return decisions

    def _perform(self, decision: Decision) -> None:
        match decision:
            case Start(request, worker, _):
                self._start(self.requests[request], worker)
            case Load(worker, model, _):
                self.workers[worker].load(model)
            case Unload(worker, model, _):
                assert self.used(worker, model) == 0, "a busy model is never unloaded"
                assert model not in self.pinned
                self.workers[worker].loaded.remove(model)
            case Move():
                self._begin_move(decision)
            case Reject(request):
                one = self.requests.pop(request)
                assert one.worker is None
                assert one.deadline <= self.now
            case Leave(worker):
                assert self.used(worker) == 0
                assert not self.workers[worker].has_left
                self.workers[worker].has_left = True
            case Interrupt(request, worker, _, is_preemption):
                assert self.requests[request].worker == worker
                if is_preemption:
                    assert self.policy == "preemption"
                    assert not self.requests[request].was_preempted, "nobody is preempted twice"
                    self.requests[request].was_preempted = True
                else:
                    deadline = self.drains[worker]
                    assert deadline is not None and deadline <= self.now

    def _start(self, one: Request, worker: WorkerId) -> None:
        assert one.worker is None, "a request is started only where it waits"
        assert worker not in one.exclude | one.avoid
        self._check_room(worker, one.model)
        assert one.model in self.workers[worker].loaded
        for other in self.requests.values():
            if other.worker is None and other.model == one.model and other.order < one.order:
                assert worker in other.exclude | other.avoid, "first come, first served"
        one.worker = worker

    def _begin_move(self, move: Move) -> None:
        one = self.requests[move.request]
        assert one.worker == move.source != move.destination
        assert one.destination is None
        self._check_room(move.destination, one.model)
        destination = self.workers[move.destination]
        assert one.model in destination.loaded | destination.loading, "its load is ordered before the move"
        one.destination = move.destination
        if move.reason == "drain" or move.reason.startswith("early"):
            moving = [other for other in self.requests.values() if other.destination is not None]
            assert sum(other.worker == move.source for other in moving) <= MAX_MOVES
            assert sum(other.destination == move.destination for other in moving) <= MAX_MOVES

    def _check_room(self, worker: WorkerId, model: ModelName) -> None:
        assert worker not in self.drains
        assert self.used(worker, model) < self.workers[worker].slots

    def _free(self, name: RequestId) -> None:
        """Take a request off all workers."""
        one = self.requests[name]
        one.worker = one.destination = None

    def _queue_again(self, name: RequestId, failed: WorkerId, *, may_return: bool = False) -> None:
        one = self.requests[name]
        self._free(name)
        one.exclude, one.avoid, one.has_started = {failed}, set(), True
        one.deadline = self.now + PATIENCE_S
        queued = _queued(name, one)
        if may_return:
            one.exclude = set()  # It has lost no server, and the scheduler knows that.
        self.tell(queued)

    def _joined(self, name: WorkerId) -> WorkerJoined:
        worker = self.workers[name]
        models = tuple(self._info(worker, model) for model in BYTES)
        running, incoming = (
            [Placed(request, one.model, 100, one.was_preempted) for request, one in ones]
            for ones in (
                [item for item in self.requests.items() if item[1].worker == name],
                [item for item in self.requests.items() if item[1].destination == name],
            )
        )
        return WorkerJoined(
            name,
            1,
            worker.slots,
            DEVICE_BYTES,
            models,
            tuple(running),
            tuple(incoming),
            tuple(sorted(worker.loading)),
        )

    @staticmethod
    def _info(worker: Worker, model: ModelName) -> ModelInfo:
        return ModelInfo(model, model, 1024, BYTES[model], model in worker.loaded, True, BYTES[model] << 20)

    def _new_scheduler(self) -> Scheduler:
        limits = SchedulerSettings(DrainSettings(max_moves_per_worker=MAX_MOVES), KEEP_ALIVE_S)
        if self.policy != "hazard":
            return Scheduler(POLICIES[self.policy], StartupTimes(), limits)
        early = EarlySettings(hysteresis_s=0.1, min_remaining=1, check_s=1.0, max_moves_per_worker=MAX_MOVES)
        # All alike: where one is likelier to leave, a request may well wait for a load beside a free slot.
        risks = Risks(Rates(dict.fromkeys("abc", 0.05)))
        limits = replace(limits, early=early)
        return Scheduler(POLICIES[self.policy], StartupTimes(), limits, risks=risks)


def _queued(name: RequestId, one: Request) -> RequestQueued:
    exclude = frozenset(one.exclude)
    return RequestQueued(name, one.model, one.deadline, exclude, one.has_started, one.was_preempted)
