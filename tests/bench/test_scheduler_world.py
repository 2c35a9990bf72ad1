"""The synthetic cluster answers as servers would, and `bench scheduler` counts what comes of it."""

from collections import Counter

import msgspec
import numpy as np
import pytest

from godwit.bench.scheduler import SchedulerOptions, run_scheduler
from godwit.bench.scheduler_world import DEVICE_UNITS, UNIT_BYTES, Shape, World
from godwit.costs.startup import StartupTimes
from godwit.errors import ConfigError
from godwit.scheduling import events
from godwit.scheduling.policies import POLICIES, policy_named
from godwit.scheduling.scheduler import Scheduler
from godwit.types import Tier

SHAPE = Shape(servers=8, models=80, replicas=4, requests_per_server=2.0)


class _Play:
    """A scheduler in a world, and all that they said to each other."""

    def __init__(self, policy: str, seed: int = 1) -> None:
        times = StartupTimes()
        rng = np.random.default_rng(seed)
        self.scheduler = Scheduler(policy_named(policy), times, draw=rng.random)
        self.told: list[tuple[float, events.Event, list[events.Decision]]] = []
        self.world = World(SHAPE, np.random.default_rng(seed), self._handle, times)
        self.world.begin()

    def _handle(self, event: events.Event, now: float) -> list[events.Decision]:
        decisions = self.scheduler.handle(event, now)
        self.told.append((now, event, decisions))
        return decisions

    def kinds(self) -> Counter[type]:
        """How often each event and decision came."""
        kinds: Counter[type] = Counter()
        for _, event, decisions in self.told:
            kinds.update(type(one) for one in (event, *decisions))
        return kinds


def test_where_the_checkpoints_are() -> None:
    joined = [event for _, event, _ in _Play("random").told if isinstance(event, events.WorkerJoined)]
    assert len(joined) == SHAPE.servers
    assert {event.slots for event in joined} <= {1, 2, 3, 4}
    tiers: dict[str, Counter[Tier]] = {}
    for event in joined:
        assert sum(info.device_bytes for info in event.models if info.is_loaded) <= event.device_bytes
        assert event.device_bytes == DEVICE_UNITS * UNIT_BYTES
        for info in event.models:
            tiers.setdefault(info.name, Counter())[info.tier] += 1
    assert len(tiers) == SHAPE.models
    assert all(found.total() == SHAPE.replicas and 1 <= found[Tier.DRAM] <= 2 for found in tiers.values())


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_goes_on(policy: str) -> None:
    """Requests end, others come, time goes on in order; the scheduler's invariants watch over the rest."""
    play = _Play(policy)
    play.world.run(150)
    times = [now for now, _, _ in play.told]
    assert times == sorted(times)
    kinds = play.kinds()
    assert kinds[events.RequestEnded] > 50
    assert kinds[events.RequestAccepted] == pytest.approx(kinds[events.Start], abs=SHAPE.servers * 8)
    assert kinds[events.Load] > 20
    assert play.world.num_waiting <= SHAPE.servers * SHAPE.requests_per_server
    assert (kinds[events.Move] > 0) == (policy in ("live_migration", "fastest", "hazard"))
    assert (kinds[events.Interrupt] > 0) == (policy == "preemption")
    if policy == "live_migration":
        assert kinds[events.MoveEnded] > 0


def test_loads_take_turns_and_teach() -> None:
    play = _Play("availability")
    play.world.run(100)
    loads = [event.load for _, event, _ in play.told if isinstance(event, events.ModelChanged) and event.load]
    assert {load.tier for load in loads} == {Tier.DRAM, Tier.SSD}
    assert any(load.queue_s > 0 for load in loads)
    dram = [load.num_bytes / load.seconds for load in loads if load.tier is Tier.DRAM]
    assert np.median(dram) == pytest.approx(10e9, rel=0.1)


def test_one_seed_gives_one_story() -> None:
    first, second = _Play("live_migration"), _Play("live_migration")
    first.world.run(60)
    second.world.run(60)
    assert first.told == second.told
    other = _Play("live_migration", seed=2)
    other.world.run(60)
    assert other.told != first.told


def test_the_report() -> None:
    options = SchedulerOptions(("random", "live_migration"), servers=20, models=100, decisions=20, repeat=2)
    said: list[str] = []
    report = run_scheduler(options, said.append)
    assert [(row.servers, row.models, row.policy) for row in report.rows] == [
        (10, 50, "random"),
        (10, 50, "live_migration"),
        (20, 100, "random"),
        (20, 100, "live_migration"),
    ]
    for row in report.rows:
        assert 0 < row.p50_us <= row.p99_us
        assert row.p99_low_us <= row.p99_us <= row.p99_high_us
        assert row.n == 40 and row.num_events > row.n
        shares = (row.share_start, row.share_load, row.share_clear, row.share_wait)
        assert sum(shares) == pytest.approx(1.0, abs=0.01)
    assert len(said) == 8
    assert set(msgspec.to_builtins(report)["rows"][0]) >= {"servers", "models", "policy", "p50_us", "p99_us"}


def test_it_ends_in_time_where_the_scheduler_is_slow() -> None:
    options = SchedulerOptions(("random",), servers=10, models=100, decisions=10_000, repeat=1, seconds=0.1)
    (row,) = run_scheduler(options, lambda _: None).rows
    assert 1 <= row.n < 10_000


def test_no_such_policy() -> None:
    with pytest.raises(ConfigError, match=r"slowest.*live_migration"):
        run_scheduler(SchedulerOptions(("slowest",)), lambda _: None)
