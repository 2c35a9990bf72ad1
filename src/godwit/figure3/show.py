"""Bars and figures for a terminal."""

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from godwit.figure3.report import Figure3Report, PolicyRow, typical
from godwit.figure3.scene import SERVER_1, SERVER_2
from godwit.figure3.timeline import Bar, Kind

# Each kind has a character of its own, so that colours are not needed to tell them apart.
_LOOKS: Mapping[Kind, tuple[str, str]] = {
    Kind.LOAD: ("▒", "yellow"),
    Kind.DECODE: ("█", "green"),
    Kind.RESUME: ("▓", "cyan"),
    Kind.WAIT: ("·", "magenta"),
    Kind.STALL: ("~", "red"),
}
_SERVERS: Mapping[str, str] = {SERVER_1: "server 1", SERVER_2: "server 2"}
_LABEL_CHARS = 10
_MIN_CHARS = 40
_SPREAD_CHARS = 10
_RATIO_WORDS: Mapping[str, str] = {
    "live_over_availability_ttft": "B's TTFT, live_migration / availability",
    "live_over_locality_ttft": "B's TTFT, live_migration / locality",
    "live_over_preemption_ttft": "B's TTFT, live_migration / preemption",
    "live_over_preemption_itl": "A's longest ITL, live_migration / preemption",
    "live_over_availability_total": "A's total time, live_migration / availability",
}


def show_report(console: Console, report: Figure3Report) -> None:
    """The timelines, the table, and what it says about the aims."""
    span = span_of(report)
    num_chars = max(_MIN_CHARS, console.width - _LABEL_CHARS)
    for policy in report.policies:
        console.print(f"\n[bold]{policy}[/bold]")
        for line in draw(typical(report, policy).bars, span, num_chars):
            console.print(line, no_wrap=True, crop=True)
    console.print(_axis(span, num_chars), no_wrap=True, crop=True)
    console.print(_legend(), soft_wrap=True)
    console.print(_table(report))
    _show_words(console, report)


def span_of(report: Figure3Report) -> tuple[float, float]:
    """The first and the last moment of the runs that are shown."""
    bars = [bar for policy in report.policies for bar in typical(report, policy).bars]
    return min(bar.start_s for bar in bars), max(bar.end_s for bar in bars)


def draw(bars: Sequence[Bar], span: tuple[float, float], num_chars: int) -> list[Text]:
    """For each server a line for its device, and one for those that wait for it, if there are any."""
    lines = []
    for server, name in _SERVERS.items():
        mine = [bar for bar in bars if bar.server == server]
        device = [bar for bar in mine if bar.kind.is_of_device]
        lines.append(_line(name, device, span, num_chars))
        if others := [bar for bar in mine if not bar.kind.is_of_device]:
            lines.append(_line("", others, span, num_chars))
    return lines


def _line(name: str, bars: Sequence[Bar], span: tuple[float, float], num_chars: int) -> Text:
    """A later bar covers an earlier one; each begins with its label, where there is room for more."""
    start_s, end_s = span
    per_char_s = (end_s - start_s) / num_chars or 1.0
    cells: list[tuple[str, str]] = [(" ", "")] * num_chars
    for bar in bars:
        char, colour = _LOOKS[bar.kind]
        first = min(num_chars - 1, round((bar.start_s - start_s) / per_char_s))
        last = max(first + 1, min(num_chars, round((bar.end_s - start_s) / per_char_s)))
        cells[first:last] = [(char, colour)] * (last - first)
        if last - first > 1:
            cells[first] = (bar.label[0], f"bold {colour}")
    return Text.assemble(f"{name:<{_LABEL_CHARS}}", *cells)


def _axis(span: tuple[float, float], num_chars: int) -> Text:
    """Ticks every few seconds; 0 is when B was asked for."""
    start_s, end_s = span
    step_s = next((s for s in (1, 2, 5, 10, 20) if (end_s - start_s) / s <= num_chars / 8), 60)
    line = [" "] * (num_chars + 8)
    for tick in range(int(start_s // step_s) * step_s, int(end_s) + 1, step_s):
        at = round((tick - start_s) / (end_s - start_s) * num_chars)
        if 0 <= at < num_chars:
            text = f"|{tick} s"
            line[at : at + len(text)] = text
    return Text(" " * _LABEL_CHARS + "".join(line[:num_chars]), style="dim")


def _legend() -> Text:
    parts: list[tuple[str, str]] = []
    for kind, (char, colour) in _LOOKS.items():
        parts += [(char * 3, colour), (f" {kind}   ", "")]
    return Text.assemble(*parts, ("0 s: B is asked for", "dim"))


def _table(report: Figure3Report) -> Table:
    what = f"medians of {report.repeat}, below them smallest–largest" if report.repeat > 1 else "one run"
    title = f"A: {report.models['A']}, B: {report.models['B']}; {what}"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=0)
    table.add_column("policy", no_wrap=True)
    for name in ("B's TTFT", "A's longest ITL", "A's total time"):
        table.add_column(name, justify="right", min_width=_SPREAD_CHARS)
    table.add_column("computed again", justify="right")
    table.add_column("A ran on", no_wrap=True)
    table.add_column("B on", no_wrap=True)
    for policy, row in report.policies.items():
        table.add_row(
            policy,
            *(_seconds(row, name, report.repeat) for name in ("b_ttft_s", "a_max_itl_s", "a_total_s")),
            str(row.recomputed_tokens),
            "→".join(row.a_servers) + (f" {row.how}" if row.how else ""),
            "→".join(row.b_servers),
        )
    return table


def _seconds(row: PolicyRow, name: str, repeat: int) -> str:
    text, spread = f"{getattr(row, name):.2f} s", row.spread[name]
    return f"{text}\n{spread.min:.3g}–{spread.max:.3g}" if repeat > 1 else text


def _show_words(console: Console, report: Figure3Report) -> None:
    limits = {aim.ratio: aim for aim in report.aims}
    for name, value in report.ratios.items():
        line = f"{_RATIO_WORDS[name]}: {value:.2f}"
        if (aim := limits.get(name)) is not None:
            sign = "below" if aim.is_strict else "at most"
            line += f" (aim {sign} {aim.limit:g}: {'met' if aim.is_met else 'not met'})"
        console.print(line, highlight=False)
    same = "the same in all runs" if report.a_is_identical else "[red]not the same in all runs[/red]"
    console.print(f"A's answer, token by token, is {same}.", highlight=False)
    console.print(
        f"emulated: loads from SSD at {report.emulated.ssd_mb_per_s:g} MB/s, from DRAM at "
        f"{report.emulated.dram_mb_per_s:g} MB/s; all else is real",
        highlight=False,
    )
