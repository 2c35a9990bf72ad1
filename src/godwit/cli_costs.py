"""`godwit crossover`: from which context length on a move should ship the KV instead of recomputing it."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from godwit.costs.constants import Constant
from godwit.costs.crossover import (
    LINKS,
    Crossover,
    Method,
    MigrationCost,
    Server,
    TransferWins,
    crossover_table,
)
from godwit.costs.known import ASSUMED_BANDWIDTH_BYTES_PER_S, Constants
from godwit.costs.kv import KvSize
from godwit.costs.shipping import move_cost
from godwit.errors import ConfigError
from godwit.profile import Profile, read_profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ASSUMED_PREFILL_TPS = (3000.0, 250.0)
MEASURED_LINK = "measured"

# Okabe and Ito's colours, which colour-blind people can tell apart, and dashes and widths for print in grey.
# The split is drawn first and wide, since it coincides with one of the others over long stretches.
_STYLES: Mapping[Method, tuple[str, dict[str, Any]]] = {
    Method.SPLIT: ("split: both at once", {"color": "#F0E442", "linewidth": 6}),
    Method.KV: ("transfer: ship all KV", {"color": "#0072B2", "linewidth": 2}),
    Method.TOKENS: ("recompute: ship tokens", {"color": "#D55E00", "linewidth": 2, "linestyle": "--"}),
}
_CONTEXTS = tuple(sorted({round(2 ** (i / 12)) for i in range(4 * 12, 17 * 12 + 1)}))
_CONTEXT_TICKS = (16, 128, 1024, 8192, 65_536)


class Case(Struct, frozen=True):
    """What the table is about: a link for each column, a prefill rate for each row."""

    transfer_overhead_s: Constant
    recompute_overhead_s: Constant
    kv_bytes_per_token: Constant
    kv: KvSize
    prefills_tps: tuple[Constant, ...]
    links: Mapping[str, Constant]

    @property
    def cost(self) -> MigrationCost:
        """The overheads as the cost model takes them."""
        return move_cost(self.transfer_overhead_s.value, self.recompute_overhead_s.value)

    def destination(self, prefill_tps: float) -> Server:
        """A destination whose own end of the link is never the slower one."""
        return Server(prefill_tps, math.inf, self.kv)

    def row(self, prefill_tps: float) -> dict[str, Crossover]:
        """The crossover for each link."""
        links = {name: link.value for name, link in self.links.items()}
        return crossover_table(self.destination(prefill_tps), self.kv, self.cost, links)


def add_commands(app: typer.Typer) -> None:
    """Add `crossover` to the command line."""
    app.command()(crossover)


def crossover(
    profile: Annotated[Path | None, typer.Option(help="Measured constants; without, assumed ones.")] = None,
    model: Annotated[str | None, typer.Option(help="Which of the profile's models.")] = None,
    pair: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE,DESTINATION", help="Two of the profile's workers: with their constants."
        ),
    ] = None,
    prefill: Annotated[
        str | None, typer.Option(metavar="TOK/S,…", help="The destination's prefill rates.")
    ] = None,
    kv_bytes: Annotated[float | None, typer.Option(help="KV bytes per token.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the costs over the context length into this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Show from which context length on shipping the KV is cheaper than recomputing it."""
    known = Profile() if profile is None else read_profile(profile)
    ends = None if pair is None else _pair(known, pair)
    case = _case(known.constants, ends, _model(known, model, ends), prefill, kv_bytes)
    if plot is not None:
        _save(_draw(case), plot)
        Console(stderr=True).print(f"drawn into {escape(str(plot))}", soft_wrap=True, highlight=False)
    if as_json:
        typer.echo(msgspec.json.encode(_report(case)))
    else:
        _show(Console(), case)


def _pair(profile: Profile, text: str) -> tuple[str, str]:
    known = {f"{one.source},{one.destination}": (one.source, one.destination) for one in profile.pairs}
    if text not in known:
        raise ConfigError(
            f"--pair: {text!r} is not in the profile; pairs there: {' '.join(sorted(known)) or 'none'}"
        )
    return known[text]


def _model(profile: Profile, name: str | None, ends: tuple[str, str] | None) -> str | None:
    """The one that is asked for, or the only one, of the cluster or the destination."""
    models = sorted({*profile.models, *(profile.workers.get(ends[1], {}) if ends else {})})
    known = ", ".join(models) or "none"
    if name is not None:
        if name not in models:
            raise ConfigError(f"--model: {name!r} is not in the profile; models there: {known}")
        return name
    if len(models) > 1:
        raise ConfigError(f"--model: the profile has several models, name one of them: {known}")
    return models[0] if models else None


def _case(
    known: Constants,
    ends: tuple[str, str] | None,
    model: str | None,
    prefill: str | None,
    kv_bytes: float | None,
) -> Case:
    way = known.pair if ends is None else known.of_pair(*ends)
    if model is None:
        server = known.server
    else:
        server = known.of_model(model) if ends is None else known.of_worker(ends[1], model)
    if prefill is not None:
        prefills = tuple(Constant(rate) for rate in _rates(prefill))
    elif model is not None:
        prefills = (server.prefill_tps,)
    else:
        prefills = tuple(Constant(rate) for rate in ASSUMED_PREFILL_TPS)
    kv_constant, kv = server.kv_bytes_per_token, server.kv
    if kv_bytes is not None:
        if not 0 <= kv_bytes < math.inf:
            raise ConfigError(f"--kv-bytes: a number of at least 0, not {kv_bytes:g}")
        kv_constant, kv = Constant(kv_bytes), KvSize.linear(kv_bytes)
    links = {name: Constant(bandwidth) for name, bandwidth in LINKS.items()}
    if way.bandwidth_bytes_per_s is not ASSUMED_BANDWIDTH_BYTES_PER_S:
        links[MEASURED_LINK] = way.bandwidth_bytes_per_s
    return Case(way.transfer_overhead_s, server.recompute_overhead_s, kv_constant, kv, prefills, links)


def _rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--prefill: numbers with commas between them, not {text!r}") from error
    if not all(0 < rate < math.inf for rate in rates):
        raise ConfigError(f"--prefill: every rate must be above 0 tokens/s, not {text!r}")
    return rates


def _report(case: Case) -> dict[str, Any]:
    return {
        "rows": [
            {"prefill_tps": _plain(prefill.value)}
            | {name: _answer(answer) for name, answer in case.row(prefill.value).items()}
            for prefill in case.prefills_tps
        ],
        "provenance": {
            "transfer_overhead_s": _origin(case.transfer_overhead_s),
            "recompute_overhead_s": _origin(case.recompute_overhead_s),
            "kv_bytes_per_token": _origin(case.kv_bytes_per_token),
            "prefill_tps": [_origin(prefill) for prefill in case.prefills_tps],
            "bandwidth_bytes_per_s": {name: _origin(link) for name, link in case.links.items()},
        },
    }


def _answer(answer: Crossover) -> int | list[tuple[int, int | None]] | None:
    """c* where transfer wins above it (0: always, null: never), else the ranges in which it wins."""
    match answer.wins:
        case TransferWins.NEVER:
            return None
        case TransferWins.ALWAYS | TransferWins.ABOVE:
            return round(answer.tokens)
    return [(round(start), None if end == math.inf else round(end)) for start, end in answer.ranges]


def _origin(constant: Constant) -> dict[str, float | str]:
    return {"value": _plain(constant.value), "provenance": constant.provenance}


def _plain(value: float) -> float:
    return int(value) if value.is_integer() else value


def _show(console: Console, case: Case) -> None:
    table = Table(title="Ship the KV where the context is", title_justify="left", show_edge=False)
    table.add_column("prefill", justify="right")
    for name, link in case.links.items():
        table.add_column(_link_label(name, link.value), justify="right")
    for prefill in case.prefills_tps:
        answers = case.row(prefill.value).values()
        table.add_row(f"{prefill.value:,.6g} tok/s", *(_words(answer) for answer in answers))
    console.print(table)
    console.print()
    for line in _constants(case):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _constants(case: Case) -> list[str]:
    """A line for each constant: its value and where it comes from."""
    is_linear = len(case.kv.points) == 2
    kv = f"KV per token {case.kv_bytes_per_token.value:,.6g} bytes{'' if is_linear else ', by range'}"
    constants = [
        (f"transfer overhead {case.transfer_overhead_s.value:.4g} s", case.transfer_overhead_s),
        (f"recompute overhead {case.recompute_overhead_s.value:.4g} s", case.recompute_overhead_s),
        (kv, case.kv_bytes_per_token),
        *((f"prefill {prefill.value:,.6g} tok/s", prefill) for prefill in case.prefills_tps),
        *(
            (f"{_link_label(name, link.value)} ({link.value:.4g} bytes/s)", link)
            for name, link in case.links.items()
        ),
    ]
    return [f"{what}: {constant.provenance}" for what, constant in constants]


def _words(answer: Crossover) -> str:
    match answer.wins:
        case TransferWins.NEVER | TransferWins.ALWAYS:
            return str(answer.wins)
        case TransferWins.ABOVE:
            return f"> {answer.tokens:,.0f} tokens"
        case TransferWins.BELOW:
            return f"< {answer.tokens:,.0f} tokens"
    return ", ".join(
        f"> {start:,.0f}" if end == math.inf else f"{start:,.0f}–{end:,.0f}" for start, end in answer.ranges
    )


def _link_label(name: str, bandwidth_bytes_per_s: float) -> str:
    word = name.upper() if name in LINKS else name
    return f"{word} {_rate_label(bandwidth_bytes_per_s)}"


def _rate_label(bandwidth_bytes_per_s: float) -> str:
    mbit = bandwidth_bytes_per_s * 8 / 1e6
    return f"{mbit / 1000:.4g} Gbit/s" if mbit >= 1000 else f"{mbit:.4g} Mbit/s"


def _draw(case: Case) -> "Figure":
    """One panel for each row and column of the table."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib; install it: pip install 'godwit[plot]'") from error
    rows, columns = len(case.prefills_tps), len(case.links)
    constants = _constants(case)
    size = (0.9 + 3.4 * columns, 1.6 + 2.7 * rows + 0.16 * len(constants))
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for line, prefill in zip(panels, case.prefills_tps, strict=True):
        answers = case.row(prefill.value)
        for panel, (name, link) in zip(line, case.links.items(), strict=True):
            _draw_panel(panel, case, prefill.value, link.value)
            _mark(panel, answers[name])
        line[0].set_ylabel(f"prefill {prefill.value:,.6g} tok/s\nseconds")
    for panel, (name, link) in zip(panels[0], case.links.items(), strict=True):
        panel.set_title(_link_label(name, link.value))
    for panel in panels[-1]:
        panel.set_xlabel("context (tokens)")
    figure.suptitle("Time until the destination has the KV", x=0.02, ha="left")
    figure.supxlabel("\n".join(constants), x=0.02, ha="left", fontsize="x-small", color="0.35")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False)
    return figure


def _draw_panel(panel: "Axes", case: Case, prefill_tps: float, bandwidth_bytes_per_s: float) -> None:
    source, destination = Server(prefill_tps, bandwidth_bytes_per_s, case.kv), case.destination(prefill_tps)
    for method, (label, style) in _STYLES.items():
        plans = [case.cost.planned(context, source, destination, (method,)) for context in _CONTEXTS]
        panel.plot(_CONTEXTS, [plan.seconds for plan in plans], label=label, **style)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlim(_CONTEXTS[0], _CONTEXTS[-1])
    panel.set_xticks(_CONTEXT_TICKS, [f"{tokens:,}" for tokens in _CONTEXT_TICKS])
    panel.minorticks_off()
    panel.yaxis.set_major_formatter(lambda seconds, _: f"{seconds:g}")
    panel.grid(visible=True, color="0.9")
    panel.set_axisbelow(True)


def _mark(panel: "Axes", answer: Crossover) -> None:
    """A line at each context length where the cheaper method changes, and their values beside the last."""
    style: dict[str, Any] = {"transform": panel.get_xaxis_transform(), "va": "top", "fontsize": "small"}
    edges = sorted({edge for span in answer.ranges for edge in span if 0 < edge < math.inf})
    if not edges:
        panel.text(_CONTEXTS[0] * 1.3, 0.96, f"transfer {answer.wins} wins", **style)
        return
    for edge in edges:
        panel.axvline(edge, color="0.2", linewidth=1, linestyle=(0, (2, 2)))
    is_left = edges[-1] < _CONTEXT_TICKS[2]
    beside = edges[-1] * 1.2 if is_left else min(edges[0], _CONTEXTS[-1]) / 1.2
    note = f"c* = {', '.join(f'{edge:,.0f}' for edge in edges)} tokens"
    panel.text(beside, 0.96, note, ha="left" if is_left else "right", **style)


def _save(figure: "Figure", path: Path) -> None:
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"--plot: {path} cannot be written: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"--plot: {path}: {error}") from error
