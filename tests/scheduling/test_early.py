"""Early moves: running requests leave workers before these go, where it is worth it, and within limits."""

import pytest

from godwit.costs.constants import Constant
from godwit.costs.known import Constants, ServerConstants
from godwit.costs.startup import StartupTimes
from godwit.scheduling.ask import Ask
from godwit.scheduling.early import EarlySettings
from godwit.scheduling.events import (
    Decision,
    DrainRequested,
    Move,
    MoveEnded,
    Placed,
    RequestEnded,
    Tick,
    WorkerJoined,
)
from godwit.scheduling.policies import hazard
from godwit.scheduling.prospects import Rule
from godwit.scheduling.scheduler import Scheduler, SchedulerSettings
from godwit.scheduling.view import Hazards, Risks
from godwit.types import ModelName, RequestId, WorkerId
from tests.scheduling.build import info
from tests.scheduling.hazards import Oracle, Rates

# 0.1 s a token, 1,000 tokens/s of prefill after 0.2 s: a context of 400 takes 0.6 s.
SERVER = ServerConstants(Constant(1000.0), Constant(0.2), token_s=Constant(0.1))
MODEL = ModelName("m")


class Guessed(StartupTimes):
    """Clients guess right, so that figures can be computed by hand."""

    def remaining_tokens(
        self, model: ModelName, num_output: float, expected_tokens: int | None, max_tokens: int | None
    ) -> float:
        del model, max_tokens
        return (expected_tokens or 0) - num_output


class Fleet:
    """A scheduler with risks, and requests of 100 prompt tokens that have drawn 300 of 500."""

    def __init__(
        self, hazards: Hazards, settings: EarlySettings | None = None, known: Constants | None = None
    ) -> None:
        times = Guessed(known or Constants(models={"m": SERVER}))
        limits = SchedulerSettings(early=settings or EarlySettings(hysteresis_s=2.0))
        self.scheduler = Scheduler(hazard, times, limits, risks=Risks(hazards, 5.0))
        self.now = 0.0

    def join(self, name: str, *requests: str, slots: int = 2, expected: int = 500) -> None:
        ask = Ask(100, 300, expected, 2000)
        running = tuple(Placed(RequestId(one), MODEL, 400, ask=ask) for one in requests)
        joined = WorkerJoined(WorkerId(name), 1, slots, 100, (info(),), running)
        self.scheduler.handle(joined, self.now)

    def tick(self, after_s: float = 0.0) -> list[Decision]:
        self.now += after_s
        return self.scheduler.handle(Tick(), self.now)

    def moves(self, after_s: float = 0.0) -> list[tuple[str, str, str]]:
        return [
            (one.request, one.source, one.destination) for one in self.tick(after_s) if isinstance(one, Move)
        ]

    def moved(self, request: str, to: str | None, num_tokens: int = 400) -> None:
        on = None if to is None else WorkerId(to)
        self.scheduler.handle(MoveEnded(RequestId(request), on, num_tokens), self.now)


def test_who_would_be_lost_leaves_and_says_why() -> None:
    """20 s are left, the worker goes in 8 s: 5 s of stall and 0.2 + 0.48 s of recompute against two steps."""
    fleet = Fleet(Oracle({"a": 8.0}))
    fleet.join("a", "r")
    fleet.join("b")
    (move,) = fleet.tick()
    assert isinstance(move, Move)
    assert (move.request, move.source, move.destination) == ("r", "a", "b")
    assert move.reason == "early: expected to save 5.5 s; a leaves within 20 s with 100%"
    assert move.resume_s == pytest.approx(0.6)


def test_who_is_done_before_its_worker_goes_stays() -> None:
    fleet = Fleet(Oracle({"a": 21.0}))
    fleet.join("a", "r")
    fleet.join("b")
    assert fleet.moves() == []
    # Its end comes nearer as fast as the worker's.
    assert fleet.moves(10.0) == []


def test_an_oracle_has_it_move_in_time_and_to_who_stays() -> None:
    fleet = Fleet(Oracle({"a": 8.0, "b": 9.0}))
    fleet.join("a", "r")
    fleet.join("b")
    fleet.join("c")
    assert fleet.moves() == [("r", "a", "c")]


def test_a_request_cannot_leave_a_worker_that_goes_within_the_window() -> None:
    """The move takes 0.6 s."""
    fleet = Fleet(Oracle({"a": 0.5}))
    fleet.join("a", "r")
    fleet.join("b")
    assert fleet.moves() == []


def test_servers_that_stay_lose_nobody() -> None:
    fleet = Fleet(Rates())
    fleet.join("a", "r1", "r2")
    fleet.join("b")
    assert fleet.moves() == []


@pytest.mark.parametrize(("rule", "moves"), [("window", [("r", "a", "b")]), ("classic", [])])
def test_only_the_window_rule_fires(rule: Rule, moves: list[tuple[str, str, str]]) -> None:
    """A quarter of a loss of 5.7 s is more than 0.2 s of pause and h, not than 0.6 s of prefill and h."""
    fleet = Fleet(Rates({"a": 0.0144}), EarlySettings(rule, hysteresis_s=1.0))
    fleet.join("a", "r")
    fleet.join("b")
    assert fleet.moves() == moves


def test_the_classic_rule_fires_where_the_loss_is_greater_than_a_prefill() -> None:
    fleet = Fleet(Oracle({"a": 8.0}), EarlySettings("classic", hysteresis_s=2.0))
    fleet.join("a", "r")
    fleet.join("b")
    (move,) = fleet.tick()
    assert isinstance(move, Move)
    # Two steps of pause are saved, and a prefill of 0.6 s is lost.
    assert move.reason == "early: expected to save 5.1 s; a leaves within 20 s with 100%"


@pytest.mark.parametrize(("hysteresis_s", "num_moves"), [(5.0, 1), (6.0, 0)])
def test_what_is_saved_must_be_more_than_the_hysteresis(hysteresis_s: float, num_moves: int) -> None:
    fleet = Fleet(Oracle({"a": 8.0}), EarlySettings(hysteresis_s=hysteresis_s))
    fleet.join("a", "r")
    fleet.join("b")
    assert len(fleet.moves()) == num_moves


def test_nobody_moves_for_the_last_few_tokens() -> None:
    fleet = Fleet(Oracle({"a": 3.0}), EarlySettings(hysteresis_s=1.0, min_remaining=50))
    fleet.join("a", "r", expected=349)
    fleet.join("b")
    assert fleet.moves() == []
    fleet = Fleet(Oracle({"a": 3.0}), EarlySettings(hysteresis_s=1.0, min_remaining=50))
    fleet.join("a", "r", expected=350)
    fleet.join("b")
    assert fleet.moves() == [("r", "a", "b")]


def test_a_request_moves_early_so_often_and_no_more() -> None:
    oracle = Oracle({"a": 8.0, "b": 9.0})
    fleet = Fleet(oracle, EarlySettings(hysteresis_s=2.0, max_hops=2))
    fleet.join("a", "r", expected=2000)
    fleet.join("c", slots=1)
    assert fleet.moves() == [("r", "a", "c")]
    fleet.moved("r", "c")
    fleet.join("d")
    oracle.leaves_s["c"] = 12.0
    assert fleet.moves(2.0) == [("r", "c", "d")]
    fleet.moved("r", "d")
    fleet.join("e")
    oracle.leaves_s["d"] = 12.0
    assert fleet.moves(2.0) == []
    fleet.scheduler.handle(RequestEnded(RequestId("r")), fleet.now)
    fleet.join("d", "r", expected=2000)
    assert fleet.moves(2.0) == [("r", "d", "e")]


def test_a_move_that_failed_is_tried_again_after_a_while() -> None:
    fleet = Fleet(Oracle({"a": 15.0}))
    fleet.join("a", "r")
    fleet.join("b")
    assert fleet.moves() == [("r", "a", "b")]
    fleet.moved("r", None)
    assert fleet.moves(2.0) == []
    assert fleet.moves(4.0) == [("r", "a", "b")]


def test_those_that_save_most_go_first_and_only_as_many_as_there_is_room() -> None:
    """b has one slot; what w1 computes takes longest to compute again."""
    fleet = Fleet(Oracle({"a": 8.0, "w1": 1.5}))
    fleet.join("a", "r1")
    fleet.join("w1", "r2")
    fleet.join("b", slots=1)
    assert fleet.moves() == [("r1", "a", "b")]
    assert fleet.moves(2.0) == []


def test_a_worker_has_two_such_moves_at_once() -> None:
    fleet = Fleet(Oracle({"a": 8.0}))
    fleet.join("a", "r1", "r2", "r3", slots=4)
    fleet.join("b", slots=4)
    assert len(fleet.moves()) == 2
    assert fleet.moves(2.0) == []
    fleet.moved("r1", "b")
    assert len(fleet.moves(2.0)) == 1


def test_it_is_looked_at_now_and_then_only() -> None:
    fleet = Fleet(Oracle({"a": 8.0}), EarlySettings(hysteresis_s=2.0, check_s=3.0))
    fleet.join("a", "r")
    assert fleet.moves() == []
    fleet.join("b")
    assert fleet.moves(2.9) == []
    assert fleet.moves(0.1) == [("r", "a", "b")]


def test_a_drain_moves_its_workers_requests_by_itself_and_gets_none() -> None:
    fleet = Fleet(Oracle({"a": 8.0}))
    fleet.join("a", "r")
    fleet.join("b")
    fleet.scheduler.handle(DrainRequested(WorkerId("b"), None), fleet.now)
    assert fleet.moves() == []


def test_a_server_that_is_only_faster_is_no_reason_to_leave() -> None:
    """200 tokens at 0.1 s, or at 0.02 s; nobody leaves."""
    known = Constants(
        models={"m": SERVER},
        workers={("b", "m"): ServerConstants(Constant(1000.0), Constant(0.2), token_s=Constant(0.02))},
    )
    fleet = Fleet(Rates(), known=known)
    fleet.join("a", "r")
    fleet.join("b")
    assert fleet.moves() == []


def test_without_risks_or_settings_nothing_moves() -> None:
    for risks, early in ((None, EarlySettings()), (Risks(Oracle({"a": 1.0})), None)):
        times = StartupTimes(Constants(models={"m": SERVER}))
        scheduler = Scheduler(hazard, times, SchedulerSettings(early=early), risks=risks)
        running = (Placed(RequestId("r"), MODEL, 400, ask=Ask(100, 300, 500)),)
        scheduler.handle(WorkerJoined(WorkerId("a"), 1, 2, 100, (info(),), running), 0.0)
        scheduler.handle(WorkerJoined(WorkerId("b"), 1, 2, 100, (info(),)), 0.0)
        assert scheduler.handle(Tick(), 0.0) == []
