"""Logs and token times become bars."""

import pytest

from godwit.figure3.timeline import Bar, Kind, make_bars, servers_of
from tests.figure3.story import MODEL_A, MODEL_B, A, B, client, entry, move, tokens


def test_a_load_elsewhere_makes_only_the_new_request_wait() -> None:
    log = [
        entry(10.0, "Start", request=A, model=MODEL_A, worker="w2"),
        entry(13.0, "Load", model=MODEL_B, worker="w1"),
        entry(18.0, "Loaded", model=MODEL_B, worker="w1", seconds=5.0),
        entry(18.0, "Start", request=B, model=MODEL_B, worker="w1"),
    ]
    a, b = client("A", 10.0, tokens(11.0, 20)), client("B", 13.0, tokens(18.5, 3))
    assert make_bars(log, [], (a, b), zero_s=13.0) == (
        Bar("w2", Kind.DECODE, "A", -3.0, 7.5),
        Bar("w1", Kind.LOAD, "B", 0.0, 5.0),
        Bar("w1", Kind.WAIT, "B", 0.0, 5.0),
        Bar("w1", Kind.DECODE, "B", 5.0, 6.5),
    )


def test_a_live_move_resumes_at_the_destination_once_the_model_is_there() -> None:
    log = [
        entry(10.0, "Start", request=A, model=MODEL_A, worker="w2"),
        entry(13.0, "Move", request=A, model=MODEL_A, worker="w2", destination="w1"),
        entry(14.0, "Loaded", model=MODEL_A, worker="w1", seconds=1.0),
        entry(16.1, "MoveEnded", request=A, model=MODEL_A, worker="w2", destination="w1"),
        entry(17.0, "Loaded", model=MODEL_B, worker="w2", seconds=0.9),
        entry(17.0, "Start", request=B, model=MODEL_B, worker="w2"),
    ]
    a, b = client("A", 10.0, tokens(11.0, 20)), client("B", 13.0, tokens(17.2, 2))
    bars = make_bars(log, [move("kv", 10)], (a, b), zero_s=0.0)
    assert bars == (
        Bar("w2", Kind.DECODE, "A", 10.0, 15.5),
        Bar("w1", Kind.LOAD, "A", 13.0, 14.0),
        Bar("w2", Kind.WAIT, "B", 13.0, 17.0),
        Bar("w1", Kind.RESUME, "A", 14.0, 16.0),
        Bar("w1", Kind.DECODE, "A", 16.0, 20.5),
        Bar("w2", Kind.LOAD, "B", 16.1, 17.0),
        Bar("w2", Kind.DECODE, "B", 17.0, 17.7),
    )


def test_a_preempted_request_stalls_where_it_goes_on() -> None:
    log = [
        entry(10.0, "Start", request=A, model=MODEL_A, worker="w2"),
        entry(13.0, "Preempt", request=A, model=MODEL_A, worker="w2"),
        entry(14.0, "Loaded", model=MODEL_A, worker="w1", seconds=1.0),
        entry(14.1, "Start", request=A, model=MODEL_A, worker="w1"),
        entry(17.0, "FailoverEnded", request=A, model=MODEL_A, worker="w2", destination="w1"),
    ]
    times_s = [*tokens(11.0, 5), *tokens(17.0, 5)]
    bars = make_bars(log, [move("failover", 5)], [client("A", 10.0, times_s)], zero_s=0.0)
    assert bars == (
        Bar("w2", Kind.DECODE, "A", 10.0, 13.0),
        Bar("w1", Kind.LOAD, "A", 13.0, 14.0),
        Bar("w1", Kind.STALL, "A", 13.0, 17.0),
        Bar("w1", Kind.RESUME, "A", 14.1, 17.0),
        Bar("w1", Kind.DECODE, "A", 17.0, 19.0),
    )


def test_moves_that_failed_and_those_of_others_are_no_stays() -> None:
    log = [entry(10.0, "Start", request=A, model=MODEL_A, worker="w2")]
    moves = [move("kv", 5, outcome="failed"), move("kv", 5, request=B)]
    seen = client("A", 10.0, tokens(11.0, 20))
    assert servers_of(log, moves, seen) == ("w2",)
    assert servers_of(log, [*moves, move("tokens", 6)], seen) == ("w2", "w1")


@pytest.mark.parametrize(
    "lost", [entry(9.0, "LoadFailed", model=MODEL_A, worker="w1"), entry(9.0, "Loaded", model=MODEL_A)]
)
def test_what_says_too_little_is_no_bar(lost: object) -> None:
    assert make_bars([lost], [], [client("A", 10.0, [])], zero_s=0.0) == ()  # type: ignore[list-item]  # what a record may lack
