"""Fits find the constants that made the points, and say how sure they are."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from godwit.costs.fit import (
    AffineFit,
    Estimate,
    Line,
    OnlineConstant,
    OnlineLine,
    fit_affine,
    fit_affine_robust,
)

Fit = Callable[[Sequence[float], Sequence[float]], AffineFit]
TRUTH = Line(0.5, 1e-3)
CONTEXTS = (64.0, 256.0, 1024.0, 2048.0)
FITS = (fit_affine, fit_affine_robust)


def _noisy(rng: np.random.Generator, n: int, noise_s: float = 0.05) -> tuple[list[float], list[float]]:
    xs = [CONTEXTS[i % len(CONTEXTS)] for i in range(n)]
    return xs, [TRUTH.at(x) + float(rng.normal(0, noise_s)) for x in xs]


def _holds(estimate: Estimate, truth: float) -> bool:
    return estimate.low <= truth <= estimate.high


@pytest.mark.parametrize("fit", FITS)
def test_points_on_a_line_give_the_line(fit: Fit) -> None:
    result = fit(CONTEXTS, [TRUTH.at(x) for x in CONTEXTS])
    assert (result.intercept.value, result.slope.value) == pytest.approx((0.5, 1e-3))
    assert result.residuals == pytest.approx([0] * 4)
    assert (result.intercept.n, result.outliers) == (4, ())


def test_least_squares_against_numbers_worked_out_by_hand() -> None:
    result = fit_affine([1, 2, 3, 4], [2, 3, 5, 6])
    # Slope 7/5, intercept 0.5; squared residuals 0.2; t(0.975, 2) = 4.3027.
    assert (result.intercept.value, result.slope.value) == pytest.approx((0.5, 1.4))
    assert result.residuals == pytest.approx([0.1, -0.3, 0.3, -0.1])
    assert result.residual_std == pytest.approx(0.1**0.5)
    assert result.slope.high - result.slope.value == pytest.approx(4.3027 * (0.1 / 5) ** 0.5, rel=1e-4)
    assert result.intercept.value - result.intercept.low == pytest.approx(
        4.3027 * (0.1 * (1 / 4 + 6.25 / 5)) ** 0.5, rel=1e-4
    )


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("n", [8, 24])
def test_intervals_hold_the_truth_as_often_as_they_say(fit: Fit, n: int) -> None:
    rng = np.random.default_rng(7)
    results = [fit(*_noisy(rng, n)) for _ in range(600)]
    # 95 % ± 3 standard errors of 600 tries; leaving outliers out costs few points a little more.
    for held in (
        np.mean([_holds(result.intercept, TRUTH.intercept) for result in results]),
        np.mean([_holds(result.slope, TRUTH.slope) for result in results]),
    ):
        assert 0.91 <= held <= 0.98


@pytest.mark.parametrize("outlier", [0, 3, 7])
@pytest.mark.parametrize("error_s", [5.0, -3.0])
def test_one_outlier_does_not_spoil_a_robust_fit(outlier: int, error_s: float) -> None:
    xs, ys = _noisy(np.random.default_rng(1), 8, noise_s=0.02)
    ys[outlier] += error_s
    robust, plain = fit_affine_robust(xs, ys), fit_affine(xs, ys)
    assert robust.outliers == (outlier,)
    assert robust.residuals[outlier] == pytest.approx(error_s, abs=0.2)
    assert robust.slope.n == 7
    for x in CONTEXTS:
        assert robust.line.at(x) == pytest.approx(TRUTH.at(x), abs=0.08)
    assert max(abs(plain.line.at(x) - TRUTH.at(x)) for x in CONTEXTS) > 0.5


def test_intervals_stay_honest_beside_an_outlier() -> None:
    rng = np.random.default_rng(3)
    held = []
    for _ in range(400):
        xs, ys = _noisy(rng, 12)
        ys[int(rng.integers(12))] += 5
        held.append(_holds(fit_affine_robust(xs, ys).slope, TRUTH.slope))
    assert np.mean(held) >= 0.9


def test_at_most_a_quarter_is_left_out() -> None:
    xs, ys = _noisy(np.random.default_rng(1), 12, noise_s=0.001)
    for index in range(6):
        ys[index] += 5 + index
    assert len(fit_affine_robust(xs, ys).outliers) <= 3


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize(
    ("xs", "ys", "message"),
    [
        ([1, 2], [1, 2], "at least 3 points, not 2"),
        ([2, 2, 2], [1, 2, 3], "not all at 2"),
        ([1, 2, 3], [1, 2], "one y for each x"),
        ([1, 2, 3], [1, 2, float("nan")], "finite"),
    ],
)
def test_points_without_a_line_are_refused(fit: Fit, xs: list[float], ys: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(xs, ys)


def test_an_estimate_becomes_a_constant_that_is_not_negative() -> None:
    constant = Estimate(0.01, -0.02, 0.04, 9).measured("a laptop, 2025-11-30")
    assert constant.provenance == "measured on a laptop, 2025-11-30, n = 9, 95 % interval [0, 0.04]"
    assert Estimate(-0.01, -0.02, -0.005, 9).measured("a laptop").value == 0


def test_an_online_line_is_the_prior_until_it_learns() -> None:
    line = OnlineLine(Line(0.2, 2e-3))
    assert (line.n, line.line) == (0, Line(0.2, 2e-3))
    for x in CONTEXTS:
        line.add(x, TRUTH.at(x))
    assert line.n == 4
    assert (line.line.intercept, line.line.slope) == pytest.approx((0.5, 1e-3))


def test_an_online_line_forgets_and_follows_a_change() -> None:
    line = OnlineLine(Line(0.2, 2e-3), window=8)
    for _ in range(50):
        for x in CONTEXTS:
            line.add(x, TRUTH.at(x))
    for x in CONTEXTS * 2:
        line.add(x, 3 * TRUTH.at(x))
    assert line.n == 8
    assert (line.line.intercept, line.line.slope) == pytest.approx((1.5, 3e-3))


def test_points_at_one_place_scale_the_prior_instead_of_inventing_a_slope() -> None:
    line = OnlineLine(Line(0.2, 1e-3))
    for _ in range(9):
        line.add(1000, 2.4)
    assert (line.line.intercept, line.line.slope) == pytest.approx((0.4, 2e-3))
    rng = np.random.default_rng(5)
    near = OnlineLine(Line(0.2, 1e-3))
    for _ in range(20):
        near.add(1000 + float(rng.uniform(-5, 5)), 2.4 + float(rng.normal(0, 0.1)))
    assert near.line.at(10_000) == pytest.approx(20.4, rel=0.1)


def test_an_online_line_shrugs_off_an_outlier() -> None:
    line = OnlineLine(Line(0.2, 2e-3))
    xs, ys = _noisy(np.random.default_rng(2), 16, noise_s=0.01)
    for x, y in zip(xs, ys, strict=True):
        line.add(x, y)
    line.add(256, 60)
    assert line.line.at(1000) == pytest.approx(1.5, abs=0.05)


@pytest.mark.parametrize("ys", [(9.0, 5.0, 2.0, 1.0), (0.01, 0.2, 1.0, 2.1)])
def test_an_online_line_never_predicts_less_than_nothing(ys: tuple[float, ...]) -> None:
    line = OnlineLine(Line(0.2, 1e-3))
    for x, y in zip(CONTEXTS * 3, ys * 3, strict=True):
        line.add(x, y)
    assert line.line.slope > 0
    assert line.line.intercept >= 0


def test_an_online_constant_doubts_a_first_high_value_and_believes_a_first_low_one() -> None:
    doubted, believed = OnlineConstant(10.0), OnlineConstant(10.0)
    assert (doubted.n, doubted.value) == (0, 10)
    doubted.add(30.0)
    assert (doubted.n, doubted.value) == (1, 10)
    doubted.add(32.0)
    assert doubted.value == 30
    believed.add(2.0)
    assert believed.value == 2


def test_an_online_constant_forgets_what_left_its_window() -> None:
    constant = OnlineConstant(10.0, window=3)
    for value in (900.0, 800.0, 2.2, 2.1, 2.0):
        constant.add(value)
    assert constant.n == 3
    assert constant.value == 2.1


def test_windows_are_bounded_from_below() -> None:
    with pytest.raises(ValueError, match="at least 3 points, not 2"):
        OnlineLine(Line(0, 1), window=2)
    with pytest.raises(ValueError, match="at least 1 value, not 0"):
        OnlineConstant(1, window=0)
