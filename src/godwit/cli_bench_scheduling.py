"""`godwit bench scheduler`, `contention`, `sim`: what deciding and simulating cost, what policies do."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from godwit.bench.contention import run_contention
from godwit.bench.contention_report import ContentionReport
from godwit.bench.contention_scene import Emulated, Load, Scene, open_stage, read_questions
from godwit.bench.scheduler import SchedulerOptions, SchedulerReport, run_scheduler
from godwit.bench.simulator import SimulatorOptions, SimulatorReport, run_simulator
from godwit.scheduling.policies import POLICIES, policy_named
from godwit.traces import data_folder

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Policies = Annotated[str, typer.Option(help="Which, with commas between them.")]
Seed = Annotated[int, typer.Option(help="Decides all that is random.")]
Logs = Annotated[Path | None, typer.Option(help="Folder for the workers' output.")]
Bandwidth = Annotated[float, typer.Option(min=0.01, help="Emulated, in MB/s.")]
ALL_POLICIES = ",".join(sorted(POLICIES))
# The other two choose by when a request is done, and here it counts when it starts.
COMPARED_POLICIES = ",".join(sorted(POLICIES.keys() - {"fastest", "hazard"}))
LOAD, EMULATED = Load(), Emulated()


def add_commands(bench: typer.Typer) -> None:
    """Add the benchmarks of scheduling to `bench`."""
    bench.command()(scheduler)
    bench.command()(contention)
    bench.command("sim")(simulator)


def scheduler(
    servers: Annotated[int, typer.Option(min=2, max=10_000, help="Servers of the largest cluster.")] = 1000,
    models: Annotated[
        int, typer.Option(min=1, max=100_000, help="Its models; smaller ones have less.")
    ] = 10_000,
    replicas: Annotated[int, typer.Option(min=1, max=100, help="Servers that have a model on SSD.")] = 10,
    policies: Policies = ALL_POLICIES,
    decisions: Annotated[int, typer.Option(min=10, help="Placements that are timed, each time.")] = 1000,
    repeat: Annotated[int, typer.Option(min=1, max=100, help="Measurements of each kind.")] = 3,
    seed: Seed = 1,
    as_json: Json = False,
) -> None:
    """Microseconds per placement decision, by policy, from 10 to 1,000 servers; no server is started."""
    options = SchedulerOptions(tuple(policies.split(",")), servers, models, replicas, decisions, repeat, seed)
    with Console(stderr=True).status("making a cluster") as status:
        report = run_scheduler(options, status.update)
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        _show_scheduler(report)


def simulator(
    servers: Annotated[int, typer.Option(min=2, max=10_000, help="Servers of the largest cluster.")] = 1000,
    requests: Annotated[int, typer.Option(min=100, max=10_000_000, help="In each run.")] = 20_000,
    grain: Annotated[
        int, typer.Option(min=1, max=256, help="Real tokens that one simulated token stands for.")
    ] = 16,
    repeat: Annotated[int, typer.Option(min=1, max=100, help="Runs of each size.")] = 3,
    seed: Seed = 1,
    as_json: Json = False,
) -> None:
    """Events and requests that are simulated per second of one core, from 10 to 1,000 servers."""
    options = SimulatorOptions(servers, requests, grain, repeat, seed)
    with Console(stderr=True).status("making a cluster") as status:
        report = run_simulator(options, status.update)
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        _show_simulator(report)
    if any(row.problems for row in report.rows):
        raise typer.Exit(1)


def contention(
    minutes: Annotated[float, typer.Option(min=0.1, max=600, help="How long requests arrive.")] = 5.0,
    policies: Policies = COMPARED_POLICIES,
    rate: Annotated[float, typer.Option(min=0.01, max=100, help="Requests per second.")] = LOAD.rate_per_s,
    cv: Annotated[float, typer.Option(min=0.1, max=20, help="Spread of their gaps; 1: Poisson.")] = LOAD.cv,
    tokens: Annotated[
        int, typer.Option(min=1, max=384, help="Median length of an answer, which has 384 at most.")
    ] = round(LOAD.median_tokens),
    seed: Seed = LOAD.seed,
    ssd_mb_per_s: Bandwidth = EMULATED.ssd_mb_per_s,
    dram_mb_per_s: Bandwidth = EMULATED.dram_mb_per_s,
    as_json: Json = False,
    logs: Logs = None,
) -> None:
    """Bursts of requests for 6 models on 3 workers, the same under each policy; SSD and DRAM are emulated.

    By default many and long enough that live migration makes some ten moves in 5 minutes: shorter answers end
    before a move of theirs does, and without moves nothing is known of how good resume estimates are.
    """
    names = policies.split(",")
    for name in names:
        policy_named(name)
    questions = read_questions(data_folder())
    said = Console(stderr=True)
    said.print(f"emulated: SSD {ssd_mb_per_s:g} MB/s, DRAM {dram_mb_per_s:g} MB/s; copying the models' files")
    load = Load(minutes=minutes, rate_per_s=rate, cv=cv, seed=seed, median_tokens=tokens)
    with open_stage(Scene(emulated=Emulated(ssd_mb_per_s, dram_mb_per_s))) as stage:
        report = uvloop.run(
            run_contention(stage, load, names, questions, lambda text: said.print(text, soft_wrap=True), logs)
        )
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        _show_contention(report)
    if report.num_errors:
        raise typer.Exit(1)


def _show_simulator(report: SimulatorReport) -> None:
    table = Table(title=f"one simulated token stands for {report.rows[0].grain}", box=SIMPLE)
    for name in ("servers", "requests", "events/s", "requests/s", "range", "virtual s a second"):
        table.add_column(name, justify="right")
    for row in report.rows:
        table.add_row(
            str(row.servers),
            str(row.requests),
            f"{row.events_per_s:.0f}",
            f"{row.requests_per_s:.0f}",
            f"{row.requests_per_s_low:.0f}-{row.requests_per_s_high:.0f}",
            f"{row.virtual_over_cpu:.1f}",
        )
    Console().print(table)


def _show_contention(report: ContentionReport) -> None:
    arrivals, emulated = report.arrivals, report.emulated
    what = f"{arrivals.n} requests in {arrivals.minutes:g} min, CV {arrivals.cv:g}, seed {arrivals.seed}"
    rates = f"emulated: SSD {emulated.ssd_mb_per_s:g} MB/s, DRAM {emulated.dram_mb_per_s:g} MB/s"
    table = Table(title=f"{what}; {rates}", box=SIMPLE, padding=(0, 1))
    columns = ("startup P50 s", "P99 s", "TTFT P50 s", "moves/failed", "kills", "dram/ssd loads", "errors")
    for name in ("policy", *columns):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for name, row in report.policies.items():
        table.add_row(
            name,
            *(f"{seconds:.2f}" for seconds in (row.startup_p50_s, row.startup_p99_s, row.ttft_p50_s)),
            f"{row.moves} / {row.failed_moves}",
            str(row.kills),
            f"{row.reloads['dram']} / {row.reloads['ssd']}",
            str(row.errors),
        )
    console = Console()
    console.print(table)
    for kind, errors in report.estimators.items():
        off = f"{errors.p50_s:.2f} s (median), {errors.p95_s:.2f} s (95 %)"
        console.print(f"{kind} estimates were off by {off}, n = {errors.n}")
    if "resume" not in report.estimators:
        console.print("no move was made, so nothing is known of resume estimates")
    for name, row in report.policies.items():
        for reason, count in row.failures.items():
            console.print(f"{name}: {count} failed moves: {reason}", soft_wrap=True, markup=False)
        for problem in row.problems:
            console.print(f"{name}: {problem}", soft_wrap=True, markup=False)


def _show_scheduler(report: SchedulerReport) -> None:
    table = Table(title="Microseconds per placement decision", box=SIMPLE, padding=(0, 1))
    columns = (
        "servers",
        "policy",
        "P50",
        "P99",
        "of repeats",
        "any event",
        "start/load/clear/wait %",
        "busy",
    )
    for name in columns:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for row in report.rows:
        shares = (row.share_start, row.share_load, row.share_clear, row.share_wait)
        table.add_row(
            f"{row.servers:,}",
            row.policy,
            f"{row.p50_us:,.0f}",
            f"{row.p99_us:,.0f}",
            f"{row.p99_low_us:,.0f}–{row.p99_high_us:,.0f}",
            f"{row.event_p99_us:,.0f}",
            " / ".join(f"{share * 100:.0f}" for share in shares),
            f"{row.busy_share:.0%}",
        )
    Console().print(table)
