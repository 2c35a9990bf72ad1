"""`godwit bench scheduler`: what a placement decision costs, by policy and size of the cluster."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from msgspec import Struct

from godwit.bench.scheduler_world import Shape, World
from godwit.costs.startup import StartupTimes
from godwit.scheduling import events
from godwit.scheduling.choices import Choice, Step
from godwit.scheduling.policies import Policy, policy_named, start_of
from godwit.scheduling.scheduler import Scheduler
from godwit.scheduling.view import ClusterView
from godwit.types import ModelName, WorkerId

SIZES = (10, 100, 1000)
REQUESTS_PER_SERVER = 2.0
# Requests queued before the measurement, for each one that is in the cluster.
WARM_UP = 2.0
TOO_LONG_S = 120.0


class SchedulerOptions(Struct, frozen=True):
    """What to measure: clusters up to `servers`, with as many models for each server as the largest has.

    Each measurement times `decisions` placements and is made `repeat` times, each in another world. One that
    takes longer than `seconds` ends early, and says so by its `n`.
    """

    policies: tuple[str, ...]
    servers: int = 1000
    models: int = 10_000
    replicas: int = 10
    decisions: int = 1000
    repeat: int = 3
    seed: int = 1
    seconds: float = TOO_LONG_S

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of servers, smallest first."""
        return (*(size for size in SIZES if size < self.servers), self.servers)

    def models_at(self, servers: int) -> int:
        """How many models a cluster of this size has."""
        return max(1, self.models * servers // self.servers)


class SchedulerRow(Struct, frozen=True):
    """One policy at one size: microseconds for a request that is queued, `n` of them in all.

    P50 and P99 are medians over the repeats, `p99_low_us` and `p99_high_us` the smallest and largest P99.
    `event_…` are over all events. `share_…` says what became of a request when it was queued: an instance
    had a free slot; its model began to be loaded; others were moved or preempted for it; it waits.
    `waiting_p50` requests waited at a time. `busy_share` is time spent over virtual time: at 1 the scheduler
    could not keep up.
    """

    servers: int
    models: int
    policy: str
    p50_us: float
    p99_us: float
    p99_low_us: float
    p99_high_us: float
    event_p50_us: float
    event_p99_us: float
    n: int
    num_events: int
    share_start: float
    share_load: float
    share_clear: float
    share_wait: float
    waiting_p50: float
    busy_share: float


class SchedulerReport(Struct, frozen=True):
    """All rows, smallest cluster first."""

    rows: tuple[SchedulerRow, ...]


class _Measured(Struct, frozen=True):
    queued_us: list[float]
    events_us: list[float]
    outcomes: Counter[str]
    num_waiting: list[int]
    virtual_s: float


def run_scheduler(options: SchedulerOptions, progress: Callable[[str], None]) -> SchedulerReport:
    """Measure every policy at every size; ConfigError where there is no such policy."""
    rows = []
    policies = {name: policy_named(name) for name in options.policies}
    for servers in options.sizes:
        for name, policy in policies.items():
            measured = []
            for turn in range(options.repeat):
                progress(f"{servers} servers, {name}, {turn + 1} of {options.repeat}")
                measured.append(_measure(options, servers, policy, options.seed + turn))
            rows.append(_row(options, servers, name, measured))
    return SchedulerReport(tuple(rows))


class _Timed:
    """A scheduler that is timed, and a policy whose last answer can be looked at."""

    def __init__(self, policy: Policy, times: StartupTimes, draw: Callable[[], float]) -> None:
        self._policy = policy
        self._scheduler = Scheduler(self._choose, times, draw=draw, start=start_of(policy))
        self._chosen: dict[ModelName, Choice | None] = {}
        self.queued_us: list[float] = []
        self.events_us: list[float] = []
        self.outcomes: Counter[str] = Counter()

    def handle(self, event: events.Event, now: float) -> list[events.Decision]:
        """The scheduler's `handle`."""
        self._chosen.clear()
        start_ns = time.perf_counter_ns()
        decisions = self._scheduler.handle(event, now)
        took_us = (time.perf_counter_ns() - start_ns) / 1e3
        self.events_us.append(took_us)
        if isinstance(event, events.RequestQueued):
            self.queued_us.append(took_us)
            self.outcomes[self._outcome(event, decisions)] += 1
        return decisions

    def forget(self) -> None:
        """Begin to measure here."""
        self.queued_us, self.events_us, self.outcomes = [], [], Counter()

    def _choose(self, view: ClusterView, model: ModelName, exclude: frozenset[WorkerId]) -> Choice | None:
        choice = self._chosen[model] = self._policy(view, model, exclude)
        return choice

    def _outcome(self, event: events.RequestQueued, decisions: Sequence[events.Decision]) -> str:
        if any(isinstance(one, events.Start) and one.request == event.request for one in decisions):
            return "start"
        choice = self._chosen.get(event.model)
        if choice is not None and choice.step is Step.LOAD:
            return "load"
        return "clear" if choice is not None and choice.step is Step.CLEAR else "wait"


def _measure(options: SchedulerOptions, servers: int, policy: Policy, seed: int) -> _Measured:
    rng = np.random.default_rng(seed)
    times = StartupTimes()
    timed = _Timed(policy, times, rng.random)
    shape = Shape(servers, options.models_at(servers), options.replicas, REQUESTS_PER_SERVER)
    world = World(shape, np.random.default_rng(seed), timed.handle, times)
    world.begin()
    end_s = time.monotonic() + options.seconds
    warm = round(WARM_UP * REQUESTS_PER_SERVER * servers)
    # Half of the time may be gone when the measurement begins.
    _run(world, warm, end_s - options.seconds / 2)
    timed.forget()
    since_s = world.now
    num_waiting = _run(world, options.decisions, end_s)
    return _Measured(timed.queued_us, timed.events_us, timed.outcomes, num_waiting, world.now - since_s)


def _run(world: World, num_queued: int, end_s: float) -> list[int]:
    """Queue so many requests, one at least, and fewer when it is that late; how many waited each time."""
    num_waiting = []
    for _ in range(num_queued):
        world.run(1)
        num_waiting.append(world.num_waiting)
        if time.monotonic() >= end_s:
            break
    return num_waiting


def _row(options: SchedulerOptions, servers: int, policy: str, measured: Sequence[_Measured]) -> SchedulerRow:
    queued = np.array([np.percentile(one.queued_us, (50, 99)) for one in measured]).round(1)
    every = np.array([np.percentile(one.events_us, (50, 99)) for one in measured]).round(1)
    outcomes = sum((one.outcomes for one in measured), Counter[str]())
    n = outcomes.total()
    busy_s = sum(sum(one.events_us) for one in measured) / 1e6
    return SchedulerRow(
        servers=servers,
        models=options.models_at(servers),
        policy=policy,
        p50_us=float(np.median(queued[:, 0])),
        p99_us=float(np.median(queued[:, 1])),
        p99_low_us=float(queued[:, 1].min()),
        p99_high_us=float(queued[:, 1].max()),
        event_p50_us=float(np.median(every[:, 0])),
        event_p99_us=float(np.median(every[:, 1])),
        n=n,
        num_events=sum(len(one.events_us) for one in measured),
        share_start=round(outcomes["start"] / n, 3),
        share_load=round(outcomes["load"] / n, 3),
        share_clear=round(outcomes["clear"] / n, 3),
        share_wait=round(outcomes["wait"] / n, 3),
        waiting_p50=median(count for one in measured for count in one.num_waiting),
        busy_share=round(busy_s / sum(one.virtual_s for one in measured), 3),
    )
