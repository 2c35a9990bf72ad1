"""Where requests start, what is loaded for them, and in which order they wait."""

import pytest

from godwit.errors import InvariantBrokenError
from godwit.scheduling.events import Batch, Reject, RequestQueued, Tick, WorkerJoined
from godwit.types import ModelName, RequestId, WorkerId
from tests.scheduling.build import Story, info, load, placed, start, unload


def test_a_request_starts_on_the_least_loaded_worker_that_has_the_model() -> None:
    story = Story()
    story.join("a", info())
    story.join("b", info())
    assert story.queue("r1") == [start("r1", "a")]
    assert story.queue("r2") == [start("r2", "b")]
    assert story.queue("r3") == [start("r3", "a")]
    assert story.used("a") == (2, 0)


def test_load_is_compared_as_a_fraction_of_the_slots() -> None:
    story = Story()
    story.join("big", info(), slots=8, running=("x", "y"))
    story.join("small", info(), slots=2, running=("z",))
    assert story.queue("r") == [start("r", "big")]


def test_an_excluded_worker_is_never_chosen() -> None:
    story = Story()
    story.join("a", info())
    assert story.queue("r", exclude=["a"]) == []
    assert story.join("b", info(), running=("x",)) == [start("r", "b")]


def test_a_missing_model_is_loaded_once_and_its_requests_start_when_it_is_there() -> None:
    story = Story()
    story.join("a", info(is_loaded=False))
    assert story.queue("r1") == [load("a")]
    assert story.queue("r2") == []
    assert story.changed("a", info()) == [start("r1", "a"), start("r2", "a")]


def test_a_second_worker_loads_when_the_first_one_that_loads_is_booked_out() -> None:
    story = Story()
    story.join("a", info(is_loaded=False), slots=1)
    story.join("b", info(is_loaded=False), slots=1)
    assert story.queue("r1") == [load("a")]
    assert story.queue("r2") == [load("b")]
    assert story.queue("r3") == []
    assert story.changed("b", info()) == [start("r1", "b")]
    assert story.changed("a", info()) == [start("r2", "a")]


def test_an_idle_model_is_unloaded_to_make_room_and_a_busy_one_is_not() -> None:
    story = Story()
    story.join("a", info(), info("other", is_loaded=False))
    story.queue("r1")
    assert story.queue("r2", model="other") == []
    assert story.end("r1") == [unload("a"), load("a", "other")]


def test_no_more_models_are_unloaded_than_needed() -> None:
    story = Story()
    small, big = info("small", device_bytes=20), info("big", device_bytes=50)
    story.join("a", small, big, info("new", is_loaded=False, device_bytes=60))
    assert story.queue("r", model="new") == [unload("a", "big"), load("a", "new")]


def test_a_model_larger_than_the_device_makes_its_request_wait_and_fail_at_the_deadline() -> None:
    story = Story()
    story.join("a", info(is_loaded=False, device_bytes=101))
    assert story.queue("r", within_s=5) == []
    story.now = 5
    [reject] = story.tell(Tick())
    assert isinstance(reject, Reject)
    assert reject.code == "unavailable"


def test_a_load_that_fails_sends_its_requests_elsewhere() -> None:
    story = Story()
    story.join("a", info(is_loaded=False))
    story.join("b", info(is_loaded=False))
    story.queue("r")
    assert story.changed("a", info(is_loaded=False), error="file is damaged") == [load("b")]
    story.changed("b", info(is_loaded=False), error="out of memory")
    story.now = 60
    [reject] = story.tell(Tick())
    assert isinstance(reject, Reject)
    assert "b: out of memory" in reject.message


def test_a_request_cancelled_during_the_load_does_not_start() -> None:
    story = Story()
    story.join("a", info(is_loaded=False))
    story.queue("r")
    assert story.end("r") == []
    assert story.changed("a", info()) == []
    assert story.used("a") == (0, 0)


def test_requests_of_one_model_start_in_the_order_of_their_arrival() -> None:
    story = Story()
    story.join("a", info(), slots=1)
    for name in ("r1", "r2", "r3"):
        story.queue(name)
    assert story.end("r1") == [start("r2", "a")]
    assert story.end("r2") == [start("r3", "a")]


def test_one_that_cannot_use_the_free_slot_does_not_hold_up_the_next() -> None:
    story = Story()
    story.join("a", info(), slots=1)
    assert story.queue("r1", exclude=["a"]) == []
    assert story.queue("r2") == [start("r2", "a")]


def test_a_request_whose_stream_has_begun_goes_before_new_ones() -> None:
    story = Story()
    story.join("a", info(), slots=1)
    story.queue("r1")
    story.queue("new")
    story.queue("failed over", has_started=True)
    assert story.end("r1") == [start("failed over", "a")]


def test_a_refused_placement_is_tried_elsewhere_and_there_again_after_a_tick() -> None:
    story = Story()
    story.join("a", info())
    story.join("b", info(), slots=1)
    story.queue("r1")
    assert story.fail("r1", "a") == [start("r1", "b")]
    assert story.fail("r1", "b") == []
    assert story.used("a") == (0, 0)
    assert story.tell(Tick()) == [start("r1", "a")]


def test_a_refused_request_gets_its_former_place_in_the_line() -> None:
    story = Story()
    story.join("a", info(), slots=1)
    story.queue("r1")
    story.queue("r2")
    assert story.fail("r1", "a") == [start("r2", "a")]
    story.queue("r3")
    story.tell(Tick())
    assert story.end("r2") == [start("r1", "a")]


def test_a_refusal_that_comes_after_the_end_changes_nothing() -> None:
    story = Story()
    story.join("a", info())
    story.queue("r1")
    story.end("r1")
    assert story.fail("r1", "a") == []
    assert story.tell(Tick()) == []


def test_requests_of_a_worker_that_left_start_elsewhere_once_they_are_queued_again() -> None:
    story = Story()
    story.join("a", info())
    story.join("b", info())
    story.queue("r")
    assert story.leave("a") == []
    assert story.queue("r", exclude=["a"], has_started=True) == [start("r", "b")]


def test_a_worker_that_came_back_is_no_longer_excluded() -> None:
    story = Story()
    story.join("a", info(), slots=1)
    story.queue("r", exclude=["a"])
    story.leave("a")
    assert story.join("a", info(), slots=1) == [start("r", "a")]


def test_it_is_not_excluded_either_by_a_request_that_ran_when_it_came_back() -> None:
    story = Story()
    story.join("b", info(), slots=1)
    story.queue("r", exclude=["a"])
    story.join("a", info(), slots=1)
    assert story.fail("r", "b") == [start("r", "a")]


def test_without_any_worker_a_request_waits_and_is_told_how_to_start_one() -> None:
    story = Story()
    assert story.queue("r", within_s=5) == []
    story.now = 5
    [reject] = story.tell(Tick())
    assert isinstance(reject, Reject)
    assert "godwit worker --join" in reject.message
    assert story.join("a", info()) == []


def test_a_model_that_nobody_ever_had_is_refused_at_once() -> None:
    story = Story()
    story.join("a", info())
    [reject] = story.queue("r", model="nope")
    assert isinstance(reject, Reject)
    assert reject.code == "model_not_found"
    assert "models: m" in reject.message


def test_a_model_whose_only_worker_is_away_is_waited_for() -> None:
    story = Story()
    story.join("a", info())
    story.join("b", info("other"))
    story.leave("a")
    assert story.queue("r") == []
    assert story.join("a", info()) == [start("r", "a")]


def test_a_new_scheduler_goes_on_from_what_routers_and_workers_know() -> None:
    story = Story()
    queued = [RequestQueued(RequestId(name), ModelName("m"), 60.0) for name in ("placed", "waits")]
    a = WorkerJoined(WorkerId("a"), 1, 1, 100, (info(),), running=(placed("placed"),))
    b = WorkerJoined(WorkerId("b"), 1, 1, 100, (info(),), incoming=(placed("placed"),))
    assert story.tell(Batch((*queued, a, b))) == []
    assert story.moved("placed", "b") == [start("waits", "a")]
    assert story.fail("placed", "b") == []
    assert story.end("waits") == [start("placed", "a")]


def test_more_requests_than_slots_are_a_broken_invariant() -> None:
    with pytest.raises(InvariantBrokenError):
        Story().join("a", info(), slots=1, running=("r1", "r2"))
