"""What people see of `godwit sim`."""

from collections.abc import Iterable, Sequence
from math import isnan
from typing import Literal

from rich.box import SIMPLE
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from godwit.scenarios.report import Beside, ContentionRow, FleetRow, Report, spread
from godwit.sim.metrics import Interval

Rows = Sequence[ContentionRow | FleetRow]
_WIDEST = 1000
_ROOMY = 100
_TEXTS = ("policy", "dataset", "figure", "setting")


def show_report(console: Console, report: Report) -> None:
    """Tables: of the main part, the sweep and the ablations; then what was published."""
    seeds = "one seed" if report.seeds == 1 else f"{report.seeds} seeds: mean ± half of the 95 % interval"
    console.print(f"{report.about}; {seeds}", soft_wrap=True, markup=False, highlight=False)
    if report.rows and isinstance(report.rows[0], ContentionRow):
        note = "P50 and P99 of startup latency: all time without decoding. DRAM, SSD: reads. Late: timed out"
        console.print(note, soft_wrap=True, markup=False, highlight=False)
    for case, rows in _by_case(report.rows).items():
        _show(console, case, [_cells(row) for row in rows])
    for case, rows in _by_case(report.sweep).items():
        _show(console, f"{case}: means from least to most over the sweep", _ranges(rows))
    for case, rows in _by_case(report.ablations).items():
        _show(console, f"{case}: ablations", [{**_setting(row), **_cells(row)} for row in rows])
    _show(console, "Published, and ours from least to most over seeds and sweep", map(_beside, report.beside))
    for sentence in report.disagreements:
        console.print(f"disagrees: {sentence}", soft_wrap=True, markup=False, highlight=False)


def _show(console: Console, title: str, rows: Iterable[dict[str, str]]) -> None:
    """A table with these rows, which have the same keys; nothing where there is none."""
    lines = list(rows)
    if not lines:
        return
    table = Table(
        title=title,
        box=SIMPLE,
        padding=(0, 1 if console.width >= _ROOMY else 0),
        title_justify="left",
        collapse_padding=True,
    )
    for name in lines[0]:
        # A line breaks between words, never within a figure.
        words = [word for text in (name, *(line[name] for line in lines)) for word in text.split()]
        justify: Literal["left", "right"] = "left" if name in _TEXTS else "right"
        table.add_column(name, justify=justify, no_wrap=name == "policy", min_width=max(map(len, words)))
    for line in lines:
        table.add_row(*line.values())
    needed = Measurement.get(console, console.options.update(width=_WIDEST), table).minimum
    console.print(table, width=max(console.width, needed), crop=False)


def _cells(row: ContentionRow | FleetRow) -> dict[str, str]:
    figures = {name: _spread(interval) for name, interval in _figures(row).items()}
    closes = {"closes": _percent(row.closes)} if isinstance(row, FleetRow) else {}
    return {"policy": row.policy, **figures, **closes}


def _by_case(rows: Rows) -> dict[str, list[ContentionRow | FleetRow]]:
    """The rows by what they have in common beside policy and setting, as a title."""
    cases: dict[str, list[ContentionRow | FleetRow]] = {}
    for row in rows:
        requests = f"{row.intervals['requests'].mean:,.0f} requests"
        case = f"{row.dataset} at {row.rate:g}/s, {requests}" if isinstance(row, ContentionRow) else requests
        cases.setdefault(case, []).append(row)
    return cases


def _figures(row: ContentionRow | FleetRow) -> dict[str, Interval | None]:
    """What a table shows, by its heading."""
    all_of = row.intervals
    if isinstance(row, FleetRow):
        names = {
            "latency s": "latency_mean_s",
            "P99 s": "latency_p99_s",
            "unplanned": "unplanned",
            "planned": "moves",
            "wasted s": "wasted_s",
            "lost s": "lost_s",
            "errors": "errors",
        }
        return {heading: all_of[name] for heading, name in names.items()}
    return {
        "P50 s": all_of["startup_p50_s"],
        "P99 s": all_of["startup_p99_s"],
        "P99 / live": row.p99_over_live,
        "moves": all_of["moves"],
        "kills": all_of["kills"],
        "DRAM": all_of["dram_reads"],
        "SSD": all_of["ssd_reads"],
        "late": all_of["timeouts"],
        "errors": all_of["errors"],
    }


def _ranges(rows: Rows) -> list[dict[str, str]]:
    """A line for each policy: every figure from its least to its most mean over the settings."""
    policies: dict[str, list[dict[str, Interval | None]]] = {}
    for row in rows:
        policies.setdefault(row.policy, []).append(_figures(row))
    return [
        {"policy": policy, **{name: _range([one[name] for one in found]) for name in found[0]}}
        for policy, found in policies.items()
    ]


def _range(intervals: Sequence[Interval | None]) -> str:
    means = [one.mean for one in intervals if one is not None and not isnan(one.mean)]
    if not means:
        return "–"
    low, high = f"{min(means):.3g}", f"{max(means):.3g}"
    return low if low == high else f"{low} – {high}"


def _setting(row: ContentionRow | FleetRow) -> dict[str, str]:
    """What was varied, with the last part of its key."""
    words = (f"{key.rpartition('.')[2]} {value}" for key, value in row.setting.items())
    return {"setting": ", ".join(words)}


def _beside(row: Beside) -> dict[str, str]:
    return {
        "dataset": row.dataset,
        "rate/s": f"{row.rate:g}",
        "policy": row.policy,
        "figure": row.figure,
        "published": f"{row.published:g}",
        "ours": spread(row, " – "),
    }


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _spread(interval: Interval | None) -> str:
    if interval is None or isnan(interval.mean):
        return "–"
    if isnan(interval.high) or interval.high == interval.mean:
        return f"{interval.mean:.4g}"
    return f"{interval.mean:.4g} ±{float(f'{interval.high - interval.mean:.2g}'):g}"
