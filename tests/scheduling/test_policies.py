"""Each policy's choice, above all where they differ."""

import pytest
from msgspec.structs import replace

from godwit.errors import ConfigError
from godwit.scheduling.choices import Choice, Step, Victim
from godwit.scheduling.policies import POLICIES, Policy, nearest, policy_named, quickest
from godwit.scheduling.view import ClusterView, WorkerView
from godwit.types import Tier, WorkerId
from tests.scheduling.views import (
    NOBODY,
    W0,
    W1,
    W2,
    W3,
    A,
    B,
    C,
    FixedTimes,
    absent,
    busy,
    changed,
    cluster,
    idle,
    worker,
)

ALL = [*POLICIES.values(), quickest]


def _all(view: ClusterView, exclude: frozenset[WorkerId] = NOBODY) -> dict[str, Choice | None]:
    return {name: policy(view, A, exclude) for name, policy in POLICIES.items()}


def test_a_policy_is_found_by_its_name() -> None:
    assert policy_named("live_migration") is POLICIES["live_migration"]
    others = {"random", "availability", "locality", "preemption", "fastest", "hazard"}
    assert set(POLICIES) == {"live_migration", *others}


def test_a_wrong_name_lists_the_right_ones() -> None:
    names = "availability, fastest, hazard, live_migration, locality, preemption, random"
    with pytest.raises(ConfigError, match=rf"'slowest'.* {names}$"):
        policy_named("slowest")


# --- all of them -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [one for one in ALL if one is not POLICIES["random"]])
def test_a_free_slot_beats_everything_and_the_least_loaded_one_wins(policy: Policy) -> None:
    view = cluster(
        worker("w0", 100, absent("a", 60, is_loading=True, ready_at_s=0.0)),
        worker("w1", 100, busy("a", 60, (1, 2))),
        worker("w2", 100, busy("a", 60), slots=8),
        worker("w3", 100, busy("a", 60), slots=8),
        draw=0.99,
        times=FixedTimes(loads={(W0, A): 0.0}),
    )
    assert policy(view, A, NOBODY) == Choice(W2, Step.START)
    assert policy(view, A, frozenset({W2})) == Choice(W3, Step.START)


@pytest.mark.parametrize("policy", ALL)
def test_nobody_serves_it(policy: Policy) -> None:
    view = cluster(worker("w0", 100, idle("b", 60)))
    assert policy(view, A, NOBODY) is None
    assert policy(cluster(worker("w0", 100, idle("a", 60))), A, frozenset({W0})) is None


@pytest.mark.parametrize("policy", ALL)
def test_where_nobody_can_leave_it_waits(policy: Policy) -> None:
    view = cluster(worker("w0", 100, absent("a", 60), busy("b", 60, is_pinned=True)))
    assert policy(view, A, NOBODY) is None


def test_the_choices_that_the_paper_compares() -> None:
    """ServerlessLLM's figure 3: B wants to start where A runs; here A is `b`, and B is `a`.

    The first server is free, but has a only on its SSD. The second has it in memory, but is full of b.
    """
    view = cluster(
        worker("w1", 100, absent("b", 60, Tier.DRAM), absent("a", 60, Tier.SSD)),
        worker("w2", 100, absent("a", 60, Tier.DRAM), busy("b", 60, (256,))),
    )
    slow = Choice(W1, Step.LOAD, load_s=8.0)
    assert _all(view) == {
        "availability": slow,
        "random": slow,
        "fastest": slow,
        "hazard": slow,
        "locality": None,
        "preemption": Choice(W2, Step.CLEAR, (), (Victim(B, None, 0.0, 2.0),), load_s=1.0),
        "live_migration": Choice(W2, Step.CLEAR, (), (Victim(B, W1, 1.0, 2.0),), load_s=1.0),
    }
    assert quickest(view, A, NOBODY) == slow
    assert [one.id for one in nearest(view, A, NOBODY)] == [W2]


# --- availability and random -----------------------------------------------------------------------------


def _loadable(name: str, tier: Tier, num_busy: int = 0) -> WorkerView:
    return worker(
        name, 100, absent("a", 60, tier), busy("b", 40, range(num_busy)) if num_busy else idle("b", 1)
    )


def test_availability_does_not_look_at_tiers() -> None:
    view = cluster(_loadable("w0", Tier.DRAM, 1), _loadable("w1", Tier.REMOTE), _loadable("w2", Tier.SSD))
    assert POLICIES["availability"](view, A, NOBODY) == Choice(W1, Step.LOAD, load_s=64.0)
    assert POLICIES["availability"](view, A, frozenset({W1, W2})) == Choice(W0, Step.LOAD, load_s=1.0)


@pytest.mark.parametrize("name", ["availability", "random"])
def test_a_load_under_way_comes_before_another(name: str) -> None:
    view = cluster(
        _loadable("w0", Tier.DRAM),
        worker("w1", 100, absent("a", 60, is_loading=True, ready_at_s=9.0), busy("b", 40)),
    )
    assert POLICIES[name](view, A, NOBODY) == Choice(W1, Step.WAIT_FOR_LOAD, queue_s=9.0)


def test_random_draws_among_those_with_room() -> None:
    others = [
        worker("w4", 100, absent("a", 60), busy("b", 60)),
        *map(_loadable, ("w2", "w0", "w1"), [Tier.SSD] * 3),
    ]
    view = cluster(*others)
    drawn = [
        POLICIES["random"](replace(view, draw=draw), A, NOBODY) for draw in (0.0, 0.33, 0.34, 0.67, 0.999)
    ]
    assert [choice.worker for choice in drawn if choice] == [W0, W0, W1, W2, W2]


def test_random_draws_among_free_slots_first() -> None:
    view = cluster(
        _loadable("w0", Tier.DRAM), worker("w1", 100, busy("a", 60)), worker("w2", 100, busy("a", 60, (1, 2)))
    )
    drawn = [POLICIES["random"](replace(view, draw=draw), A, NOBODY) for draw in (0.0, 0.49, 0.5, 0.999)]
    assert drawn == [Choice(one, Step.START) for one in (W1, W1, W2, W2)]


# --- locality --------------------------------------------------------------------------------------------


def test_locality_takes_the_nearest_that_has_room() -> None:
    view = cluster(
        _loadable("w0", Tier.SSD),
        worker("w1", 100, absent("a", 60, Tier.DRAM), busy("b", 60)),
        _loadable("w2", Tier.DRAM, 2),
        _loadable("w3", Tier.DRAM, 1),
    )
    assert POLICIES["locality"](view, A, NOBODY) == Choice(W3, Step.LOAD, load_s=1.0)
    assert POLICIES["locality"](view, A, frozenset({W2, W3})) is None
    assert POLICIES["locality"](view, A, frozenset({W1, W2, W3})) == Choice(W0, Step.LOAD, load_s=8.0)


def test_locality_counts_what_is_left_of_a_load() -> None:
    loading = worker("w1", 100, absent("a", 60, is_loading=True, ready_at_s=3.0))
    view = cluster(_loadable("w0", Tier.DRAM), _loadable("w2", Tier.SSD), loading)
    assert POLICIES["locality"](view, A, NOBODY) == Choice(W0, Step.LOAD, load_s=1.0)
    assert POLICIES["locality"](view, A, frozenset({W0})) == Choice(W1, Step.WAIT_FOR_LOAD, queue_s=3.0)


def test_locality_does_not_wait_for_a_full_instance() -> None:
    """Its worker cannot load the model a second time: the nearest of the others counts."""
    view = cluster(worker("w0", 100, busy("a", 60, (1, 2, 3, 4))), _loadable("w1", Tier.SSD))
    assert POLICIES["locality"](view, A, NOBODY) == Choice(W1, Step.LOAD, load_s=8.0)


# --- quickest, preemption, live migration ----------------------------------------------------------------


@pytest.mark.parametrize("policy", [POLICIES["preemption"], POLICIES["live_migration"], quickest])
def test_the_sum_of_queue_and_load_counts(policy: Policy) -> None:
    queue = absent("b", 20, Tier.DRAM, is_loading=True, ready_at_s=9.0)
    view = cluster(
        worker("w0", 100, absent("a", 60, Tier.DRAM), queue),
        _loadable("w1", Tier.SSD),
        worker("w2", 100, absent("a", 60, is_loading=True, ready_at_s=8.5)),
    )
    assert policy(view, A, NOBODY) == Choice(W1, Step.LOAD, load_s=8.0)
    assert policy(view, A, frozenset({W1})) == Choice(W2, Step.WAIT_FOR_LOAD, queue_s=8.5)


@pytest.mark.parametrize("policy", [POLICIES["preemption"], POLICIES["live_migration"], quickest])
def test_of_equally_quick_ones_the_least_loaded_wins(policy: Policy) -> None:
    view = cluster(_loadable("w0", Tier.DRAM, 1), _loadable("w2", Tier.DRAM), _loadable("w1", Tier.DRAM))
    choice = policy(view, A, NOBODY)
    assert choice is not None
    assert choice.worker == W1


def test_at_equal_times_nobody_is_disturbed() -> None:
    busy_one = worker("w0", 100, absent("a", 60, Tier.DRAM), busy("b", 60, (0,)))
    view = cluster(busy_one, _loadable("w1", Tier.DRAM, 3), worker("w2", 100, idle("b", 60)))
    for name in ("preemption", "live_migration"):
        assert POLICIES[name](view, A, NOBODY) == Choice(W1, Step.LOAD, load_s=1.0)
        choice = POLICIES[name](view, A, frozenset({W1}))
        assert choice is not None
        assert choice.step is Step.CLEAR


def test_at_equal_times_the_least_is_thrown_away_then_the_least_loaded() -> None:
    view = cluster(
        worker("w0", 100, absent("a", 60, Tier.DRAM), busy("b", 60, (256,))),
        worker("w1", 100, absent("a", 60, Tier.DRAM), busy("b", 60, (64, 64))),
        worker("w2", 100, absent("a", 60, Tier.DRAM), busy("b", 60, (128,))),
        worker("w3", 100, absent("a", 60, Tier.DRAM), busy("b", 60, (128,))),
    )
    choice = POLICIES["preemption"](view, A, NOBODY)
    assert choice is not None
    assert choice.worker == W2
    choice = POLICIES["preemption"](view, A, frozenset({W2, W3}))
    assert choice is not None
    assert choice.worker == W1


def test_who_was_preempted_is_not_again() -> None:
    once = changed(busy("b", 60), stays_until_s=float("inf"))
    view = cluster(
        worker("w0", 100, absent("a", 60, Tier.DRAM), once),
        worker("w1", 100, absent("a", 60, Tier.SSD), busy("b", 60)),
    )
    choice = POLICIES["preemption"](view, A, NOBODY)
    assert choice is not None
    assert choice.worker == W1


def test_a_far_worker_with_a_cheap_victim_can_be_quicker() -> None:
    """The nearest one's victim is long: loading from the SSD elsewhere takes less."""
    view = cluster(
        worker("w0", 100, absent("a", 60, Tier.DRAM), busy("b", 60, (2048,))),
        worker("w1", 100, absent("a", 60, Tier.SSD), busy("c", 60, (128,))),
        worker("w2", 200, busy("b", 60), busy("c", 60)),
    )
    assert POLICIES["live_migration"](view, A, NOBODY) == Choice(
        W1, Step.CLEAR, (), (Victim(C, W2, 0.0, 1.0),), load_s=8.0
    )


def test_a_victim_takes_the_place_that_the_request_could_have_had() -> None:
    """It is the sum that counts: w1 loads a in 8 s; b, moved there, loads in 1 s and frees w0's memory."""
    view = cluster(
        worker("w0", 100, absent("a", 60, Tier.DRAM), busy("b", 60, (128,))),
        worker("w1", 100, absent("a", 60, Tier.SSD), absent("b", 60, Tier.DRAM)),
    )
    assert POLICIES["live_migration"](view, A, NOBODY) == Choice(
        W0, Step.CLEAR, (), (Victim(B, W1, 1.0, 1.0),), load_s=1.0
    )
