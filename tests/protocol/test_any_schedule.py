"""Whatever happens in whatever order: the unmoved run's tokens or an explicit error, and nothing leaks."""

import os
from random import Random

from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st

from godwit.errors import GodwitError, InvariantBrokenError
from tests.protocol.actions import FAULTS, KV, NORMAL, UNREAL, Action, Actions
from tests.protocol.checks import check_always, check_at_rest, settle

NUM_EXAMPLES = int(os.environ.get("GODWIT_EXAMPLES", "600"))
"""More of them look harder: GODWIT_EXAMPLES=5000 pytest tests/protocol/test_any_schedule.py."""
LENGTH = 120

Schedule = list[tuple[Action, int, int]]


def schedule_of(seed: int, *weights: dict[Action, int]) -> Schedule:
    """Actions at random, each kind as often as its weight says.

    Not Hypothesis's own lists: these are so full of repetitions that few of their moves get anywhere.
    """
    random = Random(seed)
    all_weights = {action: weight for part in weights for action, weight in part.items()}
    kinds = random.choices(list(all_weights), list(all_weights.values()), k=LENGTH)
    return [(kind, random.randrange(60), random.randrange(60)) for kind in kinds]


def follow(schedule: Schedule) -> None:
    """Do all that, checking after each action; then let things come to rest, and check again."""
    actions = Actions()
    for action, x, y in schedule:
        action(actions, x, y)
        check_always(actions.world)
    if not any(node.is_up for node in actions.world.nodes.values()):
        actions.world.join("z")
    settle(actions.world)
    check_at_rest(actions.world)


def fails(schedule: Schedule) -> bool:
    """Whether anything goes wrong in it."""
    try:
        follow(schedule)
    except (AssertionError, GodwitError, InvariantBrokenError, LookupError):
        return True
    return False


def shortest(schedule: Schedule) -> Schedule:
    """What is left of a failing schedule when nothing more can be left out."""
    size = len(schedule) // 2
    while size:
        start = 0
        while start < len(schedule):
            shorter = schedule[:start] + schedule[start + size :]
            if fails(shorter):
                schedule = shorter
            else:
                start += size
        size //= 2
    return schedule


def check(schedule: Schedule) -> None:
    """Follow it; where it fails, say what the shortest failing part of it is."""
    if fails(schedule):
        schedule = shortest(schedule)
        note("\n".join(f"{action.__name__}({x}, {y})" for action, x, y in schedule))
        follow(schedule)


any_schedule = settings(max_examples=NUM_EXAMPLES, deadline=None, phases=[Phase.reuse, Phase.generate])
seeds = st.integers(0, 2**32 - 1)


@any_schedule
@given(seeds)
def test_any_order_of_steps_and_deliveries(seed: int) -> None:
    check(schedule_of(seed, NORMAL))


@any_schedule
@given(seeds)
def test_any_faults(seed: int) -> None:
    check(schedule_of(seed, NORMAL, FAULTS))


@any_schedule
@given(seeds)
def test_any_faults_and_messages_lost_repeated_or_reordered(seed: int) -> None:
    check(schedule_of(seed, NORMAL, FAULTS, UNREAL))


@any_schedule
@given(seeds, st.sampled_from([(KV,), (KV, FAULTS), (KV, FAULTS, UNREAL)]))
def test_any_moves_by_kv(seed: int, weights: tuple[dict[Action, int], ...]) -> None:
    check(schedule_of(seed, *weights))


def test_those_moves_ship_kv() -> None:
    shipped = 0
    for seed in range(40):
        actions = Actions()
        for action, x, y in schedule_of(seed, KV):
            action(actions, x, y)
        settle(actions.world)
        shipped += sum(one.kv_tokens > 0 and one.outcome == "done" for one in actions.world.records)
    assert shipped >= 5
