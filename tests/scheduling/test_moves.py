"""Moves that somebody asks for: which happen, which are refused, and what they book."""

import pytest

from godwit.scheduling.events import RefuseMove
from godwit.types import ModelName, WorkerId
from tests.scheduling.build import Story, info, load, move, start, unload


def _two_workers(**slots: int) -> Story:
    story = Story()
    story.join("a", info(), slots=slots.get("a", 2))
    story.join("b", info(), slots=slots.get("b", 2))
    story.queue("r")
    return story


def test_a_move_reserves_a_slot_and_its_end_hands_over_the_other() -> None:
    story = _two_workers()
    assert story.move("r", "b") == [move("r", "a", "b")]
    assert (story.used("a"), story.used("b")) == ((1, 0), (0, 1))
    assert story.moved("r", "b") == []
    assert (story.used("a"), story.used("b")) == ((0, 0), (1, 0))


def test_without_a_destination_the_policy_chooses_one() -> None:
    story = _two_workers()
    assert story.move("r", None) == [move("r", "a", "b")]


def test_a_reserved_slot_is_not_given_away_and_a_failed_move_frees_it() -> None:
    story = _two_workers(a=1, b=1)
    story.move("r", "b")
    assert story.queue("r2") == []
    assert story.moved("r", None) == [start("r2", "b")]
    assert story.used("a") == (1, 0)


def test_a_finished_move_frees_the_source_for_whoever_waits() -> None:
    story = _two_workers(a=1, b=1)
    story.move("r", "b")
    story.queue("r2")
    assert story.moved("r", "b") == [start("r2", "a")]


@pytest.mark.parametrize("end", ["ends", "fails over"])
def test_a_request_that_ends_while_it_moves_frees_both_slots(end: str) -> None:
    story = _two_workers()
    story.move("r", "b")
    if end == "ends":
        story.end("r")
    else:
        story.queue("r", exclude=["a", "b"])
    assert (story.used("a"), story.used("b")) == ((0, 0), (0, 0))
    story.moved("r", "b")
    assert (story.used("a"), story.used("b")) == ((0, 0), (0, 0))


def test_a_source_that_dies_after_the_handover_does_not_hinder_the_move() -> None:
    story = _two_workers()
    story.move("r", "b")
    story.leave("a")
    assert story.used("b") == (0, 1)
    story.moved("r", "b")
    assert story.used("b") == (1, 0)


def test_a_destination_that_dies_and_returns_owes_nothing_to_the_move() -> None:
    story = _two_workers()
    story.move("r", "b")
    story.leave("b")
    story.join("b", info())
    assert story.used("b") == (0, 0)
    story.moved("r", None)
    assert (story.used("a"), story.used("b")) == ((1, 0), (0, 0))
    assert story.move("r", "b") == [move("r", "a", "b")]


def test_a_destination_without_the_model_books_its_memory() -> None:
    story = Story()
    story.join("a", info())
    story.join("b", info("other"), info(is_loaded=False), info("third", is_loaded=False))
    story.queue("r")
    assert story.move("r", "b") == [unload("b", "other"), load("b"), move("r", "a", "b")]
    assert story.queue("r2", model="third") == []
    story.moved("r", None)
    assert story.used("b") == (0, 0)


def test_a_load_goes_on_when_the_move_that_it_was_for_has_failed() -> None:
    story = Story()
    story.join("a", info())
    story.join("b", info(is_loaded=False), info("other", is_loaded=False))
    story.queue("r")
    story.move("r", "b")
    assert story.queue("r2", model="other") == []
    assert story.moved("r", None) == []
    assert story.changed("b", info()) == [unload("b"), load("b", "other")]
    assert story.changed("b", info("other")) == [start("r2", "b")]


@pytest.mark.parametrize(
    ("request_id", "to", "code"),
    [
        ("unknown", "b", "not_found"),
        ("waiting", "b", "not_found"),
        ("r", "nowhere", "not_found"),
        ("r", "a", "conflict"),
        ("r", "without the model", "conflict"),
        ("r", "draining", "conflict"),
        ("r", "full", "no_free_slot"),
    ],
)
def test_a_move_that_cannot_be_is_refused_and_books_nothing(request_id: str, to: str, code: str) -> None:
    story = Story()
    story.join("a", info(), slots=1)
    story.queue("r")
    story.queue("waiting")
    story.join("without the model", info("other"))
    story.join("full", info(is_loaded=False, device_bytes=101))
    story.join("draining", info(), slots=1, running=("x",))
    story.drain("draining")
    before = story.scheduler.snapshot()
    [refusal] = story.move(request_id, to)
    assert isinstance(refusal, RefuseMove)
    assert refusal.code == code
    assert story.scheduler.snapshot() == before


def test_a_request_that_is_moving_cannot_be_moved_again() -> None:
    story = _two_workers()
    story.move("r", "b")
    [refusal] = story.move("r", "b")
    assert isinstance(refusal, RefuseMove)
    assert refusal.code == "conflict"


def test_without_room_anywhere_the_policy_refuses_the_move() -> None:
    story = Story()
    story.join("a", info())
    story.queue("r")
    [refusal] = story.move("r", None)
    assert isinstance(refusal, RefuseMove)
    assert refusal.code == "no_free_slot"


def test_the_end_of_a_move_that_a_new_scheduler_had_not_heard_of_is_not_taken_for_that_of_another() -> None:
    """The request runs on b since then; that it has come from a is told when it is on its way to c."""
    story = Story()
    story.join("b", info(), running=["r"])
    story.join("c", info())
    assert story.move("r", "c") == [move("r", "b", "c")]
    assert story.moved("r", "b") == []
    assert story.used("c") == (0, 1)
    assert story.moved("r", "c") == []
    assert (story.used("b"), story.used("c")) == ((0, 0), (1, 0))


@pytest.mark.parametrize("is_source_first", [True, False])
def test_a_new_scheduler_knows_what_is_moving(is_source_first: bool) -> None:
    story = Story("live_migration")
    if is_source_first:
        story.join("a", info(), running=["r"])
    story.join("b", info(), incoming=["r"])
    if not is_source_first:
        story.join("a", info(), running=["r"])
    running = story.scheduler.snapshot().workers[WorkerId("a")].models[ModelName("m")].running
    assert [one.is_moving for one in running] == [True]
    story.moved("r", None)
    running = story.scheduler.snapshot().workers[WorkerId("a")].models[ModelName("m")].running
    assert [one.is_moving for one in running] == [False]
