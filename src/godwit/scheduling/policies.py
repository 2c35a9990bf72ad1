"""Where a model's next request should run: one pure function of the cluster's view a policy."""

from collections.abc import Callable
from enum import IntEnum

from msgspec import Struct

from godwit.scheduling.view import ClusterView
from godwit.types import ModelName, WorkerId


class Step(IntEnum):
    """What must happen before a request can run at the chosen worker.

    START: nothing, an instance has a free slot. WAIT_FOR_LOAD: a load that is under way or claimed must end.
    LOAD: idle instances are evicted, then the model is loaded. CLEAR: so it is, but busy instances stand in
    the way, whose requests must move or be preempted first.
    """

    START = 0
    WAIT_FOR_LOAD = 1
    LOAD = 2
    CLEAR = 3


class Victim(Struct, frozen=True):
    """A busy instance that must leave: its requests move to `destination`, or (None) are preempted.

    `load_s` until the destination can take them, 0 where the model is loaded there; `resume_s` until it has
    the KV of all of them, or until somebody has it again.
    """

    model: ModelName
    destination: WorkerId | None
    load_s: float
    resume_s: float

    @property
    def seconds(self) -> float:
        """Until the instance can be unloaded: a preempted one can at once."""
        return 0.0 if self.destination is None else self.load_s + self.resume_s


class Choice(Struct, frozen=True):
    """A worker for a request, and when it can start there: in `seconds`.

    With LOAD and CLEAR, `evict` are the idle models to unload before; with CLEAR, `victims` must leave.
    `queue_s` is the wait for what happens there already, `load_s` the load.
    """

    worker: WorkerId
    step: Step
    evict: tuple[ModelName, ...] = ()
    victims: tuple[Victim, ...] = ()
    queue_s: float = 0.0
    load_s: float = 0.0

    @property
    def clear_s(self) -> float:
        """Until all victims have left; one after the other, since their moves share the source's link."""
        return sum(victim.seconds for victim in self.victims)

    @property
    def seconds(self) -> float:
        """The startup time: until the request can start."""
        return self.queue_s + self.clear_s + self.load_s


Policy = Callable[[ClusterView, ModelName, frozenset[WorkerId]], Choice | None]
"""(view, model, workers not to choose) → where, or None where the request must wait."""


# TEMPORARY
def fit(worker: WorkerView, model: ModelName) -> Choice | None:
    """How `worker` could take one more request for `model`; None where it cannot, or is draining."""
    state = worker.models.get(model)
    if state is None or worker.is_draining or state.num_used >= worker.slots:
        return None
    if state.holds_device:
        return Choice(worker.id, Step.START if state.info.is_loaded else Step.WAIT_FOR_LOAD)
    evict = _evict(worker, state.info.device_bytes)
    return None if evict is None else Choice(worker.id, Step.LOAD, evict)


def _evict(worker: WorkerView, needed_bytes: int) -> tuple[ModelName, ...] | None:
    """The fewest idle models whose memory makes room, largest first; None where all of them would not do."""
    missing = needed_bytes - worker.free_bytes
    victims: list[ModelName] = []
    idle = (state.info for state in worker.models.values() if state.is_idle)
    for info in sorted(idle, key=lambda info: (-info.device_bytes, info.name)):
        if missing <= 0:
            break
        missing -= info.device_bytes
        victims.append(info.name)
    return tuple(victims) if missing <= 0 else None


def least_loaded(view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> Choice | None:
    """The least loaded worker that can start at once, else that is loading it, else that can load it."""
    best: tuple[Step, float, WorkerId] | None = None
    chosen: Choice | None = None
    for worker in view.workers.values():
        choice = None if worker.id in exclude else fit(worker, model)
        if choice is None:
            continue
        rank = (choice.step, worker.load, worker.id)
        if best is None or rank < best:
            best, chosen = rank, choice
    return chosen


POLICIES: dict[str, Policy] = {"least_loaded": least_loaded}


def policy_named(name: str) -> Policy:
    """The policy of that name; ConfigError lists the names that exist."""
    policy = POLICIES.get(name)
    if policy is None:
        raise ConfigError(
            f"policy: there is no policy {name!r}; choose one of: {', '.join(sorted(POLICIES))}"
        )
    return policy
