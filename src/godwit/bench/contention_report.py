"""What `godwit bench contention` reports of a policy, from what clients saw and what the head did. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from statistics import median

import numpy as np
from msgspec import Struct

from godwit.bench.contention_scene import Emulated

# A gap counts as a pause from so many median gaps of its request on.
PAUSE_GAPS = 4.0
MAX_PROBLEMS = 10


class Answer(Struct, frozen=True):
    """One request as its client saw it: seconds from its arrival to each token; no `problem`: it is whole."""

    request: str
    times_s: tuple[float, ...]
    problem: str | None = None

    @property
    def ttft_s(self) -> float:
        """From arrival to the first token; ValueError where there is none."""
        if not self.times_s:
            raise ValueError(f"{self.request} has no token")
        return self.times_s[0]

    @property
    def pauses_s(self) -> float:
        """What its gaps above `PAUSE_GAPS` median gaps have beyond one median gap, together."""
        gaps_s = [later - earlier for earlier, later in pairwise(sorted(set(self.times_s)))]
        if not gaps_s:
            return 0.0
        usual_s = median(gaps_s)
        return sum(gap_s - usual_s for gap_s in gaps_s if gap_s > PAUSE_GAPS * usual_s)


class Event(Struct, frozen=True):
    """One line of the head's log, as far as it is of interest here."""

    kind: str
    reason: str = ""
    request: str | None = None


class Errors(Struct, frozen=True):
    """Absolute errors in seconds of `n` predictions."""

    n: int
    p50_s: float
    p95_s: float


class PolicyRow(Struct, frozen=True):
    """One policy. Seconds are of whole answers; `startup_…` is time to the first token plus pauses.

    Pauses are those of requests that moved or were killed; `…_with_stalls_…` has those of all requests, since
    others pause too, while their instance prefills. `reloads` are loads by the tier
    that they came from. `drain_s` is from the last arrival to the last token. `failures` are failed moves by
    their reason, and `estimators` the errors of this run's own predictions.
    """

    requests: int
    errors: int
    startup_p50_s: float
    startup_p99_s: float
    startup_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    startup_with_stalls_p50_s: float
    startup_with_stalls_p99_s: float
    paused_requests: int
    moves: int
    failed_moves: int
    kills: int
    reloads: dict[str, int]
    drain_s: float
    estimators: dict[str, Errors]
    problems: tuple[str, ...] = ()
    failures: dict[str, int] = {}


class Arrivals(Struct, frozen=True):
    """When and how much was asked for; the same under every policy."""

    rate_per_s: float
    cv: float
    seed: int
    minutes: float
    n: int
    output_tokens: int


class ContentionReport(Struct, frozen=True):
    """All policies; `estimators` are those of the policy that predicted most of each kind."""

    policies: dict[str, PolicyRow]
    estimators: dict[str, Errors]
    emulated: Emulated
    arrivals: Arrivals

    @property
    def num_errors(self) -> int:
        """Requests that were not answered in full, under all policies."""
        return sum(row.errors for row in self.policies.values())


def make_row(
    answers: Sequence[Answer], log: Sequence[Event], estimators: Mapping[str, Errors], drain_s: float
) -> PolicyRow:
    """One policy's figures."""
    whole = [one for one in answers if one.problem is None]
    problems = [f"{one.request}: {one.problem}" for one in answers if one.problem is not None]
    moved = disturbed(log)
    kinds = Counter(event.kind for event in log)
    ends = [event for event in log if event.kind == "MoveEnded"]
    failures = Counter(_why(event) for event in ends if not _is_done(event))
    ttft_s = [one.ttft_s for one in whole]
    startup_s = [one.ttft_s + (one.pauses_s if one.request in moved else 0.0) for one in whole]
    with_stalls_s = [one.ttft_s + one.pauses_s for one in whole]
    p50_s, p99_s = _percentiles(startup_s)
    return PolicyRow(
        requests=len(answers),
        errors=len(problems),
        startup_p50_s=p50_s,
        startup_p99_s=p99_s,
        startup_mean_s=round(float(np.mean(startup_s)), 3) if startup_s else float("nan"),
        ttft_p50_s=_percentiles(ttft_s)[0],
        ttft_p99_s=_percentiles(ttft_s)[1],
        startup_with_stalls_p50_s=_percentiles(with_stalls_s)[0],
        startup_with_stalls_p99_s=_percentiles(with_stalls_s)[1],
        paused_requests=sum(one.pauses_s > 0 for one in whole if one.request in moved),
        moves=len(ends) - failures.total(),
        failed_moves=failures.total(),
        kills=kinds["Preempt"],
        reloads=reloads(log),
        drain_s=round(drain_s, 1),
        estimators=dict(estimators),
        problems=tuple(problems[:MAX_PROBLEMS]),
        failures=dict(failures),
    )


def disturbed(log: Sequence[Event]) -> Collection[str]:
    """Requests that changed their worker after they had begun, or were taken off it."""
    kinds = ("MoveEnded", "FailoverEnded", "Preempt")
    return {event.request for event in log if event.kind in kinds and event.request is not None}


def reloads(log: Sequence[Event]) -> dict[str, int]:
    """Loads by the tier that they came from."""
    tiers = Counter(event.reason.rpartition(" ")[2] for event in log if event.kind == "Loaded")
    return {"dram": 0, "ssd": 0, **tiers}


def best_known(rows: Mapping[str, PolicyRow]) -> dict[str, Errors]:
    """Of each kind the errors of the policy that has most of them."""
    found: dict[str, Errors] = {}
    for row in rows.values():
        for kind, errors in row.estimators.items():
            if kind not in found or errors.n > found[kind].n:
                found[kind] = errors
    return found


def _is_done(event: Event) -> bool:
    """The log says "method outcome: reason"."""
    return event.reason.partition(":")[0].endswith(" done")


def _why(event: Event) -> str:
    return event.reason.partition(": ")[2]


def _percentiles(values_s: Sequence[float]) -> tuple[float, float]:
    if not values_s:
        return float("nan"), float("nan")
    p50_s, p99_s = np.percentile(values_s, (50, 99)).round(3).tolist()
    return p50_s, p99_s
