"""Rates from times: the interval turns over, and what cannot be told is not made up."""

import numpy as np
import pytest

from godwit.costs.fit import Estimate
from godwit.costs.lines import RateLine, inverted, rate_line

OVERHEAD_S, RATE = 0.05, 200.0
AMOUNTS = (64, 128, 192, 256, 384, 512, 640, 832)


def _points(seed: int, noise_s: float, rate: float = RATE) -> list[tuple[float, float]]:
    noise = np.random.default_rng(seed).normal(0, noise_s, len(AMOUNTS))
    return [
        (float(amount), OVERHEAD_S + amount / rate + float(error))
        for amount, error in zip(AMOUNTS, noise, strict=True)
    ]


def _ends(line: RateLine) -> tuple[float, float | None]:
    assert line.rate.measured is not None
    return line.rate.measured.low, line.rate.measured.high


def test_exact_times_give_the_truth() -> None:
    line = rate_line(_points(1, 0.0), "here")
    assert line.rate.value == pytest.approx(RATE)
    assert line.overhead_s.value == pytest.approx(OVERHEAD_S)
    assert not line.is_bound


def test_the_interval_of_a_rate_holds_the_truth_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(400):
        low, high = _ends(rate_line(_points(seed, 0.02), "here"))
        assert high is not None
        hits += low <= RATE <= high
    assert 0.9 <= hits / 400 <= 0.99


def test_an_intercept_below_zero_is_no_overhead() -> None:
    points = [(float(amount), amount / RATE * (1 + amount / 4000)) for amount in AMOUNTS]
    line = rate_line(points, "here")
    assert line.overhead_s.value == 0
    assert line.rate.measured is not None and line.rate.measured.n == len(AMOUNTS)
    longest, seconds = points[-1]
    assert longest / line.rate.value == pytest.approx(seconds, rel=0.1)


def test_a_link_too_fast_to_measure_gives_a_lower_bound_and_the_right_total() -> None:
    points = _points(3, 0.01, rate=1e9)
    line = rate_line(points, "here")
    low, high = _ends(line)
    assert line.is_bound and high is None and low == line.rate.value
    assert max(amount / second for amount, second in points) <= line.rate.value <= 1e9
    assert line.rate.measured is not None and "∞" in line.rate.provenance
    for amount, second in points:
        assert line.overhead_s.value + amount / line.rate.value == pytest.approx(second, abs=0.05)


def test_no_time_is_no_rate() -> None:
    with pytest.raises(ValueError, match="no time passed"):
        rate_line([(float(amount), 0.0) for amount in AMOUNTS], "here")


def test_an_inverse_whose_seconds_may_be_zero_has_no_upper_end() -> None:
    measured = inverted(Estimate(0.5, -0.1, 1.0, 9), 2.0, "here").measured
    assert measured is not None
    assert (measured.low, measured.high, measured.n) == (2.0, None, 9)
