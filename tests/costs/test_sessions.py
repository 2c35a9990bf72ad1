"""What is known of servers' stays while they come and go."""

import numpy as np
import pytest

from godwit.costs.sessions import MAX_SESSIONS, SessionHazards
from godwit.errors import ConfigError
from godwit.scheduling.view import Hazards
from godwit.types import WorkerId

A, B = WorkerId("a"), WorkerId("b")


def stays(hazards: Hazards, worker: str, now: float, time_s: float) -> float:
    return float(hazards.survival([WorkerId(worker)], now, np.array([[time_s]]))[0, 0])


def with_history(family: str = "weibull") -> SessionHazards:
    """`a` has always stayed for some 100 s."""
    hazards = SessionHazards(family)
    for seconds in (90.0, 95.0, 100.0, 105.0, 110.0):
        hazards.learn(A, seconds, is_ended=True)
    return hazards


def test_no_such_family() -> None:
    with pytest.raises(ConfigError, match="hierarchical"):
        SessionHazards("gamma")


def test_what_is_likely_depends_on_the_age() -> None:
    hazards = with_history()
    hazards.joined(A, 1000.0)
    assert stays(hazards, "a", 1000.0, 30.0) > 0.99
    assert stays(hazards, "a", 1080.0, 30.0) < 0.3


def test_it_answers_for_many_workers_at_once_and_each_as_if_alone() -> None:
    hazards = with_history()
    hazards.joined(A, 0.0)
    hazards.joined(B, 50.0)
    horizons_s = np.array([[1.0, 60.0], [60.0, 1.0], [5.0, 6.0], [1.0, 60.0]])
    found = hazards.survival([A, B, WorkerId("unknown"), A], 70.0, horizons_s)
    assert found.shape == (4, 2)
    assert found[0].tolist() == found[3].tolist()
    assert found[0, 1] == pytest.approx(stays(hazards, "a", 70.0, 60.0))
    assert found[1, 0] == pytest.approx(stays(hazards, "b", 70.0, 60.0))


def test_a_session_that_ends_is_learnt_and_the_next_begins_at_age_zero() -> None:
    hazards = SessionHazards("exponential", refit_s=0.0)
    hazards.joined(A, 0.0)
    before = stays(hazards, "a", 10.0, 10.0)
    hazards.left(A, 10.0)
    hazards.left(A, 11.0)
    hazards.joined(A, 20.0)
    assert stays(hazards, "a", 20.0, 10.0) < before - 0.2
    (told,) = hazards.report(25.0)
    assert (told.worker, told.n, told.num_ended, told.age_s) == ("a", 1, 1, 5.0)
    assert told.leaves_within_10_min > 0.9
    assert told.family == "exponential"


def test_the_session_under_way_counts_as_censored() -> None:
    """With the same single end, who has been there for an hour is less likely to go."""
    new, old = (SessionHazards("exponential") for _ in range(2))
    for hazards, since_s in ((new, 3600.0), (old, 0.0)):
        hazards.learn(A, 60.0, is_ended=True)
        hazards.joined(A, since_s)
    assert stays(new, "a", 3600.0, 60.0) < stays(old, "a", 3600.0, 60.0)


def test_a_life_that_the_heads_end_interrupted_goes_on() -> None:
    hazards = with_history()
    hazards.interrupted(A, 7, since_s=-80.0, seconds=70.0)
    hazards.joined(A, 0.0, incarnation=7)
    (told,) = hazards.report(0.0)
    assert (told.n, told.age_s) == (5, 80.0)
    assert stays(hazards, "a", 0.0, 30.0) < 0.3


def test_another_life_begins_anew_and_the_interrupted_one_stays_censored() -> None:
    hazards = with_history()
    hazards.interrupted(A, 7, since_s=-80.0, seconds=70.0)
    hazards.joined(A, 0.0, incarnation=8)
    (told,) = hazards.report(0.0)
    assert (told.n, told.num_ended, told.age_s) == (6, 5, 0.0)


def test_a_notice_is_certain_and_ends_with_the_session() -> None:
    hazards = with_history()
    hazards.joined(A, 0.0)
    hazards.notice(A, 30.0)
    assert stays(hazards, "a", 10.0, 19.9) > 0.99
    assert stays(hazards, "a", 10.0, 20.0) == 0.0
    assert hazards.report(10.0)[0].notice_s == 20.0
    assert hazards.report(10.0)[0].leaves_within_10_min == 1.0
    hazards.left(A, 30.0)
    hazards.joined(A, 40.0)
    assert stays(hazards, "a", 40.0, 20.0) > 0.99


def test_it_fits_again_only_after_a_while_and_only_if_something_was_learnt() -> None:
    hazards = SessionHazards("exponential", refit_s=30.0)
    hazards.joined(A, 0.0)
    before = stays(hazards, "a", 0.0, 10.0)
    hazards.learn(B, 5.0, is_ended=True)
    assert stays(hazards, "a", 29.0, 10.0) == pytest.approx(before)
    after = stays(hazards, "a", 30.0, 10.0)
    assert after < before
    assert stays(hazards, "a", 90.0, 10.0) == pytest.approx(after)


def test_it_remembers_so_many_sessions_of_a_server() -> None:
    hazards = SessionHazards()
    for _ in range(MAX_SESSIONS + 10):
        hazards.learn(A, 10.0, is_ended=True)
    hazards.joined(A, 0.0)
    assert hazards.report(0.0)[0].n == MAX_SESSIONS
