"""`godwit sim chaos`: thousands of small clusters in virtual time, each with faults of its own."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import Console

from godwit.cli_processes import SPAWN, Jobs, num_processes, progress_bar
from godwit.sim.chaos import Played, play, play_seed
from godwit.sim.faults import WEIGHTS
from godwit.sim.mutations import MUTATIONS, hunt
from godwit.sim.shortest import shortest
from godwit.sim.situation import situation_of

CHUNK = 25
"""Seeds that a process plays before it tells what came of them."""
MAX_SHOWN = 20
T = TypeVar("T")
R = TypeVar("R")


class Report(msgspec.Struct, frozen=True):
    """What `--json` prints; `counts` say what happened in all seeds together, by kind."""

    seeds: int
    failures: int
    first_seed: int
    events: int
    virtual_s: float
    counts: dict[str, int]
    failed: tuple[tuple[int, str], ...]


class Found(msgspec.Struct, frozen=True):
    """After how many seeds a fault of the protocol was found, and by what; None: it was not."""

    mutation: str
    after_seeds: int | None
    problem: str | None = None


def add_command(sim: typer.Typer) -> None:
    """Add `chaos` to the commands of `godwit sim`."""
    sim.command("chaos")(chaos)


def chaos(
    seeds: Annotated[int, typer.Option(min=1, help="How many clusters.")] = 1000,
    first_seed: Annotated[int, typer.Option(min=0, help="The first one's seed; the others follow.")] = 0,
    seed: Annotated[int | None, typer.Option(min=0, help="Only this one.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="With --seed: print all that happens.")] = False,
    short: Annotated[
        bool, typer.Option("--short", help="With --trace: leave out what a failure does not need.")
    ] = False,
    mutations: Annotated[
        bool, typer.Option("--mutations", help="Break the protocol on purpose: how soon is it found?")
    ] = False,
    jobs: Jobs = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Play clusters with faults at random, and check that nothing is lost, doubled, leaked or stuck."""
    if seed is not None:
        first_seed, seeds = seed, 1
    if trace and seed is None:
        raise typer.BadParameter("it is for one cluster: add --seed", param_hint="--trace")
    if short and not trace:
        raise typer.BadParameter("it is for one cluster: add --seed and --trace", param_hint="--short")
    if mutations and (trace or seed is not None):
        raise typer.BadParameter("it needs many seeds, and prints no trace", param_hint="--mutations")
    all_seeds = range(first_seed, first_seed + seeds)
    if mutations:
        _check_mutations(all_seeds, jobs, as_json=as_json)
        return
    results = iter([_traced(first_seed, short=short)]) if trace else _play(all_seeds, jobs)
    report = _report(all_seeds, results)
    if as_json:
        typer.echo(msgspec.json.encode(report))
    else:
        _show(report)
    for number, problem in report.failed[:MAX_SHOWN]:
        typer.echo(f"seed {number}: {problem}\n  godwit sim chaos --seed {number} --trace", err=True)
    if report.failures:
        raise typer.Exit(1)


def _traced(seed: int, *, short: bool) -> Played:
    situation = situation_of(seed, WEIGHTS)
    return play(shortest(situation) if short else situation, typer.echo)


def _report(seeds: range, results: Iterator[Played]) -> Report:
    counts: Counter[str] = Counter()
    events, virtual_s, failed = 0, 0.0, []
    for played in results:
        counts.update(played.counts)
        events += played.num_events
        virtual_s += played.end_s
        if played.problem is not None:
            failed.append((played.seed, played.problem))
    return Report(
        len(seeds),
        len(failed),
        seeds.start,
        events,
        round(virtual_s, 1),
        dict(sorted(counts.items())),
        tuple(failed),
    )


def _show(report: Report) -> None:
    typer.echo(f"{report.seeds} seeds, {report.failures} failures, {report.events} events")
    for kind, number in report.counts.items():
        typer.echo(f"  {kind:28} {number}")


def _play(seeds: range, jobs: int | None) -> Iterator[Played]:
    chunks = [seeds[first : first + CHUNK] for first in range(0, len(seeds), CHUNK)]
    for results in _in_processes(_play_chunk, chunks, jobs, "seeds"):
        yield from results


def _play_chunk(seeds: range) -> list[Played]:
    return [play_seed(seed) for seed in seeds]


def _check_mutations(seeds: range, jobs: int | None, *, as_json: bool) -> None:
    found = list(_in_processes(_hunt, [(name, seeds) for name in MUTATIONS], jobs, "mutations"))
    if as_json:
        typer.echo(msgspec.json.encode({"mutations": found}))
    else:
        for one in found:
            after = "not found" if one.after_seeds is None else f"{one.after_seeds} seeds"
            typer.echo(f"{one.mutation:36} {after:12} {one.problem or ''}")
    if any(one.after_seeds is None for one in found):
        raise typer.Exit(1)


def _hunt(task: tuple[str, range]) -> Found:
    name, seeds = task
    result = hunt(name, seeds)
    return Found(name, None) if result is None else Found(name, result[0], result[1].problem)


def _in_processes(work: Callable[[T], R], tasks: Sequence[T], jobs: int | None, what: str) -> Iterator[R]:
    """What comes of all tasks, in their order; a single one is done in this process."""
    number = num_processes(jobs, len(tasks))
    if number == 1:
        yield from map(work, tasks)
        return
    with progress_bar(Console(stderr=True)) as progress, SPAWN.Pool(number) as pool:
        bar = progress.add_task(what, total=len(tasks))
        for result in pool.imap(work, tasks):
            progress.advance(bar)
            yield result
