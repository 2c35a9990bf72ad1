"""The timelines as a picture: a panel for each policy, all on one time axis."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from godwit.errors import ConfigError
from godwit.figure3.report import Figure3Report, typical
from godwit.figure3.scene import SERVER_1, SERVER_2
from godwit.figure3.show import span_of
from godwit.figure3.timeline import Bar, Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind people can tell apart; waiting is drawn lower, and hatched.
_COLOURS: Mapping[Kind, str] = {
    Kind.LOAD: "#E69F00",
    Kind.DECODE: "#009E73",
    Kind.RESUME: "#56B4E9",
    Kind.WAIT: "#CC79A7",
    Kind.STALL: "#D55E00",
}
_ROWS: Mapping[str, float] = {SERVER_1: 1.0, SERVER_2: 0.0}
_DEVICE, _OTHERS = (0.05, 0.5), (-0.3, 0.25)
_MIN_LABEL_SHARE = 0.03


def check_plot(path: Path) -> None:
    """ConfigError where a picture could not be drawn into `path`; call it before what takes minutes."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib; install it: pip install 'godwit[plot]'") from error
    known = Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise ConfigError(f"--plot: {path} must end with one of: {', '.join(f'.{one}' for one in known)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot: there is no folder {path.absolute().parent}")


def save_plot(report: Figure3Report, path: Path) -> None:
    """Draw the run with the median TTFT of each policy into `path`."""
    try:
        draw_figure(report).savefig(path)
    except OSError as error:
        raise ConfigError(f"--plot: {path} cannot be written: {error.strerror}") from error


def draw_figure(report: Figure3Report) -> "Figure":
    """One panel for each policy."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    start_s, end_s = span_of(report)
    figure = Figure(figsize=(9, 1.0 + 1.45 * len(report.policies)), dpi=150, layout="constrained")
    panels = figure.subplots(len(report.policies), 1, sharex=True, squeeze=False)[:, 0]
    for panel, (policy, row) in zip(panels, report.policies.items(), strict=True):
        for bar in typical(report, policy).bars:
            _draw_bar(panel, bar, end_s - start_s)
        panel.axvline(0.0, color="0.2", linewidth=1, linestyle=(0, (2, 2)))
        panel.set_title(
            f"{policy}: B's first token after {row.b_ttft_s:.1f} s, A's longest gap {row.a_max_itl_s:.2f} s, "
            f"{row.recomputed_tokens} tokens recomputed",
            loc="left",
            fontsize="small",
        )
        panel.set_yticks([row + 0.3 for row in _ROWS.values()], ["server 1", "server 2"])
        panel.set_ylim(-0.4, 1.65)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_xlim(start_s, end_s)
    panels[-1].set_xlabel("seconds since B was asked for")
    figure.suptitle(f"A: {report.models['A']}, B: {report.models['B']}", x=0.02, ha="left")
    handles = [Patch(facecolor=colour, label=kind.value) for kind, colour in _COLOURS.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)
    emulated = report.emulated
    note = f"emulated: SSD {emulated.ssd_mb_per_s:g} MB/s, DRAM {emulated.dram_mb_per_s:g} MB/s"
    if report.repeat > 1:
        note += f"; figures are medians of {report.repeat} runs, bars those of the run with the median TTFT"
    figure.supxlabel(note, x=0.02, ha="left", fontsize="x-small", color="0.35")
    return figure


def _draw_bar(panel: "Axes", bar: Bar, span_s: float) -> None:
    below, height = _DEVICE if bar.kind.is_of_device else _OTHERS
    at = _ROWS[bar.server] + below
    width_s = bar.end_s - bar.start_s
    panel.broken_barh(
        [(bar.start_s, width_s)],
        (at, height),
        facecolors=_COLOURS[bar.kind],
        edgecolors="white",
        linewidth=0.5,
    )
    if width_s >= _MIN_LABEL_SHARE * span_s:
        middle_s = bar.start_s + width_s / 2
        panel.text(middle_s, at + height / 2, bar.label, ha="center", va="center", fontsize="x-small")
