"""The cheapest victims: named cases, and all sets and assignments of small clusters tried one by one."""

import pytest
from hypothesis import event, given, settings
from msgspec.structs import replace

from godwit.scheduling.choices import Choice, Step, Victim
from godwit.scheduling.victims import Places, clear_by_killing, clear_by_moving
from godwit.scheduling.view import ModelView, WorkerView
from godwit.types import ModelName, Tier
from tests.scheduling.everything import Asked, cheapest_moves, clusters, room
from tests.scheduling.views import (
    W0,
    W1,
    W2,
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

WANTED = absent("a", 60, Tier.DRAM)


def _moved(*workers: WorkerView, times: FixedTimes | None = None) -> Choice | None:
    view = cluster(*workers, times=times)
    return clear_by_moving(Places(view), workers[0], A)


def _killed(*workers: WorkerView) -> Choice | None:
    return clear_by_killing(Places(cluster(*workers)), workers[0], A)


# --- moving ----------------------------------------------------------------------------------------------


def test_a_victim_goes_where_its_model_is_loaded_with_room() -> None:
    choice = _moved(
        worker("w0", 100, WANTED, busy("b", 60, (128, 256))),
        worker("w1", 100, busy("b", 60, (1, 1))),
        worker("w2", 100, busy("b", 60, (1, 1, 1))),
        worker("w3", 100, absent("b", 60, Tier.DRAM)),
    )
    assert choice == Choice(W0, Step.CLEAR, (), (Victim(B, W1, 0.0, 3.0),), load_s=1.0)
    assert choice.clear_s == 3.0
    assert choice.seconds == 4.0


def test_the_only_victim_is_found_whatever_its_price_rounds_to() -> None:
    """For some prices p the share of all its bytes, p · n / n, is a little more than p."""
    for num_tokens in range(1, 1000):
        times = FixedTimes(resumes={(W1, B): 1 / 250})
        here = worker("w0", 60, WANTED, busy("b", 60, (num_tokens,)))
        choice = _moved(here, worker("w1", 60, absent("b", 60, Tier.DRAM)), times=times)
        assert choice is not None, num_tokens


def test_the_load_at_the_destination_counts() -> None:
    """It has the model on its SSD; the other is slower to resume, but has it in memory."""
    far, near = worker("w1", 100, absent("b", 60)), worker("w2", 100, absent("b", 60, Tier.DRAM))
    times = FixedTimes(resumes={(W2, B): 1 / 64})
    choice = _moved(worker("w0", 100, WANTED, busy("b", 60)), far, near, times=times)
    assert choice is not None
    assert choice.victims == (Victim(B, W2, 1.0, 2.0),)
    choice = _moved(worker("w0", 100, WANTED, busy("b", 60)), far)
    assert choice is not None
    assert choice.victims == (Victim(B, W1, 8.0, 1.0),)


def test_a_destination_that_loads_the_model_is_ready_when_it_is() -> None:
    coming = absent("b", 60, is_loading=True, ready_at_s=0.5, num_promised=3)
    choice = _moved(worker("w0", 100, WANTED, busy("b", 60)), worker("w1", 60, coming))
    assert choice is not None
    assert choice.victims == (Victim(B, W1, 0.5, 1.0),)


def test_the_context_grows_with_time() -> None:
    first = worker("w0", 100, WANTED, busy("b", 60, (128,)))
    view = replace(cluster(first, worker("w1", 100, idle("b", 60))), now=16.0)
    choice = clear_by_moving(Places(view), first, A)
    assert choice is not None
    assert choice.victims == (Victim(B, W1, 0.0, 2.0),)


def test_one_victim_larger_than_the_shortage_can_be_cheaper_than_two() -> None:
    one = worker("w0", 120, WANTED, busy("b", 80, (256,)), busy("c", 20), busy("d", 20))
    others = worker("w1", 200, idle("b", 80), idle("c", 20), idle("d", 20))
    choice = _moved(one, others)
    # 60 bytes are short: c and d free 40 only, and with b there is no need for them.
    assert choice is not None
    assert [victim.model for victim in choice.victims] == [B]


def test_several_victims_where_one_is_not_enough() -> None:
    models = [busy(name, 25, (tokens,)) for name, tokens in zip("bcde", (4, 3, 2, 1), strict=True)]
    one = worker("w0", 100, WANTED, *models)
    others = worker("w1", 200, *(idle(name, 25) for name in "bcde"))
    choice = _moved(one, others)
    assert choice is not None
    assert [victim.model for victim in choice.victims] == ["c", "d", "e"]


def test_equal_sums_take_fewer_victims_then_fewer_bytes() -> None:
    others = worker("w1", 400, *(idle(name, 60) for name in "bcde"))
    pair = (busy("b", 30, (64,)), busy("c", 30, (64,)))
    one = worker("w0", 150, WANTED, *pair, busy("d", 80), slots=4)
    choice = _moved(one, others)
    assert choice is not None
    assert [victim.model for victim in choice.victims] == ["d"]
    one = worker("w0", 170, WANTED, busy("d", 90), busy("e", 80))
    choice = _moved(one, others)
    assert choice is not None
    assert [victim.model for victim in choice.victims] == ["e"]


def test_idle_instances_go_first_and_no_more_than_needed() -> None:
    models = [WANTED, idle("c", 10, used_at_s=1.0), idle("d", 10, used_at_s=0.0), busy("b", 45)]
    elsewhere = worker("w1", 100, idle("b", 45))
    choice = _moved(worker("w0", 70, *models), elsewhere)
    assert choice == Choice(W0, Step.CLEAR, (ModelName("d"),), (Victim(B, W1, 0.0, 1.0),), load_s=1.0)


def test_a_place_that_an_earlier_victim_fills_is_taken() -> None:
    """Both would be cheapest on w1, which has memory for one of them."""
    one = worker("w0", 60, WANTED, busy("b", 30), busy("c", 30))
    near = worker("w1", 30, absent("b", 30, Tier.DRAM), absent("c", 30, Tier.DRAM))
    far = worker("w2", 30, absent("b", 30), absent("c", 30))
    times = FixedTimes(loads={(W2, B): 3.0, (W2, C): 2.0})
    choice = _moved(one, near, far, times=times)
    assert choice is not None
    assert choice.victims == (Victim(B, W1, 1.0, 1.0), Victim(C, W2, 2.0, 1.0))
    assert _moved(one, near) is None


def test_an_idle_instance_that_serves_a_victim_makes_no_room_for_another() -> None:
    one = worker("w0", 60, WANTED, busy("b", 30), busy("c", 30))
    assert _moved(one, worker("w1", 30, idle("b", 30), absent("c", 30))) is None
    assert _moved(one, worker("w1", 30, busy("b", 30), absent("c", 30))) is None
    choice = _moved(one, worker("w1", 60, busy("b", 30), idle("d", 30), absent("c", 30)))
    assert choice is not None
    assert {victim.destination for victim in choice.victims} == {W1}


@pytest.mark.parametrize(
    "state",
    [
        busy("b", 60, is_pinned=True),
        busy("b", 60, is_leaving=True),
        busy("b", 60, num_reserved=1),
        busy("b", 60, num_promised=1),
        changed(busy("b", 60, (1, 1)), is_moving=True),
        changed(busy("b", 60, (1, 1)), stays_until_s=0.5),
    ],
    ids=["pinned", "leaving", "reserved", "promised", "moving", "stays"],
)
def test_an_instance_that_must_stay_stays(state: ModelView) -> None:
    one, other = worker("w0", 100, WANTED, state), worker("w1", 100, idle("b", 60))
    assert _moved(one, other) is None
    assert _killed(one, other) is None


def test_a_request_stays_only_until_then() -> None:
    one = worker("w0", 100, WANTED, changed(busy("b", 60), stays_until_s=0.0))
    assert _moved(one, worker("w1", 100, idle("b", 60))) is not None


@pytest.mark.parametrize(
    "other",
    [
        worker("w1", 100, idle("c", 60)),
        worker("w1", 100, idle("b", 60), is_draining=True),
        worker("w1", 100, idle("b", 60, is_leaving=True)),
        worker("w1", 100, busy("b", 60, (1, 2, 3, 4))),
        worker("w1", 100, busy("b", 60, (1, 2, 3))),
        worker("w1", 100, absent("b", 60, is_coming=True)),
        worker("w1", 100, absent("b", 60), claimed_bytes=41),
        worker("w1", 100, absent("b", 60), busy("c", 41)),
        worker("w1", 100, absent("b", 60), idle("c", 41, is_pinned=True)),
        worker("w1", 100, replace(idle("b", 60), info=replace(idle("b", 60).info, digest="2"))),
    ],
    ids=[
        "no holder",
        "draining",
        "leaving",
        "full",
        "1 slot",
        "coming",
        "claimed",
        "busy",
        "pinned",
        "digest",
    ],
)
def test_without_a_place_nobody_moves(other: WorkerView) -> None:
    one = worker("w0", 100, WANTED, busy("b", 60, (128, 256)))
    assert _moved(one, other) is None


def test_no_victim_goes_to_an_excluded_worker() -> None:
    one = worker("w0", 100, WANTED, busy("b", 60))
    view = cluster(one, worker("w1", 100, idle("b", 60)))
    assert clear_by_moving(Places(view, frozenset({W1})), one, A) is None


def test_nothing_is_cleared_where_the_model_could_not_be_loaded_or_need_not() -> None:
    elsewhere = worker("w1", 100, idle("b", 60))
    for wanted in (busy("a", 40, (1, 1, 1, 1)), absent("a", 40), absent("a", 101)):
        assert _moved(worker("w0", 100, wanted, busy("b", 60)), elsewhere) is None
    one = worker("w0", 100, absent("a", 60, is_coming=True), busy("b", 60))
    assert _moved(one, elsewhere) is None


def test_what_takes_too_long_is_not_found() -> None:
    one = worker("w0", 100, WANTED, busy("b", 60))
    view = cluster(one, worker("w1", 100, idle("b", 60)))
    assert clear_by_moving(Places(view), one, A, 2.0) is not None
    assert clear_by_moving(Places(view), one, A, 1.9) is None
    assert clear_by_killing(Places(view), one, A, 1.0) is not None
    assert clear_by_killing(Places(view), one, A, 0.9) is None


# --- preempting ------------------------------------------------------------------------------------------


def test_preempting_is_at_once_and_throws_away_as_little_as_it_can() -> None:
    one = worker("w0", 100, WANTED, busy("b", 50, (256,)), busy("c", 50, (64, 128)))
    assert _killed(replace(one, claimed_bytes=-10)) == Choice(
        W0, Step.CLEAR, (), (Victim(C, None, 0.0, 1.5),), load_s=1.0
    )
    choice = _killed(one)
    assert choice is not None
    assert [victim.model for victim in choice.victims] == [B, C]
    assert (choice.clear_s, choice.thrown_away_s, choice.seconds) == (0.0, 3.5, 1.0)


# --- against trying everything ---------------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(clusters())
def test_the_moves_are_the_cheapest_of_all(asked: Asked) -> None:
    choice = clear_by_moving(Places(asked.view), asked.first, A)
    expected = cheapest_moves(asked) if asked.shortage() > 0 else None
    event("none" if expected is None else f"{expected[1]} victims")
    if expected is None:
        assert choice is None
        return
    assert choice is not None
    freed = sum(asked.first.models[one.model].info.device_bytes for one in choice.victims)
    assert (choice.clear_s, len(choice.victims), freed) == expected
    assignment = {one.model: one.destination for one in choice.victims if one.destination is not None}
    assert len(assignment) == len(choice.victims)
    assert asked.fits(assignment)
    for one in choice.victims:
        assert one.destination is not None
        assert one.seconds == asked.move_s(asked.first.models[one.model], one.destination)
    evicted = sum(asked.first.models[name].info.device_bytes for name in choice.evict)
    assert freed + evicted + asked.first.free_bytes >= asked.first.models[A].info.device_bytes


@settings(max_examples=200, deadline=None)
@given(clusters())
def test_what_is_preempted_is_the_least_of_all(asked: Asked) -> None:
    choice = clear_by_killing(Places(asked.view), asked.first, A)
    assert asked.first.room_bytes == room(asked.first)
    sets = list(asked.sets()) if asked.shortage() > 0 else []
    if not sets:
        assert choice is None
        return

    def thrown_away(chosen: list[ModelView]) -> tuple[float, int, int]:
        lost = sum(one.num_tokens / 128 for state in chosen for one in state.running)
        return lost, len(chosen), sum(one.info.device_bytes for one in chosen)

    assert choice is not None
    found = [asked.first.models[victim.model] for victim in choice.victims]
    assert thrown_away(found) == min(map(thrown_away, sets))
    assert all(victim.destination is None for victim in choice.victims)
