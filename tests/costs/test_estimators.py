"""Loading and resume times: the formulas, what they learn, and the errors that they own up to."""

import numpy as np
import pytest

from godwit.costs.accuracy import PredictionErrors
from godwit.costs.fit import Line
from godwit.costs.loading import LoadTimes
from godwit.costs.resume import ResumeTimes
from godwit.types import Tier

BANDWIDTHS = {Tier.DRAM: 8e9, Tier.SSD: 1e9, Tier.REMOTE: 1e8}
GB = 10**9


@pytest.mark.parametrize(
    ("tier", "seconds"), [(Tier.DEVICE, 0), (Tier.DRAM, 0.25), (Tier.SSD, 2), (Tier.REMOTE, 20)]
)
def test_loading_is_bytes_over_the_slowest_bandwidth(tier: Tier, seconds: float) -> None:
    assert LoadTimes(BANDWIDTHS).estimate_s(tier, 2 * GB) == pytest.approx(seconds)


def test_a_slow_tier_on_the_way_counts() -> None:
    times = LoadTimes({Tier.DRAM: 1e8, Tier.SSD: 1e9, Tier.REMOTE: 1e9})
    assert times.bandwidth_bytes_per_s(Tier.SSD) == pytest.approx(1e8)
    assert times.bandwidth_bytes_per_s(Tier.DEVICE) == float("inf")


def test_earlier_loads_come_first_but_not_before_what_is_loaded() -> None:
    times = LoadTimes(BANDWIDTHS)
    assert times.estimate_s(Tier.SSD, GB, queue_s=5) == pytest.approx(6)
    assert times.estimate_s(Tier.DEVICE, GB, queue_s=5) == 0


def test_real_loads_replace_the_assumed_bandwidth_of_their_tier_alone() -> None:
    times = LoadTimes(BANDWIDTHS)
    for seconds in (2.0, 2.1, 1.9, 40.0, 2.0):  # one of them waited for something else
        times.record(Tier.SSD, GB, times.estimate_s(Tier.SSD, GB), seconds)
    assert times.estimate_s(Tier.SSD, 3 * GB) == pytest.approx(6, rel=0.05)
    assert times.estimate_s(Tier.DRAM, GB) == pytest.approx(0.125)
    errors = times.errors.summary()
    assert errors is not None
    assert errors.n == 5
    assert errors.p50_s < 1.1


def test_a_resume_is_affine_in_the_tokens_so_far() -> None:
    times = ResumeTimes(Line(0.2, 1e-3))
    assert times.estimate_s(num_prompt=300, running_s=20.0, token_s=0.1) == pytest.approx(0.2 + 0.5)


def test_resumes_are_learnt_and_their_errors_shrink() -> None:
    rng = np.random.default_rng(11)
    times = ResumeTimes(Line(0.2, 1e-3))
    for step in range(60):
        context = int(rng.integers(50, 2000))
        actual_s = 0.05 + 8e-3 * context + float(rng.normal(0, 0.02))
        times.record(context, times.estimate_s(context, 0.0, 0.02), actual_s)
        if step == 5:
            early = times.errors.summary()
    late = times.errors.summary()
    assert times.line.intercept == pytest.approx(0.05, abs=0.02)
    assert times.line.slope == pytest.approx(8e-3, rel=0.01)
    assert early is not None
    assert late is not None
    assert late.p50_s < 0.05 < early.p50_s
    assert late.n == 60


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


def test_what_is_no_estimate_is_refused() -> None:
    with pytest.raises(ValueError, match="tier remote is above 0 bytes/s, not 0"):
        LoadTimes({Tier.DRAM: 1e9, Tier.SSD: 1e9})
    with pytest.raises(ValueError, match="not a load"):
        LoadTimes(BANDWIDTHS).record(Tier.DEVICE, GB, 0.0, 1.0)
    with pytest.raises(ValueError, match="more than 0 s, not 0"):
        ResumeTimes(Line(0, 1)).estimate_s(1, 1.0, 0)
    with pytest.raises(ValueError, match="at least 1 prediction"):
        PredictionErrors(window=0)
