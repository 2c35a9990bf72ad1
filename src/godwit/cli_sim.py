"""`godwit sim`: scenarios in virtual time, with the real scheduler and the real protocol."""

import multiprocessing
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from godwit.cli_processes import SPAWN, Jobs, num_processes, progress_bar
from godwit.cli_sim_tables import show_report
from godwit.figure3.plot import check_plot
from godwit.scenarios.plan import Cell, Options, Row, Sweep, plan, rows_of, tasks_of
from godwit.scenarios.play import RunFailedError, Task, play
from godwit.scenarios.plot import save_plot
from godwit.scenarios.read import names, parse_assignment, read_raw, scenario_of
from godwit.scenarios.report import make_report
from godwit.sim.metrics import Metrics

_RUN = "run"
_FILE_COLUMNS = 120


class _Group(TyperGroup):
    """`godwit sim SCENARIO …` is `godwit sim run SCENARIO …`, so that others can be commands of their own."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # click's own type is vendored
        if args and args[0] not in self.commands and args[0] not in ("--help", "--list"):
            args = [_RUN, *args]
        return super().parse_args(ctx, args)


sim = typer.Typer(cls=_Group, no_args_is_help=True)


def add_commands(app: typer.Typer) -> None:
    """Add `sim` to the command line."""
    app.add_typer(sim, name="sim")


def _list(is_wanted: bool) -> None:
    if is_wanted:
        for name in names():
            typer.echo(f"{name}: {scenario_of(read_raw(name)).about}")
        raise typer.Exit


@sim.callback(help=f"Simulate a scenario: godwit sim SCENARIO. Built in: {', '.join(names())}.")
def _sim(
    _is_listed: Annotated[
        bool, typer.Option("--list", help="Say what each one is about.", is_eager=True, callback=_list)
    ] = False,
) -> None:
    pass


@sim.command(_RUN)
def run(
    scenario: Annotated[str, typer.Argument(help="A built-in scenario, or a file that ends with .toml.")],
    policy: Annotated[
        list[str] | None, typer.Option(help="One of the scenario's policies; repeatable (all).")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=10_000, help="How often, each with a seed of its own.")
    ] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    assigned: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the scenario, as in world.grain=4."),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Also vary each constant that nobody knows, by itself.")
    ] = False,
    grid: Annotated[bool, typer.Option("--grid", help="Also vary all of them together.")] = False,
    ablations: Annotated[
        bool, typer.Option("--ablations", help="Also vary what the scenario's policies are made of.")
    ] = False,
    jobs: Jobs = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the report into this file.")] = None,
) -> None:
    """Simulate a scenario with each policy and seed; figures are means over seeds with 95 % intervals."""
    if plot is not None:
        check_plot(plot)
    raw = read_raw(scenario)
    options = Options(
        scenario=scenario,
        policies=tuple(policy or ()),
        seeds=tuple(range(first_seed, first_seed + seeds)),
        overrides=tuple(parse_assignment(text) for text in assigned or ()),
        sweep=Sweep.ALL if grid else Sweep.EACH if sweep else Sweep.NONE,
        has_ablations=ablations,
    )
    cells = plan(raw, options)
    report = make_report(scenario_of(raw, options.overrides), options, _rows(cells, options, jobs))
    if plot is not None:
        save_plot(report, plot)
        Console(stderr=True).print(f"drawn into {escape(str(plot))}", soft_wrap=True, highlight=False)
    if as_json:
        typer.echo(msgspec.json.encode(report))
    else:
        console = Console()
        # In a file there is no edge of a screen.
        show_report(console if console.is_terminal else Console(width=_FILE_COLUMNS), report)


def _rows(cells: list[Cell], options: Options, jobs: int | None) -> list[Row]:
    tasks, places = tasks_of(cells, options)
    return rows_of(cells, places, _play(tasks, num_processes(jobs, len(tasks))))


def _play(tasks: list[Task], jobs: int) -> list[Metrics]:
    """Everything in `jobs` processes; whatever ends it early, they end too."""
    console = Console(stderr=True)
    pool = ProcessPoolExecutor(jobs, SPAWN)
    try:
        with progress_bar(console) as progress:
            bar = progress.add_task("simulating", total=len(tasks))
            found = play(tasks, pool, lambda: progress.advance(bar))
    except BaseException as error:
        _end(pool)
        if isinstance(error, RunFailedError) and error.__cause__ is not None:
            console.print("".join(traceback.format_exception(error.__cause__)), markup=False, soft_wrap=True)
        raise
    pool.shutdown()
    return found


def _end(pool: ProcessPoolExecutor) -> None:
    """Stop at once: a run takes minutes, and nobody wants its figures any more."""
    pool.shutdown(wait=False, cancel_futures=True)
    for process in multiprocessing.active_children():
        process.terminate()
