"""Where a model's next request should run: one pure function of the cluster's view a policy.

They start a request at once where an instance has a free slot, on the least loaded such worker, `random` on
any. Two of them, `fastest` and `hazard`, compare when the request would be done, which may be sooner where
its model is loaded first.
"""

from collections.abc import Callable, Iterable

from godwit.errors import ConfigError
from godwit.scheduling.choices import Choice, Step, Victim
from godwit.scheduling.completion import completion_costs_s
from godwit.scheduling.startup import fit, has_free_slot, loading_s, refusal, remaining_s
from godwit.scheduling.victims import Clear, Places, clear_by_ending, clear_by_killing, clear_by_moving
from godwit.scheduling.view import ClusterView, Risks, WorkerView
from godwit.types import ModelName, WorkerId

__all__ = [
    "POLICIES",
    "Choice",
    "Policy",
    "Step",
    "Victim",
    "availability",
    "ending",
    "fastest",
    "free_slot",
    "hazard",
    "live_migration",
    "locality",
    "nearest",
    "policy_named",
    "preemption",
    "quickest",
    "random",
    "start_of",
]

Policy = Callable[[ClusterView, ModelName, frozenset[WorkerId]], Choice | None]
"""(view, model, workers not to choose) → where, or None where the request must wait."""


def free_slot(view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> Choice | None:
    """A free slot of a loaded instance, on the least loaded worker that has one."""
    holders = _holders(view, model, exclude)
    free = ((worker.load, worker.id) for worker in holders if has_free_slot(worker, worker.models[model]))
    best = min(free, default=None)
    return None if best is None else Choice(best[1], Step.START)


def availability(view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> Choice | None:
    """The least loaded worker that has room, wherever its checkpoint is; one that is loading it first."""
    return _first(view, _fits(view, model, exclude))


def random(view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> Choice | None:
    """Any worker with a free slot, all equally likely; else any that is loading it, else any with room."""
    fits = sorted(_fits(view, model, exclude), key=lambda choice: choice.worker)
    for step in (Step.START, Step.WAIT_FOR_LOAD, Step.LOAD):
        if equal := [choice for choice in fits if choice.step is step]:
            return equal[int(view.draw * len(equal))]
    return None


def locality(view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> Choice | None:
    """The worker that has the checkpoint nearest; while it has no room for it, the request waits for it."""
    fits = _fits(view, model, exclude)
    if start := _start(view, fits):
        return start
    near = {worker.id for worker in nearest(view, model, exclude)}
    return _first(view, [choice for choice in fits if choice.worker in near])


def nearest(view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> list[WorkerView]:
    """The workers that would have the model soonest if their devices were free and nothing else loading."""
    times: dict[WorkerId, float] = {}
    for worker in _holders(view, model, exclude):
        state = worker.models[model]
        if refusal(worker, state) is None:
            is_under_way = state.is_loading or state.is_coming
            load_s = remaining_s(view, state) if is_under_way else view.times.load_s(worker.id, state.info)
            times[worker.id] = load_s
    least_s = min(times.values(), default=0.0)
    return [view.workers[name] for name, seconds in times.items() if seconds == least_s]


def quickest(view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> Choice | None:
    """Where it can start soonest without touching busy instances.

    For drains, for moves that somebody asked for, and for requests that were preempted: these must not make
    others move.
    """
    fits = _fits(view, model, exclude)
    return _start(view, fits) or _soonest(view, fits)


def preemption(view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> Choice | None:
    """Where it can start soonest, also by preempting others, which then wait (as Shepherd does)."""
    return _quickest_clearing(view, model, exclude, clear_by_killing)


def live_migration(view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> Choice | None:
    """Where it can start soonest, also by moving others away first (as ServerlessLLM does)."""
    return _quickest_clearing(view, model, exclude, clear_by_moving)


def fastest(view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> Choice | None:
    """Where the request is expected to be done first; it reacts to losses, but does not reckon with them."""
    return _cheapest(view, model, exclude, None)


def hazard(view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> Choice | None:
    """Where the time until it is done and the expected loss by the worker's leaving are least: E = T + L."""
    return _cheapest(view, model, exclude, view.risks)


def ending(view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> Choice | None:
    """Where instances that are in the way should take nothing new, so that the model gets its turn.

    For a request that has waited for too long: without this, a model that is never idle would keep others out
    for ever.
    """
    return _quickest_clearing(view, model, exclude, clear_by_ending)


POLICIES: dict[str, Policy] = {
    "availability": availability,
    "fastest": fastest,
    "hazard": hazard,
    "live_migration": live_migration,
    "locality": locality,
    "preemption": preemption,
    "random": random,
}


def policy_named(name: str) -> Policy:
    """The policy of that name; ConfigError lists the names that exist."""
    policy = POLICIES.get(name)
    if policy is None:
        raise ConfigError(
            f"policy: there is no policy {name!r}; choose one of: {', '.join(sorted(POLICIES))}"
        )
    return policy


def start_of(policy: Policy) -> Policy:
    """How the policy starts a request at once, where a slot is free; None where it would rather load."""
    if policy not in (fastest, hazard, random):
        return free_slot

    def start(view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> Choice | None:
        choice = policy(view, model, exclude)
        return choice if choice is not None and choice.step is Step.START else None

    return start


def _cheapest(
    view: ClusterView, model: ModelName, exclude: frozenset[WorkerId], risks: Risks | None
) -> Choice | None:
    """The least cost among the workers that have room; where none has, others are moved away for it."""
    fits = _fits(view, model, exclude)
    if not fits:
        return live_migration(view, model, exclude)
    costs = completion_costs_s(view, model, fits, risks).tolist()

    def rank(costed: tuple[float, Choice]) -> tuple[float, Step, float, WorkerId]:
        seconds, choice = costed
        return seconds, choice.step, view.workers[choice.worker].load, choice.worker

    return min(zip(costs, fits, strict=True), key=rank)[1]


def _quickest_clearing(
    view: ClusterView, model: ModelName, exclude: frozenset[WorkerId], clear: Clear
) -> Choice | None:
    """The quickest of all, with CLEAR on workers that have no room.

    Such a worker cannot be quicker than its load. So they are visited in the order of their loads, until that
    alone takes longer than the best so far.
    """
    fits = _fits(view, model, exclude)
    if start := _start(view, fits):
        return start
    best = _soonest(view, fits)
    fitting = {choice.worker for choice in fits}
    full: list[tuple[float, WorkerId]] = []
    for worker in _holders(view, model, exclude):
        state = worker.models[model]
        if worker.id not in fitting and refusal(worker, state) is None:
            full.append((sum(loading_s(view, worker, state.info)), worker.id))
    places = Places(view, exclude)
    for load_s, name in sorted(full):
        # At equal times, one that disturbs nobody is better than any that is still to come.
        if best is not None and (load_s, True) > (best.seconds, bool(best.victims)):
            break
        best_s = float("inf") if best is None else best.seconds
        choice = clear(places, view.workers[name], model, best_s)
        if choice is not None:
            best = choice if best is None else _soonest(view, (best, choice))
    return best


def _holders(view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> list[WorkerView]:
    return [view.workers[name] for name in view.holders.get(model, ()) if name not in exclude]


def _fits(view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> list[Choice]:
    """What every worker could do without touching busy instances."""
    choices = (fit(view, worker, model) for worker in _holders(view, model, exclude))
    return [choice for choice in choices if choice is not None]


def _first(view: ClusterView, choices: Iterable[Choice]) -> Choice | None:
    """The one with the least to do; of equal ones that on the least loaded worker."""

    def rank(choice: Choice) -> tuple[Step, float, WorkerId]:
        return choice.step, view.workers[choice.worker].load, choice.worker

    return min(choices, key=rank, default=None)


def _start(view: ClusterView, choices: Iterable[Choice]) -> Choice | None:
    """A free slot of a loaded instance, on the least loaded worker."""
    return _first(view, [choice for choice in choices if choice.step is Step.START])


def _soonest(view: ClusterView, choices: Iterable[Choice]) -> Choice | None:
    """The quickest; of equal ones one that disturbs nobody, then one that throws away least."""

    def rank(choice: Choice) -> tuple[float, bool, float, float, WorkerId]:
        load = view.workers[choice.worker].load
        return choice.seconds, bool(choice.victims), choice.thrown_away_s, load, choice.worker

    return min(choices, key=rank, default=None)
