"""What one worker could do for one more request."""

import pytest
from msgspec.structs import replace

from godwit.scheduling.choices import Choice, Step, Victim
from godwit.scheduling.startup import describe, evictions, fit
from godwit.scheduling.view import ModelView, WorkerView
from godwit.types import ModelName, Tier
from tests.scheduling.views import W0, W1, A, B, C, absent, busy, cluster, idle, worker


def _fit(one: WorkerView, model: ModelName = A) -> Choice | None:
    return fit(cluster(one), one, model)


@pytest.mark.parametrize("state", [idle("a", 60), busy("a", 60, (1, 2, 3)), idle("a", 60, num_promised=3)])
def test_a_loaded_model_with_a_free_slot_starts_at_once(state: ModelView) -> None:
    assert _fit(worker("w0", 100, state)) == Choice(W0, Step.START)


@pytest.mark.parametrize(
    "one",
    [
        worker("w0", 100, idle("b", 60)),
        worker("w0", 100, idle("a", 60), is_draining=True),
        worker("w0", 100, idle("a", 60, is_leaving=True)),
        worker("w0", 100, busy("a", 60, (1, 2, 3, 4))),
        worker("w0", 100, absent("a", 60, is_coming=True, num_promised=4)),
        worker("w0", 100, absent("a", 60), busy("b", 41)),
        worker("w0", 100, absent("a", 60), claimed_bytes=41),
        worker("w0", 59, absent("a", 60)),
    ],
    ids=["unknown", "draining", "leaving", "full", "promised", "no room", "claimed", "too big"],
)
def test_it_cannot_be_had(one: WorkerView) -> None:
    assert _fit(one) is None


@pytest.mark.parametrize(
    "state",
    [
        absent("a", 60, is_loading=True, ready_at_s=3.0, num_promised=3),
        absent("a", 60, is_coming=True, ready_at_s=3.0, num_promised=3),
    ],
    ids=["loading", "coming"],
)
def test_a_load_under_way_is_waited_for(state: ModelView) -> None:
    one = worker("w0", 100, state)
    assert _fit(one) == Choice(W0, Step.WAIT_FOR_LOAD, queue_s=3.0)
    late = replace(cluster(one), now=4.0)
    assert fit(late, one, A) == Choice(W0, Step.WAIT_FOR_LOAD)


def test_a_load_waits_for_those_from_the_same_tier() -> None:
    loading = absent("b", 20, Tier.SSD, is_loading=True, ready_at_s=3.0)
    other = absent("c", 20, Tier.DRAM, is_loading=True, ready_at_s=9.0)
    assert _fit(worker("w0", 100, absent("a", 60), loading, other)) == Choice(
        W0, Step.LOAD, queue_s=3.0, load_s=8.0
    )


def test_the_least_recently_used_are_evicted_and_only_as_many_as_needed() -> None:
    models = [idle("c", 20, used_at_s=1.0), idle("b", 20, used_at_s=2.0), idle("d", 20, used_at_s=1.0)]
    one = worker("w0", 100, absent("a", 70), *models)
    assert evictions(one, 40) == ()
    assert evictions(one, 41) == (C,)
    assert evictions(one, 61) == (C, ModelName("d"))
    assert evictions(one, 100) == (C, ModelName("d"), B)
    assert evictions(one, 101) is None
    assert one.room_bytes == 100


@pytest.mark.parametrize(
    "state",
    [
        busy("b", 60),
        idle("b", 60, is_pinned=True),
        idle("b", 60, is_leaving=True),
        idle("b", 60, num_reserved=1),
        idle("b", 60, num_promised=1),
        absent("b", 60, is_loading=True),
    ],
    ids=["busy", "pinned", "leaving", "reserved", "promised", "loading"],
)
def test_only_what_is_idle_and_free_to_go_is_evicted(state: ModelView) -> None:
    one = worker("w0", 100, absent("a", 60), state)
    assert one.room_bytes == 40
    assert _fit(one) is None


def test_descriptions_use_the_plain_words() -> None:
    view = cluster(
        worker("w0", 100, absent("a", 60, Tier.DRAM), busy("b", 40, (1, 2)), busy("c", 40), idle("d", 20))
    )

    def say(choice: Choice) -> str:
        return describe(view, A, choice)

    evict = (ModelName("d"),)
    moved, killed = Victim(B, W1, 0.5, 0.25), Victim(C, None, 0.0, 1.0)
    assert say(Choice(W0, Step.START)) == "starts at once"
    assert say(Choice(W0, Step.WAIT_FOR_LOAD, queue_s=1.2)) == "waits 1.2 s for the load under way"
    assert say(Choice(W0, Step.LOAD, load_s=0.9)) == "loads in 0.9 s from dram"
    assert say(Choice(W0, Step.LOAD, evict, load_s=0.9)) == "loads in 0.9 s from dram after evicting d"
    assert (
        say(Choice(W0, Step.LOAD, queue_s=2.0, load_s=0.9))
        == "loads in 0.9 s from dram behind 2.0 s of other loads: 2.9 s in all"
    )
    assert (
        say(Choice(W0, Step.CLEAR, (), (moved,), load_s=1.25))
        == "moves b (2 requests) to w1 in 0.8 s, then loads in 1.2 s from dram: 2.0 s in all"
    )
    assert (
        say(Choice(W0, Step.CLEAR, evict, (killed,), load_s=1.25))
        == "preempts c (1 request), then loads in 1.2 s from dram after evicting d"
    )
