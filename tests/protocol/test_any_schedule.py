"""Whatever happens in whatever order: the unmoved run's tokens or an explicit error, and nothing leaks."""

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.actions import FAULTS, NORMAL, UNREAL, Action, Actions
from tests.protocol.checks import check_always, check_at_rest, settle

NUM_EXAMPLES = int(os.environ.get("GODWIT_EXAMPLES", "100"))
"""More of them look harder: GODWIT_EXAMPLES=5000 pytest tests/protocol/test_any_schedule.py."""

Schedule = list[tuple[Action, int, int]]
any_schedule = settings(max_examples=NUM_EXAMPLES, deadline=None)


def schedules(*weights: dict[Action, int]) -> st.SearchStrategy[Schedule]:
    """Lists of actions, each kind as often as its weight says."""
    actions = [action for part in weights for action, weight in part.items() for _ in range(weight)]
    number = st.integers(0, 59)
    return st.lists(st.tuples(st.sampled_from(actions), number, number), min_size=60, max_size=140)


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


@any_schedule
@given(schedules(NORMAL))
def test_any_order_of_steps_and_deliveries(schedule: Schedule) -> None:
    follow(schedule)


@any_schedule
@given(schedules(NORMAL, FAULTS))
def test_any_faults(schedule: Schedule) -> None:
    follow(schedule)


@any_schedule
@given(schedules(NORMAL, FAULTS, UNREAL))
def test_any_faults_and_messages_lost_repeated_or_reordered(schedule: Schedule) -> None:
    follow(schedule)
