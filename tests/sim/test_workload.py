"""The synthetic load has the statistics that it is asked for, and comes again with its seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.sim.spec import Ask
from godwit.sim.workload import (
    arrivals_each_s,
    arrivals_s,
    choices,
    estimates,
    gamma_gaps_s,
    lengths,
    make_asks,
    popularity,
    replicate,
    sampled,
)
from godwit.types import ModelName


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("rate", [0.1, 30.0])
def test_gaps_have_the_wanted_mean_and_spread(cv: float, rate: float) -> None:
    gaps = gamma_gaps_s(np.random.default_rng(1), 200_000, rate, cv)
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.02)


def test_very_bursty_gaps() -> None:
    """The spread of a CV of 8 is made by one gap in a hundred."""
    gaps = gamma_gaps_s(np.random.default_rng(1), 2_000_000, 1.0, 8.0)
    assert gaps.mean() == pytest.approx(1.0, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(8.0, rel=0.03)
    assert np.median(gaps) < 1e-10


def test_a_clock() -> None:
    assert list(gamma_gaps_s(np.random.default_rng(1), 3, 4.0, 0.0)) == [0.25, 0.25, 0.25]


@pytest.mark.parametrize(("rate", "cv"), [(0.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (float("nan"), 1.0)])
def test_impossible_gaps(rate: float, cv: float) -> None:
    with pytest.raises(ValueError, match="a rate is above 0"):
        gamma_gaps_s(np.random.default_rng(1), 1, rate, cv)


@given(seed=st.integers(0, 2**32), rate=st.floats(0.05, 20), cv=st.floats(0.01, 8), seconds=st.floats(1, 600))
def test_arrivals_are_in_order_in_time_and_as_many_as_asked(
    seed: int, rate: float, cv: float, seconds: float
) -> None:
    times = arrivals_s(np.random.default_rng(seed), rate, cv, seconds)
    assert len(times) == round(rate * seconds)
    assert list(times) == sorted(times)
    assert all(0 <= time < seconds for time in times)
    assert list(arrivals_s(np.random.default_rng(seed), rate, cv, seconds)) == list(times)


def test_scaled_arrivals_keep_their_bursts() -> None:
    gaps = np.diff(arrivals_s(np.random.default_rng(1), 100.0, 4.0, 5000.0))
    assert gaps.mean() == pytest.approx(0.01, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(4.0, rel=0.03)


def test_each_model_has_bursts_of_its_own() -> None:
    rng = np.random.default_rng(1)
    chosen = rng.integers(0, 20, 20_000)
    times = arrivals_each_s(rng, chosen, 8.0, 1000.0)
    for model in (0, 7):
        own = np.diff(times[chosen == model])
        assert (own >= 0).all()
        assert own.std() / own.mean() > 4
    # Halves of the time are more alike than those of one process.
    halves = [(times[chosen == model] < 500).mean() for model in range(20)]
    assert abs((times < 500).mean() - 0.5) < np.std(halves)


def test_popularity() -> None:
    shares = popularity(6, 1.0)
    assert shares.sum() == pytest.approx(1.0)
    assert shares[0] / shares[5] == pytest.approx(6.0)
    assert list(popularity(4, 0.0)) == [0.25] * 4
    drawn = choices(np.random.default_rng(1), shares, 100_000)
    assert np.bincount(drawn) / 100_000 == pytest.approx(shares, abs=0.01)


def test_lengths() -> None:
    drawn = lengths(np.random.default_rng(1), 100_000, 48, 0.6, 1, 10_000)
    assert np.median(drawn) == pytest.approx(48, abs=1)
    assert np.log(drawn).std() == pytest.approx(0.6, rel=0.03)
    cut = lengths(np.random.default_rng(1), 1000, 48, 0.6, 40, 50)
    assert (min(cut), max(cut)) == (40, 50)


def test_rows_are_drawn_whole() -> None:
    rows = np.array([[1, 10], [2, 20], [3, 30]])
    drawn = sampled(np.random.default_rng(1), rows, 30_000)
    assert {tuple(row) for row in drawn.tolist()} == {(1, 10), (2, 20), (3, 30)}
    assert drawn[:, 0].mean() == pytest.approx(2, rel=0.02)


def test_guesses_are_off_by_a_lognormal_factor() -> None:
    outputs = np.full(100_000, 500)
    guesses = estimates(np.random.default_rng(1), outputs, 0.4)
    assert np.median(guesses) == pytest.approx(500, rel=0.01)
    assert np.log(guesses).std() == pytest.approx(0.4, rel=0.02)
    assert list(estimates(np.random.default_rng(1), outputs, 0.0)) == list(outputs)


def test_asks_have_what_was_drawn() -> None:
    models = [ModelName("a"), ModelName("b")]
    asks = make_asks(np.array([0.5, 2.0]), models, np.array([[3, 4], [5, 6]]), np.array([4.5, 5.0]), 2)
    assert asks == (Ask(0.5, models[0], 3, 4, 4.5, 2), Ask(2.0, models[1], 5, 6, 5.0, 2))
    assert make_asks(np.array([1.0]), models[:1], np.array([[3, 4]])) == (Ask(1.0, models[0], 3, 4),)


@given(count=st.integers(1, 12), exponent=st.floats(0, 2), hosts=st.integers(1, 6), room=st.integers(0, 14))
def test_copies_fill_the_hosts_and_no_host_has_two(
    count: int, exponent: float, hosts: int, room: int
) -> None:
    placed = replicate(popularity(count, exponent), hosts, room)
    assert len(placed) == hosts
    assert all(len(set(host)) == len(host) == min(room, count) for host in placed)
    # The least popular first, since those are the first to go.
    assert all(list(host) == sorted(host, reverse=True) for host in placed)
    if hosts * room >= count:
        assert {model for host in placed for model in host} == set(range(count))


def test_popular_models_have_more_copies() -> None:
    placed = replicate(popularity(8, 1.0), 4, 4)
    copies = [sum(model in host for host in placed) for model in range(8)]
    assert copies == sorted(copies, reverse=True)
    assert copies[0] == 4
    assert copies[-1] == 1
