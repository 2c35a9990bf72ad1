"""The `godwit` command: wrong settings end it with status 2, failures with status 1."""

import asyncio
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import uvloop
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from godwit import (
    __version__,
    cli_bench,
    cli_calibrate,
    cli_chaos,
    cli_costs,
    cli_demo,
    cli_models,
    cli_ray,
    cli_run,
    cli_settings,
    cli_sim,
    cli_tables,
)
from godwit.client import AdminClient, ClusterStatus, Estimates, WorkerStatus, decode, move_record
from godwit.costs.report import CostsReport
from godwit.errors import ConfigError, GodwitError
from godwit.fleet.headprocess import read_head_order
from godwit.logs import configure_logs
from godwit.processes import read_order

_POLL_S = 0.5


class Engine(StrEnum):
    """What computes: llama.cpp embedded or as its own server, vLLM, or the stand-in for tests."""

    LLAMACPP = "llamacpp"
    LLAMA_SERVER = "llama-server"
    VLLM = "vllm"
    FAKE = "fake"


class Method(StrEnum):
    """How a request moves: the cheapest way, its tokens, its KV, or the KV of its latest tokens."""

    AUTO = "auto"
    TOKENS = "tokens"
    KV = "kv"
    SPLIT = "split"


class _Group(TyperGroup):
    """Shows an expected failure as one message instead of a traceback."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # click's own type is vendored
        try:
            return super().invoke(ctx)
        except GodwitError as error:
            _fail(error.message, status=2 if isinstance(error, ConfigError) else 1)


app = typer.Typer(cls=_Group, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)

Config = Annotated[Path | None, typer.Option(help="Settings in TOML; flags win over them.")]
Assigned = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting, as in head.patience_s=2; wins over the file."
    ),
]
Host = Annotated[str | None, typer.Option("--host", "--listen", help="Address to listen on (127.0.0.1).")]
Port = Annotated[int | None, typer.Option(help="Port to listen on (8080; 0 takes any free one).")]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", help="Built-in or configured model, or a GGUF file; repeatable."),
]
EngineName = Annotated[Engine | None, typer.Option("--engine", help="What computes.")]
Slots = Annotated[int | None, typer.Option(help="Requests at once per loaded model and worker (4).")]
Context = Annotated[int | None, typer.Option("--context", help="Tokens of prompt and output (4096).")]
Profile = Annotated[
    Path | None, typer.Option(help='Measured constants of moves, from which "auto" chooses (moves.profile).')
]
PolicyName = Annotated[
    str | None, typer.Option("--policy", help="Where requests start (live_migration): head.policy.")
]
StoreFile = Annotated[
    Path | None,
    typer.Option("--store", help="SQLite file with what must survive a restart of the head: head.store."),
]
KeepAlive = Annotated[
    float | None,
    typer.Option(metavar="S", help="Unload an instance that has been idle for so many seconds."),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Let everybody in, wherever it listens.")]
Supervised = Annotated[bool, typer.Option("--supervised", hidden=True)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Url = Annotated[str, typer.Option(envvar="GODWIT_URL", help="The head.")]
DEFAULT_URL = "http://127.0.0.1:8080"


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"godwit {__version__}")
        raise typer.Exit


@app.callback()
def _godwit(
    ctx: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """LLM serving whose streams never stop: running requests move between servers."""
    is_server = ctx.invoked_subcommand in ("serve", "head", "worker")
    configure_logs(os.environ.get("GODWIT_LOG", "info" if is_server else "warning"))


@app.command()
def serve(
    workers: Annotated[int, typer.Option(min=0, max=64, help="How many workers.")] = 2,
    model: Models = None,
    config: Config = None,
    assigned: Assigned = None,
    host: Host = None,
    port: Port = None,
    slots: Slots = None,
    context: Context = None,
    engine: EngineName = None,
    profile: Profile = None,
    policy: PolicyName = None,
    store: StoreFile = None,
    keep_alive: KeepAlive = None,
    insecure: Insecure = False,
    logs: Annotated[Path | None, typer.Option(help="Folder for the workers' output.")] = None,
) -> None:
    """Serve models from this machine: a head and its workers, one process each."""
    settings = cli_settings.read_settings(config, assigned or ())
    settings = cli_settings.with_flags(settings, "security", insecure=insecure or None)
    settings = cli_settings.with_flags(settings, "head", host=host, port=port)
    settings = cli_settings.with_scheduling(settings, policy, store, keep_alive)
    settings = cli_settings.with_profile(settings, profile)
    settings = cli_settings.with_flags(settings, "worker", slots=slots, context_tokens=context)
    settings = cli_settings.with_models(settings, model or [], engine)
    cli_settings.check_head(settings)
    cli_settings.check_worker(settings)
    cli_run.run_cluster(settings, workers, logs, Console(stderr=True))


@app.command()
def head(
    config: Config = None,
    assigned: Assigned = None,
    host: Host = None,
    port: Port = None,
    profile: Profile = None,
    policy: PolicyName = None,
    store: StoreFile = None,
    keep_alive: KeepAlive = None,
    insecure: Insecure = False,
    supervised: Supervised = False,
) -> None:
    """Run a head: the OpenAI API, and the workers that join it."""
    if supervised:
        cli_run.run_supervised_head(read_head_order())
        return
    settings = cli_settings.read_settings(config, assigned or ())
    settings = cli_settings.with_flags(settings, "security", insecure=insecure or None)
    settings = cli_settings.with_flags(settings, "head", host=host, port=port)
    settings = cli_settings.with_scheduling(settings, policy, store, keep_alive)
    settings = cli_settings.with_profile(settings, profile)
    cli_settings.check_head(settings)
    cli_run.run_head_alone(settings, Console(stderr=True))


@app.command()
def worker(
    join: Annotated[str | None, typer.Option(metavar="URL", help="The head to join.")] = None,
    name: Annotated[str | None, typer.Option(help="A name of its own in the cluster.")] = None,
    model: Models = None,
    config: Config = None,
    assigned: Assigned = None,
    slots: Slots = None,
    context: Context = None,
    engine: EngineName = None,
    insecure: Insecure = False,
    supervised: Supervised = False,
) -> None:
    """Run a worker that joins a head; GODWIT_JOIN_TOKEN is the head's join token where it has one."""
    if supervised:
        order = read_order()
        cli_run.run_supervised_worker(order.settings, order.join_url, order.name)
        return
    if join is None:
        raise ConfigError("--join: which head? For example: godwit worker --join http://127.0.0.1:8080")
    settings = cli_settings.read_settings(config, assigned or ())
    settings = cli_settings.with_flags(settings, "security", insecure=insecure or None)
    settings = cli_settings.with_flags(settings, "worker", name=name, slots=slots, context_tokens=context)
    settings = cli_settings.with_models(settings, model or [], engine)
    cli_settings.check_worker(settings)
    cli_run.run_worker_alone(settings, cli_settings.head_at(join), cli_settings.worker_name(settings))


@app.command()
def status(
    estimates: Annotated[
        bool,
        typer.Option("--estimates", help="Instead: what loads and moves should take, and who may leave."),
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show workers with their models, requests and the latest moves."""

    async def ask() -> bytes:
        async with AdminClient(url, cli_settings.admin_key()) as client:
            return await (client.estimates_json() if estimates else client.status_json())

    answer = uvloop.run(ask())
    if as_json:
        typer.echo(answer)
    elif estimates:
        cli_tables.show_estimates(Console(), decode(answer, Estimates))
    else:
        cli_tables.show_status(Console(), decode(answer, ClusterStatus))


@app.command()
def costs(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show what moves cost as far as the head knows, and how far its predictions were from what happened."""

    async def ask() -> bytes | CostsReport:
        async with AdminClient(url, cli_settings.admin_key()) as client:
            return await client.costs_json() if as_json else await client.costs()

    answer = uvloop.run(ask())
    if isinstance(answer, bytes):
        typer.echo(answer)
    else:
        cli_tables.show_costs(Console(), answer)


@app.command()
def migrate(
    request: Annotated[str, typer.Argument(help="A running request's id; `godwit status` lists them.")],
    to: Annotated[
        str | None, typer.Option(metavar="WORKER", help="Where it shall go on; without it the head chooses.")
    ] = None,
    method: Annotated[
        Method | None, typer.Option(help="What travels; without it as configured in moves.method.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also where it could go on only approximately, or not for as long."),
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Move a running request to another worker, and wait for the outcome."""

    async def ask() -> bytes:
        async with AdminClient(url, cli_settings.admin_key()) as client:
            with Console(stderr=True).status(f"moving {escape(request)}"):
                return await client.migrate(request, to, method=method, force=force)

    answer = uvloop.run(ask())
    move = move_record(answer)
    typer.echo(answer if as_json else cli_tables.describe_move(move))
    if move.outcome != "done":
        raise typer.Exit(1)


@app.command()
def drain(
    worker: Annotated[str, typer.Argument(help="The worker that shall leave.")],
    deadline: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Seconds until what is left is interrupted.")
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Move all requests off a worker, and let it leave; waits until it has."""
    console = Console(stderr=True)

    async def ask() -> None:
        async with AdminClient(url, cli_settings.admin_key()) as client:
            await client.drain(worker, deadline)
            with console.status(f"draining {escape(worker)}") as progress:
                while (left := _find(await client.status(), worker)) is not None:
                    progress.update(f"draining {escape(worker)}: {left.used} requests left")
                    await asyncio.sleep(_POLL_S)

    uvloop.run(ask())
    console.print(f"{escape(worker)} is drained and has left.")


cli_demo.add_commands(app)
cli_bench.add_commands(app)
cli_calibrate.add_commands(app)
cli_costs.add_commands(app)
cli_models.add_commands(app)
app.add_typer(cli_ray.ray, name="ray")
cli_sim.add_commands(app)
cli_chaos.add_command(cli_sim.sim)


def main() -> None:
    """Run the command line."""
    app()


def _find(status: ClusterStatus, worker: str) -> WorkerStatus | None:
    return next((one for one in status.workers if one.name == worker), None)


def _fail(message: str, *, status: int) -> NoReturn:
    Console(stderr=True).print(f"[red]godwit:[/red] {escape(message)}", soft_wrap=True, highlight=False)
    raise typer.Exit(status)
