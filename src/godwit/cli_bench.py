"""`godwit bench …`."""

from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer
import uvloop
from msgspec import Struct
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from godwit import cli_bench_scheduling
from godwit.bench.continuation import ContinuationReport, Share, run_continuation
from godwit.bench.crossover import CrossoverOptions, link_name, run_crossover
from godwit.bench.crossover_plan import MIN_CONTEXT_TOKENS
from godwit.bench.crossover_report import COLUMNS, CrossoverReport
from godwit.bench.links import open_links
from godwit.bench.pause import PauseReport, Spread, run_pause
from godwit.bench.relay import MODES, RelayReport, run_relay
from godwit.bench.soak import run_soak
from godwit.cli_settings import BedEngine, MovingEngine, VllmPython, whole_numbers
from godwit.config import BUILT_IN_MODELS, ModelSettings
from godwit.errors import ConfigError
from godwit.testbed import VLLM_PYTHON, make_testbed

bench = typer.Typer(no_args_is_help=True, help="Measure this machine; figures are ratios from one run.")
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Logs = Annotated[Path | None, typer.Option(help="Folder for the workers' output.")]
Repeat = Annotated[int, typer.Option(min=1, max=100, help="Measurements of each kind.")]
T = TypeVar("T")


def add_commands(app: typer.Typer) -> None:
    """Add `bench` to the command line."""
    cli_bench_scheduling.add_commands(bench)
    app.add_typer(bench, name="bench")


@bench.command()
def pause(
    contexts: Annotated[
        str | None, typer.Option(help="Prompt lengths in tokens (128,512,1024,2048; vllm 256,900,1800).")
    ] = None,
    repeat: Repeat = 5,
    model: Annotated[str, typer.Option(help="A built-in model.")] = "smollm2-135m",
    engine: BedEngine = MovingEngine.LLAMACPP,
    vllm_python: VllmPython = VLLM_PYTHON,
    as_json: Json = False,
    logs: Logs = None,
) -> None:
    """The pause of a live move, by tokens and by KV, against stop-and-recompute, by context length."""
    usual = "256,900,1800" if engine is MovingEngine.VLLM else "128,512,1024,2048"
    lengths = whole_numbers("--contexts", contexts or usual)
    testbed = make_testbed(engine, model, vllm_python)
    with Console(stderr=True).status("starting two workers") as status:
        report = uvloop.run(run_pause(lengths, repeat, testbed, status.update, logs))
    if as_json:
        _print_json(report)
    else:
        _show_pause(report)


@bench.command()
def continuation(
    repeat: Annotated[int, typer.Option(min=1, max=1000, help="Requests of each kind.")] = 15,
    model: Annotated[str, typer.Option(help="A built-in model.")] = "smollm2-135m",
    as_json: Json = False,
    logs: Logs = None,
) -> None:
    """Whether moved requests go on with exactly the unmoved tokens: those that move by KV must."""
    with Console(stderr=True).status("starting two workers") as status:
        report = uvloop.run(run_continuation(repeat, model, status.update, logs))
    if as_json:
        _print_json(report)
    else:
        _show_continuation(report)
    if not report.ok:
        raise typer.Exit(1)


@bench.command()
def relay(
    modes: Annotated[str, typer.Option(help="Which of lockstep, paced, flooded.")] = ",".join(MODES),
    clients: Annotated[str, typer.Option(help="Numbers of clients.")] = "64,256",
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="Length of one run.")] = 3.0,
    repeat: Repeat = 3,
    as_json: Json = False,
) -> None:
    """The head's cost of a streamed token, fed by fake engines."""
    counts = whole_numbers("--clients", clients)
    with Console(stderr=True).status("starting a head") as status:
        report = uvloop.run(run_relay(modes.split(","), counts, seconds, repeat, status.update))
    if as_json:
        _print_json(report)
    else:
        _show_relay(report)


@bench.command()
def soak(
    minutes: Annotated[float, typer.Option(min=0.1, max=24 * 60, help="How long.")] = 10.0,
    workers: Annotated[int, typer.Option(min=2, max=32, help="How many workers.")] = 3,
    seed: Annotated[int, typer.Option(help="Decides the load, the moves and the kills.")] = 1,
    as_json: Json = False,
) -> None:
    """Random load with a move every second and a SIGKILL every 20 s: nothing may break, grow or leak."""
    with Console(stderr=True).status("starting the workers") as status:
        report = uvloop.run(run_soak(minutes, seed=seed, workers=workers, progress=status.update))
    if as_json:
        _print_json(report)
    else:
        for name, value in msgspec.to_builtins(report).items():
            print(f"{name}: {value}")
    if not report.ok:
        raise typer.Exit(1)


@bench.command()
def crossover(
    contexts: Annotated[str, typer.Option(help="Context lengths in tokens.")] = "64,256,1024,2048",
    links: Annotated[str, typer.Option(help="Rates of the link in Mbit/s.")] = "10,50,100,1000",
    repeat: Repeat = 3,
    live_repeat: Annotated[int, typer.Option(min=0, max=100, help="The same for live moves.")] = 1,
    unshaped: Annotated[bool, typer.Option(help="Measure the link as it is, too.")] = True,
    paced: Annotated[bool, typer.Option("--paced", help="Emulate the links on loopback.")] = False,
    model: Annotated[str, typer.Option(help="A built-in model.")] = BUILT_IN_MODELS[0],
    as_json: Json = False,
    logs: Logs = None,
) -> None:
    """Transfer, recompute, split and auto over shaped links: where each one is the quickest."""
    lengths, rates = whole_numbers("--contexts", contexts), whole_numbers("--links", links)
    if min(lengths) < MIN_CONTEXT_TOKENS:
        raise ConfigError(f"--contexts: every context has at least {MIN_CONTEXT_TOKENS} tokens")
    all_links = (*map(float, rates), *((None,) if unshaped else ()))
    options = CrossoverOptions(tuple(lengths), all_links, repeat, live_repeat, ModelSettings(name=model))
    said = Console(stderr=True)
    # Before anything starts a thread: only later ones share the network namespace.
    with open_links(lambda text: said.print(text, soft_wrap=True), paced=paced) as links_there:
        report = uvloop.run(
            run_crossover(options, links_there, lambda text: said.print(text, soft_wrap=True), logs)
        )
    if as_json:
        _print_json(report)
    else:
        _show_crossover(report)


def _show_continuation(report: ContinuationReport) -> None:
    table = Table(title=f"Moved requests with exactly the unmoved tokens, {report.model}")
    for name in ("method", "greedy", "seeded", "all"):
        table.add_column(name, justify="right")
    for row in report.methods:
        both = Share(row.greedy.identical + row.seeded.identical, row.greedy.of + row.seeded.of)
        table.add_row(row.method, *(f"{one.identical} of {one.of}" for one in (row.greedy, row.seeded, both)))
    Console().print(table)


def _show_relay(report: RelayReport) -> None:
    table = Table(title="The head's cost of a streamed token (medians)")
    for name in ("mode", "clients", "CPU µs/token", "spread", "added p50 µs", "added p99 µs", "tokens/write"):
        table.add_column(name, justify="right")
    for row in report.rows:
        cost = (f"{row.cpu_us_per_token:.2f}", f"{row.spread:.0%}")
        added = (f"{row.added_p50_us:.0f}", f"{row.added_p99_us:.0f}")
        table.add_row(row.mode, str(row.clients), *cost, *added, f"{row.tokens_per_write:.0f}")
    console = Console()
    console.print(table)
    busiest = max(row.foreign_cores for row in report.rows)
    console.print(f"everything else on this machine kept up to {busiest:.1f} cores busy meanwhile")


def _show_pause(report: PauseReport) -> None:
    table = Table(title=f"Pause of a move, {report.model}, as multiples of the unmoved ITL (median, max)")
    for name in (
        "context",
        "ITL ms",
        "live",
        "live KV",
        "stop and recompute",
        "shorter by",
        "bystander live / stop",
    ):
        table.add_column(name, justify="right")
    for row in report.contexts:
        table.add_row(
            str(row.context_tokens),
            f"{row.itl_ms:.1f}",
            _spread(row.live_pause_over_itl),
            _spread(row.live_kv_pause_over_itl),
            _spread(row.stop_recompute_pause_over_itl),
            f"{row.stop_over_live:.0f} ×",
            f"{row.bystander_max_itl_over_itl:.1f} / {row.bystander_stop_recompute_max_itl_over_itl:.1f}",
        )
    console = Console()
    console.print(table)
    console.print(f"live pause, longest over shortest context: {report.live_pause_longest_over_shortest:.2f}")


def _show_crossover(report: CrossoverReport) -> None:
    what = "median seconds until the destination could decode"
    table = Table(title=f"{report.model}, {report.links_are}: {what}", box=SIMPLE, padding=(0, 1))
    for name in ("Mbit/s", "context", *COLUMNS, "chose", "regret"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in report.cells:
        seconds = (cell.transfer_s, cell.recompute_s, cell.split_s, cell.auto_s)
        table.add_row(
            "unshaped" if cell.link_mbit is None else f"{cell.link_mbit:g}",
            f"{cell.context_tokens:,}",
            *(f"{value:.3g}" for value in seconds),
            cell.auto_method,
            f"{cell.regret:.2f}",
        )
    console = Console()
    console.print(table)
    for row in report.links:
        console.print(
            f"{link_name(row.link_mbit)} ({row.effective_mbit:g} in effect): transfer wins "
            f"{_where(row.transfer_wins_predicted, row.crossover_tokens_predicted)} by the constants, "
            f"{_where(row.transfer_wins_measured, row.crossover_tokens_measured)} as measured",
            soft_wrap=True,
        )
    if (regret := report.auto_regret) is not None:
        within = f"{regret.share_within_1_15:.0%} within 1.15"
        console.print(f"regret of auto: median {regret.p50:.2f}, p95 {regret.p95:.2f}, {within}")
    if (ratios := report.split_over_best) is not None:
        console.print(
            f"split over the better of transfer and recompute: median {ratios.p50:.2f}, max {ratios.max:.2f}"
        )
    for problem in report.problems:
        console.print(problem, soft_wrap=True, markup=False)


def _where(wins: str, tokens: float | None) -> str:
    return wins.replace("c*", f"{tokens:,.0f} tokens") if tokens else wins


def _spread(spread: Spread) -> str:
    return f"{spread.p50:.2f}, {spread.max:.2f}"


def _print_json(report: Struct) -> None:
    print(msgspec.json.encode(report).decode())
