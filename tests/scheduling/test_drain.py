"""Drains: everything moves away live, then the worker leaves; a deadline ends what is left."""

from godwit.scheduling.events import Tick
from tests.scheduling.build import Story, info, interrupt, leave, move, start


def _busy(num_requests: int, max_move_tries: int = 3) -> Story:
    story = Story(max_move_tries=max_move_tries)
    story.join("a", info(), slots=4, running=[f"r{number}" for number in range(1, num_requests + 1)])
    return story


def test_an_idle_worker_leaves_at_once_and_once() -> None:
    story = _busy(0)
    assert story.drain("a") == [leave("a")]
    assert story.tell(Tick()) == []


def test_all_requests_move_away_two_at_a_time_and_then_the_worker_leaves() -> None:
    story = _busy(3)
    story.join("b", info(), slots=4)
    assert story.drain("a") == [move("r1", "a", "b", "drain"), move("r2", "a", "b", "drain")]
    assert story.moved("r1", "b") == [move("r3", "a", "b", "drain")]
    assert story.moved("r2", "b") == []
    assert story.moved("r3", "b") == [leave("a")]


def test_a_destination_takes_two_moves_at_once_at_most() -> None:
    story = _busy(2)
    story.join("b", info(), slots=8, running=["x1", "x2"])
    story.join("c", info(), slots=8)
    story.drain("a")
    assert story.used("c") == (0, 2)
    assert story.drain("b") == []
    assert story.moved("r1", "c") == [move("x1", "b", "c", "drain")]


def test_a_draining_worker_gets_nothing_new() -> None:
    story = _busy(1)
    story.drain("a")
    assert story.queue("new") == []
    assert story.join("b", info()) == [move("r1", "a", "b", "drain"), start("new", "b")]


def test_a_drain_goes_on_when_room_appears() -> None:
    story = _busy(1)
    story.join("b", info(), slots=1, running=["x"])
    assert story.drain("a") == []
    assert story.end("x") == [move("r1", "a", "b", "drain")]


def test_a_failed_move_is_tried_elsewhere_first() -> None:
    story = _busy(1)
    story.join("b", info())
    story.join("c", info())
    assert story.drain("a") == [move("r1", "a", "b", "drain")]
    assert story.moved("r1", None) == [move("r1", "a", "c", "drain")]


def test_failed_moves_are_tried_again_after_a_tick_but_not_for_ever() -> None:
    story = _busy(1, max_move_tries=2)
    story.join("b", info())
    assert story.drain("a") == [move("r1", "a", "b", "drain")]
    assert story.moved("r1", None) == []
    assert story.tell(Tick()) == [move("r1", "a", "b", "drain")]
    assert story.moved("r1", None) == []
    assert story.tell(Tick()) == []
    assert story.end("r1") == [leave("a")]


def test_a_second_drain_request_tries_anew() -> None:
    story = _busy(1, max_move_tries=1)
    story.join("b", info())
    story.drain("a")
    story.moved("r1", None)
    assert story.drain("a") == [move("r1", "a", "b", "drain")]


def test_at_the_deadline_what_is_left_is_interrupted_once_and_starts_elsewhere() -> None:
    story = _busy(2)
    story.drain("a", within_s=10)
    story.now = 10
    assert story.tell(Tick()) == [interrupt("r1", "a"), interrupt("r2", "a")]
    assert story.tell(Tick()) == []
    story.join("b", info())
    assert story.queue("r1", exclude=["a"], has_started=True) == [start("r1", "b")]
    assert story.queue("r2", exclude=["a"], has_started=True) == [start("r2", "b"), leave("a")]


def test_a_move_under_way_at_the_deadline_is_interrupted_too() -> None:
    story = _busy(1)
    story.join("b", info())
    story.drain("a", within_s=10)
    story.now = 10
    assert story.tell(Tick()) == [interrupt("r1", "a")]
    assert story.queue("r1", exclude=["a"]) == [start("r1", "b"), leave("a")]
    assert story.used("b") == (1, 0)


def test_no_move_starts_after_the_deadline() -> None:
    story = _busy(1)
    story.drain("a", within_s=0)
    assert story.join("b", info()) == []


def test_a_request_that_arrives_at_a_draining_worker_moves_on() -> None:
    story = Story()
    story.join("a", info())
    story.queue("r")
    story.join("b", info())
    story.move("r", "b")
    assert story.drain("b") == []
    assert story.moved("r", "b") == [move("r", "b", "a", "drain")]
    assert story.moved("r", "a") == [leave("b")]


def test_a_drain_ends_with_the_worker() -> None:
    story = _busy(1)
    story.drain("a")
    story.leave("a")
    story.join("b", info())
    assert story.join("a", info()) == []
    assert story.queue("r1") == [start("r1", "a")]


def test_draining_an_unknown_worker_does_nothing() -> None:
    assert Story().drain("nobody") == []
