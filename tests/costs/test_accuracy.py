"""Errors of predictions are summed up, and old ones are forgotten."""

import pytest

from godwit.costs.accuracy import PredictionErrors


def test_errors_are_summed_up_and_forgotten() -> None:
    errors = PredictionErrors(window=4)
    assert errors.summary() is None
    errors.record(100.0, 1.0)
    for actual_s in (1.5, 2.0, 2.5, 0.5):
        errors.record(1.0, actual_s)
    summary = errors.summary()
    assert summary is not None
    assert summary.n == 4
    assert (summary.p50_s, summary.p95_s, summary.bias_s) == pytest.approx((0.75, 1.425, 0.75))


def test_a_window_holds_one_prediction_at_least() -> None:
    with pytest.raises(ValueError, match="at least 1 prediction"):
        PredictionErrors(window=0)
