"""A report as a picture: a fleet's planned against its unplanned moves, or P99 by rate under contention."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from godwit.errors import ConfigError
from godwit.scenarios.report import ContentionRow, FleetRow, Report
from godwit.sim.metrics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind people can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def save_plot(report: Report, path: Path) -> None:
    """Draw the report into `path`."""
    try:
        draw(report).savefig(path)
    except OSError as error:
        raise ConfigError(f"--plot: {path} cannot be written: {error.strerror}") from error


def draw(report: Report) -> "Figure":
    """The picture of a report."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), dpi=150, layout="constrained")
    fleet = [row for row in (*report.rows, *report.ablations) if isinstance(row, FleetRow)]
    contention = [row for row in report.rows if isinstance(row, ContentionRow)]
    if fleet:
        _draw_moves(figure.subplots(), fleet)
    else:
        datasets = sorted({row.dataset for row in contention})
        panels = figure.subplots(1, len(datasets), sharey=True, squeeze=False)[0]
        for panel, dataset in zip(panels, datasets, strict=True):
            _draw_p99(panel, [row for row in contention if row.dataset == dataset])
            panel.set_title(dataset)
        panels[0].set_ylabel("startup latency, P99 (s)")
        panels[0].legend(frameon=False)
    figure.suptitle(
        f"{report.about}; {'one seed' if report.seeds == 1 else f'{report.seeds} seeds'}", x=0.02, ha="left"
    )
    return figure


def _draw_moves(panel: "Axes", rows: Sequence[FleetRow]) -> None:
    """Each policy a point; those of ablations are small. Whoever is left of and below another is better."""
    colours = _colours([row.policy for row in rows])
    for row in rows:
        planned, unplanned = row.intervals["moves"], row.intervals["unplanned"]
        is_main = not row.setting
        panel.errorbar(
            planned.mean,
            unplanned.mean,
            xerr=_sides(planned) if is_main else None,
            yerr=_sides(unplanned) if is_main else None,
            marker="o",
            markersize=8 if is_main else 4,
            alpha=1.0 if is_main else 0.5,
            color=colours[row.policy],
            linestyle="none",
            label=row.policy if is_main else None,
        )
    panel.set_xlabel("planned moves")
    panel.set_ylabel("unplanned losses")
    panel.set_ylim(bottom=0)
    panel.grid(visible=True, color="0.9")
    panel.legend(frameon=False)


def _draw_p99(panel: "Axes", rows: Sequence[ContentionRow]) -> None:
    for policy, colour in _colours([row.policy for row in rows]).items():
        own = sorted((row for row in rows if row.policy == policy), key=lambda row: row.rate)
        p99_s = [row.intervals["startup_p99_s"] for row in own]
        panel.errorbar(
            [row.rate for row in own],
            [interval.mean for interval in p99_s],
            yerr=[_half(interval) for interval in p99_s],
            marker="o",
            color=colour,
            label=policy,
        )
    panel.set_xlabel("requests per second")
    panel.set_ylim(bottom=0)
    panel.grid(visible=True, color="0.9")


def _colours(policies: Sequence[str]) -> dict[str, str]:
    return {policy: _COLOURS[number % len(_COLOURS)] for number, policy in enumerate(dict.fromkeys(policies))}


def _half(interval: Interval) -> float:
    return interval.high - interval.mean


def _sides(interval: Interval) -> list[list[float]]:
    """What the interval of a count has below and above its mean: no count is negative."""
    half = _half(interval)
    return [[min(half, interval.mean)], [half]]
