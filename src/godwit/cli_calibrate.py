"""`godwit calibrate`: measure a running cluster's constants and write them into a profile."""

import contextlib
import os
import platform
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import aiohttp
import msgspec
import typer
import uvloop
from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from godwit import cli_settings
from godwit.calibrate.build import build_profile
from godwit.calibrate.cluster import Cluster
from godwit.calibrate.plan import FULL, QUICK, Effort, Plan, check_contexts, make_plan
from godwit.calibrate.report import Figure, Report, make_report
from godwit.calibrate.run import Calibration
from godwit.client import AdminClient, ClusterStatus
from godwit.config import DEFAULT_MODEL, HeadSettings, Settings
from godwit.errors import ConfigError, ConflictError, LinkError
from godwit.local import LocalCluster
from godwit.profile import write_profile
from godwit.testbed import VLLM_PYTHON, make_testbed

NUM_LOCAL_WORKERS = 2


def add_commands(app: typer.Typer) -> None:
    """Add `calibrate` to the command line."""
    app.command()(calibrate)


def calibrate(
    url: Annotated[str, typer.Option(envvar="GODWIT_URL", help="The head.")] = "http://127.0.0.1:8080",
    local: Annotated[
        bool, typer.Option("--local", help="Start two workers on this machine, and stop them afterwards.")
    ] = False,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="A model that is served; repeatable. All.")
    ] = None,
    engine: cli_settings.BedEngine = cli_settings.MovingEngine.LLAMACPP,
    vllm_python: cli_settings.VllmPython = VLLM_PYTHON,
    workers: Annotated[str | None, typer.Option(metavar="W,…", help="Measure these only.")] = None,
    contexts: Annotated[
        str | None, typer.Option(metavar="TOKENS,…", help="Prompt lengths of the requests that are moved.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, max=20, help="Times as many of all measurements.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Few, short contexts: wide intervals.")] = False,
    busy: Annotated[bool, typer.Option("--busy", help="Measure although other requests run.")] = False,
    hardware: Annotated[str | None, typer.Option(help="What the profile calls the machines.")] = None,
    out: Annotated[Path, typer.Option(help="The profile; a file that is there is replaced.")] = Path(
        "profile.json"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Measure what moves cost on a running cluster, by moving requests of its own, and write a profile."""
    lengths = () if contexts is None else tuple(cli_settings.whole_numbers("--contexts", contexts, 2))
    check_contexts(lengths)
    if not out.parent.is_dir():
        raise ConfigError(f"--out: there is no folder {out.parent}")
    effort = _times(QUICK if quick else FULL, repeat)
    names = [name.strip() for name in (workers or "").split(",") if name.strip()]
    wanted = _Wanted(effort, tuple(model or ()), tuple(names), lengths, busy)
    console = Console(stderr=True)

    async def measure() -> Report:
        if not local:
            return await _measure(url, cli_settings.admin_key(), _api_key(), wanted, hardware, console)
        async with _local_cluster(wanted, engine, vllm_python, console) as cluster:
            return await _measure(cluster.url, None, None, wanted, hardware or _this_machine(), console)

    report = uvloop.run(measure())
    write_profile(out, report.profile)
    if as_json:
        typer.echo(msgspec.json.encode(report))
    else:
        _show(Console(), report)
    for warning in report.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True, highlight=False)
    console.print(
        f"written to {escape(str(out))}; a head uses it with moves.profile, `godwit crossover --profile` "
        "shows what follows from it",
        soft_wrap=True,
        highlight=False,
    )


class _Wanted(msgspec.Struct, frozen=True):
    """What the flags ask for."""

    effort: Effort
    models: tuple[str, ...]
    workers: tuple[str, ...]
    contexts: tuple[int, ...]
    is_busy_allowed: bool

    def plan(self, status: ClusterStatus) -> Plan:
        """The plan for a cluster; ConflictError where it serves others."""
        if status.requests and not self.is_busy_allowed:
            raise ConflictError(
                f"{len(status.requests)} other requests run on the cluster and would be measured too: wait "
                "until they are over (`godwit status` shows them), or measure all the same with --busy"
            )
        plan = make_plan(
            status, self.effort, models=self.models, workers=self.workers, contexts=self.contexts
        )
        if not status.requests:
            return plan
        warning = f"{len(status.requests)} other requests ran: what is called idle was not"
        return Plan(plan.steps, (*plan.warnings, warning))


async def _measure(
    url: str,
    admin_key: str | None,
    api_key: str | None,
    wanted: _Wanted,
    hardware: str | None,
    console: Console,
) -> Report:
    started_s = time.monotonic()
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    async with AdminClient(url, admin_key) as admin, aiohttp.ClientSession(headers=headers) as session:
        try:
            status = await admin.status()
        except LinkError as error:
            raise LinkError(f"{error.message}; or measure this machine with --local") from error
        plan = wanted.plan(status)
        with _progress(console) as progress:
            task = progress.add_task("", total=len(plan.steps))
            async with Cluster(url, admin, session) as cluster:
                calibration = Calibration(
                    cluster,
                    wanted.effort,
                    lambda text, done, _: progress.update(task, description=escape(text), completed=done),
                )
                found = await calibration.run(plan)
    names = ", ".join(worker.name for worker in status.workers)
    date = datetime.now(UTC).date().isoformat()
    built = build_profile(found, hardware or f"{names} at {url}", date)
    return make_report(built, len(found.moves), time.monotonic() - started_s)


@contextlib.asynccontextmanager
async def _local_cluster(
    wanted: _Wanted, engine: cli_settings.MovingEngine, python: Path, console: Console
) -> AsyncIterator[LocalCluster]:
    """Two workers of this machine with the models that --model names."""
    settings = cli_settings.with_models(Settings(head=HeadSettings(port=0)), list(wanted.models), None)
    testbed = make_testbed(engine, wanted.models[0] if wanted.models else DEFAULT_MODEL, python)
    if not wanted.models or engine is cli_settings.MovingEngine.VLLM:
        settings = replace(settings, models=(testbed.model,))
    async with contextlib.AsyncExitStack() as stack:
        with console.status("starting two workers"):
            cluster = await stack.enter_async_context(
                LocalCluster(settings, NUM_LOCAL_WORKERS, sites=testbed.sites)
            )
        yield cluster


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def _show(console: Console, report: Report) -> None:
    table = Table(
        title=f"Measured on {report.hardware}, {report.date}", title_justify="left", show_edge=False
    )
    table.add_column("constant", overflow="fold")
    table.add_column("of", overflow="fold")
    for name in ("value", "95 % interval", "n"):
        table.add_column(name, justify="right")
    for figure in report.constants:
        count = "assumed" if figure.n is None else str(figure.n)
        table.add_row(figure.name, figure.about, f"{figure.value:,.4g}", _interval(figure), count)
    console.print(table)
    for model, points in report.kv_points.items():
        sizes = ", ".join(f"{tokens:,.0f}: {size / 1e6:,.4g}" for tokens, size in points)
        console.print(f"KV of {model} by range, tokens: MB: {sizes}", markup=False, highlight=False)
    console.print(f"{report.num_moves} moves in {report.seconds:.0f} s", highlight=False)


def _interval(figure: Figure) -> str:
    if figure.low is None:
        return "-"
    return f"{figure.low:,.4g} – {'∞' if figure.high is None else f'{figure.high:,.4g}'}"


def _times(effort: Effort, repeat: int) -> Effort:
    return replace(
        effort,
        kv_trips=effort.kv_trips * repeat,
        token_trips=effort.token_trips * repeat,
        decode_steps=effort.decode_steps * repeat,
        prefill_turns=effort.prefill_turns * repeat,
    )


def _api_key() -> str | None:
    """The first of the clients' keys, from GODWIT_API_KEYS."""
    return next(iter(cli_settings.read_settings(None).security.api_keys), None)


def _this_machine() -> str:
    """This machine's processors in words."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{NUM_LOCAL_WORKERS} workers on {os.cpu_count()} × {name}"
