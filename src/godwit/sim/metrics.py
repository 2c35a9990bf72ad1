"""What a simulation shows, as figures: of one run, and over seeds with 95 % intervals. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from msgspec import Struct
from scipy import stats  # type: ignore[import-untyped]  # scipy ships no types

from godwit.sim.outcome import Answer, Outcome
from godwit.types import Tier

TIMEOUT = "timeout"
CONFIDENCE = 0.95
NAN = float("nan")


class Slo(Struct, frozen=True, forbid_unknown_fields=True):
    """What a request must keep to count as good: time to first token, and mean time per token after it."""

    ttft_s: float = 10.0
    tpot_s: float = 0.2


class Metrics(Struct, frozen=True, kw_only=True):
    """One run's figures; nan where there is nothing to count.

    Requests, and what happened to them, are those asked after the warm-up; so are reads, by the time of their
    end. Latencies are of whole answers, and of time-outs, which count as the time-out itself: else a policy
    would look better the more it lets down. `wasted_s` is of device time, `lost_s` the part of it that the
    destinations of planned moves did not spend. Pauses, `moved_bytes` (over links) and events are of the
    whole run.
    """

    requests: float
    errors: float
    timeouts: float
    startup_mean_s: float
    startup_p50_s: float
    startup_p99_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    tpot_p99_s: float
    latency_mean_s: float
    latency_p50_s: float
    latency_p99_s: float
    goodput_per_s: float
    moves: float
    early_moves: float
    kills: float
    unplanned: float
    wasted_s: float
    lost_s: float
    pause_p50_s: float
    pause_p99_s: float
    dram_reads: float
    ssd_reads: float
    remote_reads: float
    moved_bytes: float
    events: float


class Interval(Struct, frozen=True):
    """A mean over seeds and its 95 % interval, nan where there is one seed only."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """By Student's t distribution; values that are nan are left out."""
        known = np.array([value for value in values if not np.isnan(value)])
        if len(known) == 0:
            return cls(NAN, NAN, NAN)
        mean = float(known.mean())
        if len(known) == 1:
            return cls(mean, NAN, NAN)
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(known) - 1) * stats.sem(known))
        return cls(mean, mean - half, mean + half)


def measure(outcome: Outcome, slo: Slo, warm_up_s: float, span_s: float, timeout_s: float) -> Metrics:
    """The figures of what was asked from `warm_up_s` on, for `span_s` seconds."""
    answers = [answer for answer in outcome.answers if answer.ask.at_s >= warm_up_s]
    whole = [answer for answer in answers if answer.problem is None]
    num_late = sum(answer.problem == TIMEOUT for answer in answers)
    late_s = [timeout_s] * num_late
    startup_s = [answer.startup_s for answer in whole if answer.startup_s is not None] + late_s
    latency_s = [answer.latency_s for answer in whole if answer.latency_s is not None] + late_s
    ttft_s = [answer.ttft_s for answer in whole if answer.ttft_s is not None] + late_s
    tpot_s = [seconds for answer in whole if (seconds := tpot(answer)) is not None]
    pauses_s = [
        move.pause_s for move in outcome.moves if move.pause_s is not None and move.method != "failover"
    ]
    reads = Counter(load.record.tier for load in outcome.loads if load.at_s >= warm_up_s)
    return Metrics(
        requests=len(answers),
        errors=len(answers) - len(whole) - num_late,
        timeouts=num_late,
        startup_mean_s=_mean(startup_s),
        startup_p50_s=_percentile(startup_s, 50),
        startup_p99_s=_percentile(startup_s, 99),
        ttft_p50_s=_percentile(ttft_s, 50),
        ttft_p99_s=_percentile(ttft_s, 99),
        tpot_mean_s=_mean(tpot_s),
        tpot_p99_s=_percentile(tpot_s, 99),
        latency_mean_s=_mean(latency_s),
        latency_p50_s=_percentile(latency_s, 50),
        latency_p99_s=_percentile(latency_s, 99),
        goodput_per_s=sum(_is_good(answer, slo) for answer in whole) / span_s,
        moves=sum(answer.num_moves for answer in answers),
        early_moves=sum(answer.num_early for answer in answers),
        kills=sum(answer.num_kills for answer in answers),
        unplanned=sum(answer.num_losses for answer in answers),
        wasted_s=sum(answer.wasted_s for answer in answers),
        lost_s=sum(max(0.0, answer.wasted_s - answer.planned_s) for answer in answers),
        pause_p50_s=_percentile(pauses_s, 50),
        pause_p99_s=_percentile(pauses_s, 99),
        dram_reads=reads[Tier.DRAM],
        ssd_reads=reads[Tier.SSD],
        remote_reads=reads[Tier.REMOTE],
        moved_bytes=outcome.link_bytes,
        events=outcome.num_events,
    )


def tpot(answer: Answer) -> float | None:
    """Seconds per token after the first, pauses included; None where there is none."""
    if answer.first_s is None or answer.end_s is None or answer.num_tokens < 2:
        return None
    return (answer.end_s - answer.first_s) / (answer.num_tokens - 1)


def over_seeds(runs: Sequence[Metrics]) -> dict[str, Interval]:
    """Each figure's mean over the runs with its interval."""
    return {name: Interval.of(getattr(run, name) for run in runs) for name in Metrics.__struct_fields__}


def ratios(name: str, runs: Sequence[Metrics], others: Sequence[Metrics]) -> list[float]:
    """How many times the others' figure the runs' is, for each pair with the same seed, in their order.

    Pairs whose other figure is 0 have no ratio.
    """
    pairs = [(getattr(run, name), getattr(other, name)) for run, other in zip(runs, others, strict=True)]
    return [one / other for one, other in pairs if other]


def _is_good(answer: Answer, slo: Slo) -> bool:
    ttft_s, tpot_s = answer.ttft_s, tpot(answer)
    return ttft_s is not None and ttft_s <= slo.ttft_s and (tpot_s is None or tpot_s <= slo.tpot_s)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else NAN


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else NAN
