"""Sessions have the statistics that they are asked for, and recorded ones are replayed as they were."""

from itertools import pairwise
from math import gamma, inf, isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.sim.sessions import (
    TOGETHER_S,
    Change,
    Count,
    changes_of,
    cut,
    draw_stays,
    lose_together,
    replay_changes,
    share_together,
)
from godwit.sim.spec import Life, Stay

DAY_S = 86_400.0


@pytest.mark.parametrize("shape", [0.6, 1.0, 3.0])
def test_sessions_and_gaps_have_the_wanted_means(shape: float) -> None:
    stays = draw_stays(np.random.default_rng(1), Life(600, shape, 300), 200 * DAY_S)
    lives = np.array([stay.end_s - stay.start_s for stay in stays])
    gaps = np.array([later.start_s - earlier.end_s for earlier, later in pairwise(stays)])
    assert lives.mean() == pytest.approx(600 * gamma(1 + 1 / shape), rel=0.05)
    # Of a Weibull 63 % end by the scale, whatever the shape.
    assert (lives < 600).mean() == pytest.approx(1 - np.exp(-1), abs=0.01)
    assert gaps.mean() == pytest.approx(300, rel=0.05)
    assert gaps.std() == pytest.approx(300, rel=0.05)


def test_servers_are_there_at_the_beginning_as_often_as_later() -> None:
    rng = np.random.default_rng(1)
    life = Life(600, 1.0, 300)
    firsts = [stay for _ in range(2000) for stay in draw_stays(rng, life, 100.0)[:1]]
    assert sum(stay.start_s == 0.0 for stay in firsts) / 2000 == pytest.approx(2 / 3, abs=0.05)


@given(seed=st.integers(0, 2**32), shape=st.floats(0.3, 4), gap_s=st.floats(0, 1000))
def test_sessions_are_in_order_and_come_again_with_their_seed(seed: int, shape: float, gap_s: float) -> None:
    life = Life(300, shape, gap_s, notice_s=30)
    stays = draw_stays(np.random.default_rng(seed), life, 3600)
    edges = [edge for stay in stays for edge in (stay.start_s, stay.end_s)]
    assert edges == sorted(edges)
    assert all(stay.start_s < 3600 and stay.notice_s == 30 for stay in stays)
    assert draw_stays(np.random.default_rng(seed), life, 3600) == stays


def test_impossible_lives() -> None:
    with pytest.raises(ValueError, match="above 0"):
        draw_stays(np.random.default_rng(1), Life(600, 0.0), 1.0)


@pytest.mark.parametrize("probability", [0.25, 0.55])
def test_losses_have_company_as_often_as_asked(probability: float) -> None:
    rng = np.random.default_rng(1)
    # So rare that hardly any are together by chance.
    alone = {number: draw_stays(rng, Life(10 * DAY_S, 1.0, 600), 2000 * DAY_S) for number in range(8)}
    assert share_together(stay for own in alone.values() for stay in own) < 0.05
    together = lose_together(rng, alone, probability)
    share = share_together(stay for own in together.values() for stay in own)
    assert share == pytest.approx(2 * probability / (1 + probability), abs=0.05)
    for number, own in together.items():
        assert [stay.start_s for stay in own] == [stay.start_s for stay in alone[number]]
        assert all(new.end_s <= old.end_s for new, old in zip(own, alone[number], strict=True))


def test_nobody_goes_together_with_probability_0_or_alone() -> None:
    rng = np.random.default_rng(1)
    stays = {"a": (Stay(0, 100), Stay(200)), "b": (Stay(0, 500),)}
    assert lose_together(rng, stays, 0.0) == stays
    assert lose_together(rng, {"a": stays["a"]}, 1.0) == {"a": stays["a"]}


def test_a_loss_takes_one_that_is_there() -> None:
    stays = {"a": (Stay(0, 1000),), "b": (Stay(0, inf),), "c": (Stay(2000, inf),)}
    together = lose_together(np.random.default_rng(1), stays, 1.0)
    assert together["a"] == stays["a"]
    assert together["c"] == stays["c"]
    assert 1000 <= together["b"][0].end_s <= 1000 + TOGETHER_S


def test_the_share_of_losses_together() -> None:
    assert isnan(share_together([Stay(0)]))
    assert share_together([Stay(0, 10)]) == 0
    assert share_together([Stay(0, 10), Stay(0, 300), Stay(0, 1000), Stay(0)]) == pytest.approx(2 / 3)


def test_changes_are_replayed() -> None:
    changes = [Change(0, True, "a"), Change(5, True, "b"), Change(9, False, "a"), Change(20, True, "a")]
    assert replay_changes(changes) == {"a": (Stay(0, 9), Stay(20)), "b": (Stay(5),)}


@pytest.mark.parametrize("second", [Change(1, True, "a"), Change(1, False, "b")])
def test_a_trace_that_contradicts_itself(second: Change) -> None:
    with pytest.raises(ValueError, match="twice"):
        replay_changes([Change(0, True, "a"), second])


@given(counts=st.lists(st.integers(0, 8), min_size=1), seed=st.integers(0, 2**32))
def test_counts_are_replayed(counts: list[int], seed: int) -> None:
    lines = [Count(10.0 * number, count) for number, count in enumerate(counts)]
    stays = replay_changes(changes_of(np.random.default_rng(seed), lines))
    for line in lines:
        there = [one for own in stays.values() for one in own if one.start_s <= line.at_s < one.end_s]
        assert len(there) == line.num_nodes


def test_a_replay_from_later_on() -> None:
    stays = (Stay(0, 5), Stay(8, 30), Stay(40))
    assert cut(stays, 10, notice_s=2) == (Stay(0, 20, 2), Stay(30, inf, 2))
