"""`godwit bench scheduler`: what deciding costs, and what the policies make of it."""

from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from godwit.bench.scheduler import SchedulerOptions, SchedulerReport, run_scheduler
from godwit.scheduling.policies import POLICIES

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Policies = Annotated[str, typer.Option(help="Which, with commas between them.")]
Seed = Annotated[int, typer.Option(help="Decides all that is random.")]
ALL_POLICIES = ",".join(sorted(POLICIES))


def add_commands(bench: typer.Typer) -> None:
    """Add the benchmarks of scheduling to `bench`."""
    bench.command()(scheduler)


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
