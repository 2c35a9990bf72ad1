"""What `godwit demo figure3` finds: medians over the runs of each policy, their ratios, the aims. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median, mode

from msgspec import Struct

from godwit.figure3.runs import Run

POLICIES = ("availability", "locality", "preemption", "live_migration")
"""In the order of the paper's figure."""


class Emulated(Struct, frozen=True):
    """What was slowed on purpose: loads out of these tiers were no faster than so many MB/s."""

    ssd_mb_per_s: float
    dram_mb_per_s: float


class Spread(Struct, frozen=True):
    """The smallest and the largest of the runs."""

    min: float
    max: float


class PolicyRow(Struct, frozen=True):
    """Medians of a policy's runs, and where and how most of them went."""

    b_ttft_s: float
    a_max_itl_s: float
    a_total_s: float
    recomputed_tokens: int
    a_servers: tuple[str, ...]
    b_servers: tuple[str, ...]
    how: str | None
    spread: dict[str, Spread]


class Aim(Struct, frozen=True):
    """A ratio that should be at most (or, `is_strict`, below) `limit`."""

    ratio: str
    value: float
    limit: float
    is_strict: bool
    is_met: bool


class Figure3Report(Struct, frozen=True):
    """All of it; `ok` says that A's answer was the same in all runs, not that the aims are met."""

    ok: bool
    models: dict[str, str]
    emulated: Emulated
    repeat: int
    a_is_identical: bool
    policies: dict[str, PolicyRow]
    ratios: dict[str, float]
    aims: tuple[Aim, ...]
    runs: tuple[Run, ...]


# (name, figure, policy of the denominator): the numerator is always live_migration's.
_RATIOS = (
    ("live_over_availability_ttft", "b_ttft_s", "availability"),
    ("live_over_locality_ttft", "b_ttft_s", "locality"),
    ("live_over_preemption_ttft", "b_ttft_s", "preemption"),
    ("live_over_preemption_itl", "a_max_itl_s", "preemption"),
    ("live_over_availability_total", "a_total_s", "availability"),
)
_AIMS = (
    ("live_over_availability_ttft", 0.6, False),
    ("live_over_locality_ttft", 1.0, True),
    ("live_over_preemption_itl", 0.2, False),
    ("live_over_availability_total", 1.1, False),
)


def make_report(runs: Sequence[Run], models: Mapping[str, str], emulated: Emulated) -> Figure3Report:
    """The report of at least one run; policies that were not run are left out, and so are their ratios."""
    by_policy = {name: [run for run in runs if run.policy == name] for name in POLICIES}
    policies = {name: _row(ones) for name, ones in by_policy.items() if ones}
    ratios = _ratios(policies)
    is_identical = len({run.a_ids for run in runs}) == 1
    return Figure3Report(
        ok=is_identical,
        models=dict(models),
        emulated=emulated,
        repeat=max(len(ones) for ones in by_policy.values()),
        a_is_identical=is_identical,
        policies=policies,
        ratios=ratios,
        aims=tuple(_aim(ratios[name], *aim) for aim in _AIMS if (name := aim[0]) in ratios),
        runs=tuple(runs),
    )


def typical(report: Figure3Report, policy: str) -> Run:
    """The run of a policy that has its median TTFT (of an even number: the lower one)."""
    runs = sorted((run for run in report.runs if run.policy == policy), key=lambda run: run.b_ttft_s)
    return runs[(len(runs) - 1) // 2]


def _row(runs: Sequence[Run]) -> PolicyRow:
    values = {
        name: [float(getattr(run, name)) for run in runs]
        for name in ("b_ttft_s", "a_max_itl_s", "a_total_s", "recomputed_tokens")
    }
    middle = {name: median(ones) for name, ones in values.items()}
    return PolicyRow(
        round(middle["b_ttft_s"], 4),
        round(middle["a_max_itl_s"], 4),
        round(middle["a_total_s"], 4),
        round(middle["recomputed_tokens"]),
        mode(run.a_servers for run in runs),
        mode(run.b_servers for run in runs),
        mode(run.how for run in runs),
        {name: Spread(min(ones), max(ones)) for name, ones in values.items()},
    )


def _ratios(policies: Mapping[str, PolicyRow]) -> dict[str, float]:
    live = policies.get("live_migration")
    if live is None:
        return {}
    return {
        name: round(getattr(live, figure) / getattr(policies[other], figure), 3)
        for name, figure, other in _RATIOS
        if other in policies
    }


def _aim(value: float, ratio: str, limit: float, is_strict: bool) -> Aim:
    return Aim(ratio, value, limit, is_strict, value < limit if is_strict else value <= limit)
