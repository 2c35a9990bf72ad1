"""Loading and resume times: the formulas, what they learn, and the errors that they own up to."""

import math

import msgspec
import numpy as np
import pytest

from godwit.costs.constants import Constant
from godwit.costs.known import Constants, ServerConstants
from godwit.costs.startup import EstimatesReport, LoadEstimate, StartupTimes
from godwit.scheduling.view import Running, Times
from godwit.types import LoadRecord, ModelInfo, ModelName, RequestId, Tier, WorkerId

GB = 10**9
A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
M, OTHER = ModelName("m"), ModelName("other")
KNOWN = Constants(
    models={"m": ServerConstants(Constant(1000.0), Constant(0.1))},
    workers={("a", "m"): ServerConstants(Constant(100.0), Constant(0.5))},
)


def info(tier: Tier = Tier.SSD, num_bytes: int = GB, *, is_loaded: bool = False) -> ModelInfo:
    return ModelInfo(M, "d", 4096, num_bytes, is_loaded, False, num_bytes, tier)


def load(
    times: StartupTimes, worker: WorkerId, seconds: float, tier: Tier = Tier.SSD, queue_s: float = 0.0
) -> None:
    """A load of a gigabyte, predicted and made."""
    predicted_s = times.load_s(worker, info(tier))
    times.learn_load(worker, LoadRecord(tier, GB, queue_s, seconds), 0.0, predicted_s)


def of_tier(report: EstimatesReport, worker: WorkerId | None, tier: Tier) -> LoadEstimate:
    return next(one for one in report.loads if (one.worker, one.tier) == (worker, tier))


@pytest.mark.parametrize(("tier", "seconds"), [(Tier.DRAM, 0.2), (Tier.SSD, 4 / 3), (Tier.REMOTE, 20)])
def test_loading_is_bytes_over_the_bandwidth_of_the_tier(tier: Tier, seconds: float) -> None:
    times: Times = StartupTimes()
    assert times.load_s(A, info(tier, 2 * GB)) == pytest.approx(seconds)


def test_an_emulated_tier_is_no_quicker_than_it_is_emulated() -> None:
    """From SSD the bytes pass DRAM too. Another worker, and the next life of this one, are as they are."""
    times = StartupTimes()
    times.emulates(A, {Tier.SSD: 1e8, Tier.DRAM: 5e8})
    assert times.load_s(A, info(Tier.DRAM)) == pytest.approx(2.0)
    assert times.load_s(A, info(Tier.SSD)) == pytest.approx(12.0)
    assert times.load_s(B, info(Tier.SSD)) == pytest.approx(2 / 3)
    load(times, A, 15.0)
    load(times, A, 15.0)
    assert times.load_s(A, info(Tier.SSD)) == pytest.approx(15.0)
    times.emulates(A, {})
    assert times.load_s(A, info(Tier.DRAM)) == pytest.approx(0.1)


def test_what_is_on_the_device_needs_no_load() -> None:
    times = StartupTimes()
    assert times.load_s(A, info(Tier.REMOTE, is_loaded=True)) == 0
    assert times.load_s(A, info(Tier.DEVICE)) == 0


def test_real_loads_replace_the_assumed_bandwidth_of_their_tier_alone() -> None:
    times = StartupTimes()
    for seconds in (2.0, 2.1, 1.9, 40.0, 2.0):  # one of them waited for something else
        load(times, A, seconds)
    assert times.load_s(A, info(num_bytes=3 * GB)) == pytest.approx(6, rel=0.05)
    assert times.load_s(A, info(Tier.DRAM)) == pytest.approx(0.1)


def test_a_first_slow_load_is_doubted_and_a_first_fast_one_believed() -> None:
    times = StartupTimes()
    load(times, A, 50.0)
    assert times.load_s(A, info()) == pytest.approx(2 / 3)
    load(times, A, 60.0)
    assert times.load_s(A, info()) == pytest.approx(50)
    times = StartupTimes()
    load(times, A, 0.1)
    assert times.load_s(A, info()) == pytest.approx(0.1)


def test_a_newcomer_takes_the_mean_of_the_others_and_then_its_own() -> None:
    times = StartupTimes()
    for _ in range(3):
        load(times, A, 5.0)
        load(times, B, 5.2)
    assert times.load_s(C, info()) == pytest.approx(5.0, rel=0.05)
    for _ in range(2):
        load(times, C, 20.0)
    assert times.load_s(C, info()) == pytest.approx(20)
    assert times.load_s(A, info()) == pytest.approx(5)


def test_the_queue_counts_in_the_error_but_not_in_the_bandwidth() -> None:
    times = StartupTimes()
    times.learn_load(A, LoadRecord(Tier.SSD, GB, queue_s=7.0, seconds=0.5), 5.0, 0.25)
    errors = times.report().errors["load"]
    assert (errors.n, errors.p50_s, errors.bias_s) == pytest.approx((1, 2.25, 2.25))
    assert times.load_s(A, info()) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "record",
    [
        LoadRecord(Tier.DEVICE, GB, 0.0, 1e-3),
        LoadRecord(Tier.SSD, 0, 0.0, 1e-3),
        LoadRecord(Tier.SSD, -1, 0.0, 1e-3),
        LoadRecord(Tier.SSD, GB, 0.0, 0.0),
        LoadRecord(Tier.SSD, GB, 0.0, math.nan),
        LoadRecord(Tier.SSD, GB, 0.0, math.inf),
    ],
)
def test_a_load_of_nothing_or_in_no_time_teaches_nothing(record: LoadRecord) -> None:
    times = StartupTimes()
    times.learn_load(A, record, 0.0, 1.0)
    assert times.report() == StartupTimes().report()


def test_a_resume_is_affine_in_the_tokens_so_far_which_nobody_is_asked_for() -> None:
    times = StartupTimes()
    running = Running(RequestId("r"), M, A, num_tokens=300, at_s=10.0)
    context_tokens = running.context_tokens(30.0, token_s=0.1)
    assert times.resume_s(B, M, context_tokens) == pytest.approx(0.2 + (300 + 200) / 250)


def test_resumes_begin_from_what_is_known_of_the_worker_then_of_the_model() -> None:
    times = StartupTimes(KNOWN)
    assert times.resume_s(A, M, 100) == pytest.approx(0.5 + 1)
    assert times.resume_s(B, M, 100) == pytest.approx(0.1 + 0.1)
    assert times.resume_s(B, OTHER, 100) == pytest.approx(0.2 + 0.4)


def test_resumes_are_learnt_and_their_errors_shrink() -> None:
    rng = np.random.default_rng(11)
    times, early_s = StartupTimes(), math.nan
    for step in range(60):
        context = int(rng.integers(50, 2000))
        actual_s = 0.05 + 8e-3 * context + float(rng.normal(0, 0.02))
        times.learn_resume(A, M, context, times.resume_s(A, M, context), actual_s)
        if step == 5:
            early_s = times.errors()["resume"].p50_s
    errors = times.errors()["resume"]
    assert errors.n == 60
    assert errors.p50_s < 0.05 < early_s
    (pool, own) = times.report().resumes
    assert own.overhead_s == pytest.approx(0.05, abs=0.02)
    assert own.per_token_s == pytest.approx(8e-3, rel=0.01)
    # A worker that has not been moved to yet is expected to be like this one; another model is not.
    assert (pool.worker, pool.overhead_s, pool.per_token_s) == (None, own.overhead_s, own.per_token_s)
    assert times.resume_s(B, M, 1000) == pytest.approx(times.resume_s(A, M, 1000))
    assert times.resume_s(A, OTHER, 1000) == pytest.approx(4.2)


def test_the_time_per_token_is_learnt_of_each_worker_and_model() -> None:
    times = StartupTimes()
    assert times.token_s(A, M) == 0.05
    for seconds in (2.0, 2.2, 2.1):
        times.learn_tokens(A, M, 100, seconds)
    assert times.token_s(A, M) == pytest.approx(0.021)
    assert times.token_s(B, M) == pytest.approx(0.021)
    assert times.token_s(A, OTHER) == 0.05


def test_impossible_resumes_and_tokens_teach_nothing() -> None:
    times = StartupTimes()
    for context, seconds in ((0, 1.0), (100, 0.0), (100, -1.0), (100, math.nan), (100, math.inf), (100, 1e9)):
        times.learn_resume(A, M, context, 1.0, seconds)
        times.learn_tokens(A, M, context, seconds)
    assert times.report() == StartupTimes().report()


def test_the_report_says_what_is_assumed_and_what_was_learnt() -> None:
    times = StartupTimes()
    load(times, A, 0.5)
    times.learn_tokens(B, M, 10, 0.4)
    report = msgspec.json.decode(msgspec.json.encode(times.report()), type=EstimatesReport)
    assert of_tier(report, None, Tier.DRAM) == LoadEstimate(None, Tier.DRAM, 10e9, 0, "assumed")
    learnt = of_tier(report, A, Tier.SSD)
    assert (learnt.n, learnt.provenance) == (1, "learnt")
    assert learnt.bandwidth_bytes_per_s == pytest.approx(2e9)
    own = next(one for one in report.resumes if one.worker == B)
    assert (own.provenance, own.n, own.token_n) == ("assumed", 0, 1)
    assert own.token_s == pytest.approx(0.04)


def test_what_is_kept_is_bounded_and_looking_keeps_nothing() -> None:
    times = StartupTimes(max_kept=2)
    for worker in (A, B, C):
        load(times, worker, 0.5)
        times.report()
        times.load_s(A, info())
    learnt = [one.worker for one in times.report().loads if one.worker is not None]
    assert learnt == [A, C]


# --- what a request that starts takes ---------------------------------------------------------------------


def test_the_time_to_a_first_token_is_a_line_of_its_own() -> None:
    times = StartupTimes()
    before = times.resume_s(A, M, 1000)
    for context in (100, 500, 900, 1300):
        times.learn_prefill(A, M, context, 0.5 + context / 100)
    assert times.prefill_s(A, M, 1000) == pytest.approx(10.5)
    assert times.resume_s(A, M, 1000) == before
    # A worker that nobody has seen takes the pool's.
    assert times.prefill_s(B, M, 1000) == pytest.approx(10.5)
    times.learn_prefill(A, M, 0, 1.0)
    times.learn_prefill(A, M, 100, 0.0)
    assert times.prefill_s(A, M, 1000) == pytest.approx(10.5)


def test_workers_learn_apart_from_each_other() -> None:
    times = StartupTimes()
    for context in (100, 500, 900, 1300):
        times.learn_prefill(A, M, context, context / 150)
        times.learn_prefill(B, M, context, context / 1500)
    for _ in range(5):
        times.learn_tokens(A, M, 120, 10.0)
        times.learn_tokens(B, M, 600, 10.0)
    assert times.prefill_s(A, M, 600) == pytest.approx(4.0)
    assert times.prefill_s(B, M, 600) == pytest.approx(0.4)
    assert (times.token_s(A, M), times.token_s(B, M)) == pytest.approx((1 / 12, 1 / 60))


def test_what_is_known_of_a_worker_or_a_model_is_where_it_begins() -> None:
    known = Constants(
        models={M: ServerConstants(token_s=Constant(0.04))},
        workers={(A, M): ServerConstants(Constant(150.0), Constant(0.5), token_s=Constant(0.08))},
    )
    times = StartupTimes(known)
    assert times.prefill_s(A, M, 150) == pytest.approx(1.5)
    assert (times.token_s(A, M), times.token_s(B, M)) == (0.08, 0.04)
    times.learn_tokens(B, M, 100, 1.0)
    assert times.token_s(A, M) == 0.08
    for _ in range(3):
        times.learn_tokens(A, M, 100, 2.0)
    assert times.token_s(A, M) == pytest.approx(0.02)
    (told,) = [one for one in times.report().resumes if one.worker == A]
    assert told.token_s == pytest.approx(0.02) and told.token_n == 3
