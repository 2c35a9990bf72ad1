"""`godwit sim chaos`: thousands of small clusters in virtual time, each with faults of its own."""

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from godwit.sim.chaos import Played, play_seed

CHUNK = 25
"""Seeds that a process plays before it tells what came of them."""
MAX_SHOWN = 20


class Report(msgspec.Struct, frozen=True):
    """What `--json` prints; `counts` say what happened in all seeds together, by kind."""

    seeds: int
    failures: int
    first_seed: int
    events: int
    virtual_s: float
    counts: dict[str, int]
    failed: tuple[tuple[int, str], ...]


def add_command(sim: typer.Typer) -> None:
    """Add `chaos` to the commands of `godwit sim`."""
    sim.command("chaos")(chaos)


def chaos(
    seeds: Annotated[int, typer.Option(min=1, help="How many clusters.")] = 1000,
    first_seed: Annotated[int, typer.Option(min=0, help="The first one's seed; the others follow.")] = 0,
    seed: Annotated[int | None, typer.Option(min=0, help="Only this one.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="With --seed: print all that happens.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Processes at once (as many as there are CPUs).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Play clusters with faults at random, and check that nothing is lost, doubled, leaked or stuck."""
    if seed is not None:
        first_seed, seeds = seed, 1
    if trace:
        if seed is None:
            raise typer.BadParameter("it is for one cluster: add --seed", param_hint="--trace")
        report = _report(first_seed, 1, iter([play_seed(seed, typer.echo)]))
    else:
        report = _report(first_seed, seeds, _play(range(first_seed, first_seed + seeds), jobs))
    if as_json:
        typer.echo(msgspec.json.encode(report))
    else:
        _show(report)
    for number, problem in report.failed[:MAX_SHOWN]:
        typer.echo(f"seed {number}: {problem}\n  godwit sim chaos --seed {number} --trace", err=True)
    if report.failures:
        raise typer.Exit(1)


def _report(first_seed: int, seeds: int, results: Iterator[Played]) -> Report:
    counts: Counter[str] = Counter()
    events, virtual_s, failed = 0, 0.0, []
    for played in results:
        counts.update(played.counts)
        events += played.num_events
        virtual_s += played.end_s
        if played.problem is not None:
            failed.append((played.seed, played.problem))
    failed.sort()
    return Report(
        seeds,
        len(failed),
        first_seed,
        events,
        round(virtual_s, 1),
        dict(sorted(counts.items())),
        tuple(failed),
    )


def _play(seeds: range, jobs: int | None) -> Iterator[Played]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    chunks = [seeds[first : first + CHUNK] for first in range(0, len(seeds), CHUNK)]
    # Spawned, since a fork would copy the progress bar's thread in the middle of what it does.
    context = multiprocessing.get_context("spawn")
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        context.Pool(min(jobs or os.cpu_count() or 1, len(chunks))) as pool,
    ):
        bar = progress.add_task("seeds", total=len(seeds))
        for results in pool.imap(play_seeds, chunks):
            progress.advance(bar, len(results))
            yield from results


def play_seeds(seeds: range) -> list[Played]:
    """What a process does."""
    return [play_seed(seed) for seed in seeds]


def _show(report: Report) -> None:
    typer.echo(f"{report.seeds} seeds, {report.failures} failures, {report.events} events")
    for kind, number in report.counts.items():
        typer.echo(f"  {kind:28} {number}")
