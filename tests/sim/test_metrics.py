"""Figures of a run, and their intervals over seeds."""

from math import isnan, nan, sqrt

import pytest
from msgspec.structs import replace

from godwit.sim.metrics import Interval, Metrics, Slo, measure, over_seeds, ratios
from godwit.sim.outcome import Answer, Load, Outcome
from godwit.sim.spec import Ask
from godwit.types import LoadRecord, ModelName, Tier, WorkerId

MODEL = ModelName("m")


def _answer(at_s: float, first_s: float, end_s: float, num_tokens: int = 11) -> Answer:
    ask = Ask(at_s, MODEL, 100, num_tokens)
    return Answer(ask, at_s + first_s, at_s + end_s, num_tokens, decode_s=1.0)


def _load(at_s: float, tier: Tier) -> Load:
    return Load(at_s, WorkerId("w"), LoadRecord(tier, 10, 0.0, 1.0))


def _outcome(*answers: Answer, loads: tuple[Load, ...] = ()) -> Outcome:
    return Outcome(answers, (), loads, 77, 5, 100.0)


def _measure(outcome: Outcome, warm_up_s: float = 0.0) -> Metrics:
    return measure(outcome, Slo(ttft_s=1.0, tpot_s=0.2), warm_up_s, 10.0, 300.0)


def test_times_of_whole_answers() -> None:
    figures = _measure(_outcome(_answer(0, 0.5, 1.5), _answer(1, 2.0, 4.0)))
    assert figures.ttft_p50_s == pytest.approx(1.25)
    assert figures.latency_mean_s == pytest.approx(2.75)
    assert figures.startup_mean_s == pytest.approx((0.5 + 3.0) / 2)
    assert figures.tpot_mean_s == pytest.approx((0.1 + 0.2) / 2)
    # The second one came too late to be good.
    assert figures.goodput_per_s == pytest.approx(1 / 10)
    assert (figures.requests, figures.errors, figures.timeouts) == (2, 0, 0)
    assert (figures.moved_bytes, figures.events) == (77, 5)


def test_a_request_that_timed_out_took_all_that_time() -> None:
    late = replace(_answer(0, 1, 1), end_s=None, problem="timeout")
    figures = _measure(_outcome(_answer(0, 0.5, 1.5), late))
    assert (figures.timeouts, figures.errors) == (1, 0)
    assert figures.latency_p99_s > 295
    assert figures.startup_p50_s == pytest.approx((0.5 + 300) / 2)


def test_other_problems_are_errors_without_a_time() -> None:
    lost = replace(_answer(0, 1, 1), end_s=None, problem="unfinished")
    figures = _measure(_outcome(_answer(0, 0.5, 1.5), lost))
    assert (figures.timeouts, figures.errors) == (0, 1)
    assert figures.latency_p99_s == pytest.approx(1.5)


def test_only_what_was_asked_after_the_warm_up_counts() -> None:
    busy = replace(_answer(3, 1, 2), num_moves=3, num_early=2, num_losses=1, num_kills=4, wasted_s=2.5)
    figures = _measure(_outcome(busy, replace(busy, ask=replace(busy.ask, at_s=6.0))), warm_up_s=5.0)
    assert (figures.requests, figures.moves, figures.early_moves) == (1, 3, 2)
    assert (figures.unplanned, figures.kills, figures.wasted_s) == (1, 4, 2.5)


def test_reads_by_tier() -> None:
    loads = (_load(1, Tier.SSD), _load(6, Tier.SSD), _load(7, Tier.DRAM), _load(8, Tier.DEVICE))
    figures = _measure(_outcome(_answer(0, 1, 2), loads=loads), warm_up_s=5.0)
    assert (figures.ssd_reads, figures.dram_reads, figures.remote_reads) == (1, 1, 0)


def test_nothing_to_count() -> None:
    figures = _measure(_outcome())
    assert figures.requests == 0
    assert isnan(figures.latency_p99_s)


def test_an_interval_by_hand() -> None:
    # Mean 3, standard deviation √2.5, and 2.776445 is Student's t at 97.5 % with 4 degrees of freedom.
    interval = Interval.of([1, 2, 3, 4, 5])
    half = 2.776445 * sqrt(2.5) / sqrt(5)
    assert interval.mean == 3
    assert (interval.low, interval.high) == pytest.approx((3 - half, 3 + half), rel=1e-6)


def test_intervals_of_little() -> None:
    assert Interval.of([2, nan]).mean == 2
    assert isnan(Interval.of([2]).low)
    assert isnan(Interval.of([]).mean)


def test_figures_over_seeds_and_ratios_of_pairs() -> None:
    runs = [_measure(_outcome(_answer(0, 0.5, end_s))) for end_s in (2.0, 4.0)]
    others = [_measure(_outcome(_answer(0, 0.5, end_s))) for end_s in (1.0, 8.0)]
    assert over_seeds(runs)["latency_mean_s"].mean == pytest.approx(3.0)
    assert ratios("latency_mean_s", runs, others) == pytest.approx([2.0, 0.5])
    assert ratios("latency_mean_s", runs, [replace(others[0], latency_mean_s=0.0), others[1]]) == [0.5]
