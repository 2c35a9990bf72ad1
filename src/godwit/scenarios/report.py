"""What `godwit sim` reports: rows with means over seeds, and the published figures beside them. Pure."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from godwit.scenarios.plan import Options, Row
from godwit.scenarios.schema import Published, Scenario
from godwit.sim.metrics import Interval, over_seeds, ratios

# Published ratios, and the figures that they are of.
_RATIOS = {"p99_over_live": "startup_p99_s", "ssd_reads_over_live": "ssd_reads"}


class Beside(Struct, frozen=True, kw_only=True):
    """A published figure beside ours, from least to most over the seeds and the sweep, if there was one."""

    dataset: str
    rate: float
    policy: str
    figure: str
    published: float
    low: float
    high: float
    num_settings: int

    @property
    def agrees(self) -> bool:
        """Whether the published figure is in our range."""
        return self.low <= self.published <= self.high


class ContentionRow(Struct, frozen=True, kw_only=True):
    """A policy in a case: means over seeds. P50 and P99 are of the startup latency.

    It is the time in which a request did not decode: until it started, and all pauses of moves and kills.
    `…_over_live` are ratios to live migration with the same seed; `setting` is what was varied.
    """

    dataset: str
    rate: float
    policy: str
    p50_s: float
    p99_s: float
    p99_over_live: Interval | None
    ssd_reads_over_live: Interval | None
    moves: float
    kills: float
    ssd_reads: float
    timeouts: float
    errors: float
    published: dict[str, float] | None
    setting: dict[str, Any]
    intervals: dict[str, Interval]


class FleetRow(Struct, frozen=True, kw_only=True):
    """A policy on a fleet: means over seeds, of what was asked after the warm-up.

    `planned` moves were done, `unplanned` losses hit a request. `lost_s` is the part of `wasted_s` that the
    destinations of planned moves did not spend. `closes` is how far it gets on the way from reactive to the
    oracle in unplanned losses.
    """

    policy: str
    mean_latency_s: float
    p99_latency_s: float
    unplanned: float
    planned: float
    wasted_s: float
    lost_s: float
    closes: float | None
    published: dict[str, float] | None
    setting: dict[str, Any]
    intervals: dict[str, Interval]


class Report(Struct, frozen=True, kw_only=True):
    """All of it; `rows` are the main part, and `beside` and `disagreements` are about what was published."""

    scenario: str
    about: str
    seeds: int
    rows: list[ContentionRow] | list[FleetRow]
    sweep: list[ContentionRow] | list[FleetRow]
    ablations: list[ContentionRow] | list[FleetRow]
    beside: list[Beside]
    disagreements: list[str]


def make_report(scenario: Scenario, options: Options, rows: Sequence[Row]) -> Report:
    """The report of these rows."""
    make = _fleet_rows if scenario.report == "fleet" else _contention_rows
    parts = {part: [row for row in rows if row.cell.part == part] for part in ("main", "sweep", "ablations")}
    beside = _beside(scenario, rows)
    return Report(
        scenario=options.scenario,
        about=scenario.about,
        seeds=len(options.seeds),
        rows=make(scenario, parts["main"]),
        sweep=make(scenario, parts["sweep"]),
        ablations=make(scenario, parts["ablations"]),
        beside=beside,
        disagreements=[_sentence(one, len(options.seeds)) for one in beside if not one.agrees],
    )


def _contention_rows(scenario: Scenario, rows: Sequence[Row]) -> list[ContentionRow]:
    baselines = _baselines(rows, scenario.baselines[0])
    return [_contention_row(row, baselines.get(row.cell.group)) for row in rows]


def _contention_row(row: Row, live: Row | None) -> ContentionRow:
    figures = over_seeds(row.runs)
    workload = row.cell.scenario.workload
    return ContentionRow(
        dataset=workload.source,
        rate=_rate(row),
        policy=row.cell.policy,
        p50_s=figures["startup_p50_s"].mean,
        p99_s=figures["startup_p99_s"].mean,
        p99_over_live=_over("startup_p99_s", row, live),
        ssd_reads_over_live=_over("ssd_reads", row, live),
        moves=figures["moves"].mean,
        kills=figures["kills"].mean,
        ssd_reads=figures["ssd_reads"].mean,
        timeouts=figures["timeouts"].mean,
        errors=figures["errors"].mean,
        published=_published(row),
        setting=row.cell.setting,
        intervals=figures,
    )


def _over(name: str, row: Row, live: Row | None) -> Interval | None:
    return None if live is None else Interval.of(ratios(name, row.runs, live.runs))


def _fleet_rows(scenario: Scenario, rows: Sequence[Row]) -> list[FleetRow]:
    reactive, oracle = (_baselines(rows, name) for name in scenario.baselines[:2])
    return [_fleet_row(row, reactive.get(row.cell.group), oracle.get(row.cell.group)) for row in rows]


def _fleet_row(row: Row, reactive: Row | None, oracle: Row | None) -> FleetRow:
    figures = over_seeds(row.runs)
    return FleetRow(
        policy=row.cell.policy,
        mean_latency_s=figures["latency_mean_s"].mean,
        p99_latency_s=figures["latency_p99_s"].mean,
        unplanned=figures["unplanned"].mean,
        planned=figures["moves"].mean,
        wasted_s=figures["wasted_s"].mean,
        lost_s=figures["lost_s"].mean,
        closes=None if reactive is None or oracle is None else _closes(row, reactive, oracle),
        published=_published(row),
        setting=row.cell.setting,
        intervals=figures,
    )


def _closes(row: Row, reactive: Row, oracle: Row) -> float | None:
    """The share of reactive's distance to the oracle in unplanned losses; None where there is none."""
    own, worst, best = (sum(run.unplanned for run in one.runs) for one in (row, reactive, oracle))
    return None if worst == best else (worst - own) / (worst - best)


def _baselines(rows: Sequence[Row], policy: str) -> dict[bytes, Row]:
    return {row.cell.group: row for row in rows if row.cell.policy == policy}


def _rate(row: Row) -> float:
    """What was asked for, or what came of a replay, per second."""
    workload = row.cell.scenario.workload
    if workload.rate_per_s is not None:
        return workload.rate_per_s
    return round(row.runs[0].requests / workload.counted_s, 3)


# --- what was published -----------------------------------------------------------------------------------


def _is_about(published: Published, row: Row) -> bool:
    workload = row.cell.scenario.workload
    return (
        published.policy == row.cell.policy
        and published.model == workload.model
        and published.source in (None, workload.source)
        and published.rate_per_s in (None, workload.rate_per_s)
    )


def _published(row: Row) -> dict[str, float] | None:
    found: dict[str, float] = {}
    for published in row.cell.scenario.published:
        if _is_about(published, row):
            found |= published.figures
    return found or None


def _beside(scenario: Scenario, rows: Sequence[Row]) -> list[Beside]:
    """Each published figure of the main part beside all that the main part and the sweep have of it."""
    baselines = _baselines(rows, scenario.baselines[0])
    found = []
    for row in rows:
        if row.cell.part != "main":
            continue
        workload = row.cell.scenario.workload
        same = [
            other
            for other in rows
            if other.cell.part != "ablations"
            and other.cell.policy == row.cell.policy
            and other.cell.scenario.workload.source == workload.source
            and other.cell.scenario.workload.rate_per_s == workload.rate_per_s
        ]
        for figure, published in (_published(row) or {}).items():
            ours = [value for one in same for value in _values(one, figure, baselines.get(one.cell.group))]
            if ours:
                found.append(
                    Beside(
                        dataset=workload.source,
                        rate=_rate(row),
                        policy=row.cell.policy,
                        figure=figure,
                        published=published,
                        low=min(ours),
                        high=max(ours),
                        num_settings=len({one.cell.input for one in same}),
                    )
                )
    return found


def _values(row: Row, figure: str, live: Row | None) -> list[float]:
    """One value for each seed: of a figure of `Metrics`, or of its ratio to live migration."""
    if figure in _RATIOS:
        return [] if live is None else ratios(_RATIOS[figure], row.runs, live.runs)
    return [getattr(run, figure) for run in row.runs]


def spread(beside: Beside, to: str = " to ") -> str:
    """From our least to our most figure, once where they are the same."""
    low, high = f"{beside.low:.3g}", f"{beside.high:.3g}"
    return low if low == high else f"{low}{to}{high}"


def _number(count: int, what: str) -> str:
    return f"one {what}" if count == 1 else f"{count} {what}s"


def _sentence(beside: Beside, num_seeds: int) -> str:
    return (
        f"{beside.dataset} at {beside.rate:g}/s, {beside.policy}: {beside.figure} was published as "
        f"{beside.published:g}, ours is {spread(beside)} over {_number(num_seeds, 'seed')} and "
        f"{_number(beside.num_settings, 'setting')}"
    )
