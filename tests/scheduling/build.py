"""Short ways to write down a scheduler's events."""

from collections.abc import Iterable

from msgspec.structs import replace

from godwit.costs.startup import StartupTimes
from godwit.scheduling.drains import DrainSettings
from godwit.scheduling.events import (
    Decision,
    DrainRequested,
    Event,
    Interrupt,
    Leave,
    Load,
    ModelChanged,
    Move,
    MoveEnded,
    MoveRequested,
    Placed,
    PlacementFailed,
    RequestEnded,
    RequestQueued,
    Start,
    Unload,
    WorkerJoined,
    WorkerLeft,
)
from godwit.scheduling.policies import POLICIES
from godwit.scheduling.scheduler import Scheduler, SchedulerSettings
from godwit.types import LoadRecord, ModelInfo, ModelName, RequestId, WorkerId


class Story:
    """A scheduler and what it is told, by plain names; every method gives the decisions."""

    def __init__(
        self, policy: str = "availability", keep_alive_s: float | None = None, **settings: int
    ) -> None:
        limits = SchedulerSettings(DrainSettings(**settings), keep_alive_s)
        self.scheduler = Scheduler(POLICIES[policy], StartupTimes(), limits)
        self.now = 0.0
        self.raw = False

    def tell(self, event: Event) -> list[Decision]:
        """The decisions, unless `raw` without their reasons and estimates, but for a move's reason."""
        decisions = self.scheduler.handle(event, self.now)
        return decisions if self.raw else [plain(decision) for decision in decisions]

    def join(
        self,
        name: str,
        *models: ModelInfo,
        slots: int = 2,
        device_bytes: int = 100,
        running: Iterable[str] = (),
        incoming: Iterable[str] = (),
    ) -> list[Decision]:
        """`running` and `incoming` are requests of the first model."""
        here, coming = (tuple(placed(one, models[0].name) for one in ones) for ones in (running, incoming))
        return self.tell(WorkerJoined(WorkerId(name), 1, slots, device_bytes, models, here, coming))

    def leave(self, name: str) -> list[Decision]:
        return self.tell(WorkerLeft(WorkerId(name)))

    def changed(self, worker: str, info: ModelInfo, error: str | None = None) -> list[Decision]:
        load = LoadRecord(info.tier, 1, 0.0, 1.0) if info.is_loaded and error is None else None
        return self.tell(ModelChanged(WorkerId(worker), info, error, load))

    def queue(
        self,
        request: str,
        *,
        model: str = "m",
        within_s: float = 60.0,
        exclude: Iterable[str] = (),
        has_started: bool = False,
        was_preempted: bool = False,
    ) -> list[Decision]:
        not_on = frozenset(WorkerId(one) for one in exclude)
        deadline = self.now + within_s
        name = RequestId(request)
        return self.tell(RequestQueued(name, ModelName(model), deadline, not_on, has_started, was_preempted))

    def end(self, request: str) -> list[Decision]:
        return self.tell(RequestEnded(RequestId(request)))

    def fail(self, request: str, worker: str) -> list[Decision]:
        return self.tell(PlacementFailed(RequestId(request), WorkerId(worker), "no KV space"))

    def move(self, request: str, to: str | None) -> list[Decision]:
        destination = None if to is None else WorkerId(to)
        return self.tell(MoveRequested(RequestId(request), destination, "asked for"))

    def moved(self, request: str, to: str | None) -> list[Decision]:
        return self.tell(MoveEnded(RequestId(request), None if to is None else WorkerId(to)))

    def drain(self, worker: str, within_s: float | None = None) -> list[Decision]:
        deadline = None if within_s is None else self.now + within_s
        return self.tell(DrainRequested(WorkerId(worker), deadline))

    def used(self, worker: str, model: str = "m") -> tuple[int, int]:
        """Running and reserved slots."""
        state = self.scheduler.snapshot().workers[WorkerId(worker)].models[ModelName(model)]
        return state.num_running, state.num_reserved


def info(name: str = "m", *, is_loaded: bool = True, device_bytes: int = 60) -> ModelInfo:
    """A model; two of them do not fit on a worker of the default size."""
    return ModelInfo(ModelName(name), f"digest of {name}", 1024, device_bytes, is_loaded, True)


def placed(request: str, model: str = "m") -> Placed:
    return Placed(RequestId(request), ModelName(model))


def plain(decision: Decision) -> Decision:
    match decision:
        case Start() | Unload():
            return replace(decision, reason="")
        case Load():
            return replace(decision, reason="", queue_s=0.0, load_s=0.0)
        case Interrupt():
            return replace(decision, reason="")
        case Move():
            return replace(decision, load_s=0.0, resume_s=0.0)
        case _:
            return decision


def start(request: str, worker: str) -> Start:
    return Start(RequestId(request), WorkerId(worker), "")


def load(worker: str, model: str = "m") -> Load:
    return Load(WorkerId(worker), ModelName(model), "")


def unload(worker: str, model: str = "m") -> Unload:
    return Unload(WorkerId(worker), ModelName(model), "")


def move(request: str, source: str, destination: str, reason: str = "asked for") -> Move:
    return Move(RequestId(request), WorkerId(source), WorkerId(destination), reason)


def interrupt(request: str, worker: str, *, is_preemption: bool = False) -> Interrupt:
    return Interrupt(RequestId(request), WorkerId(worker), "", is_preemption)


def leave(worker: str) -> Leave:
    return Leave(WorkerId(worker))
