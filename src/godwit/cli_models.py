"""`godwit models`, `explain` and `events`: what is served where, and why the scheduler does what it does."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from godwit import cli_settings
from godwit.cli_tables import make_table, show_emulation, size_of
from godwit.client import AdminClient, Explained, ModelAnswers, Models, decode
from godwit.config import ModelSettings, Option, Settings, check_settings
from godwit.errors import ConfigError
from godwit.scheduling.eventlog import LogEntry
from godwit.scheduling.explain import Explanation

OUTCOMES = ("Loaded", "MoveEnded", "FailoverEnded")
DEFAULT_URL = "http://127.0.0.1:8080"


class Engine(StrEnum):
    """What computes."""

    LLAMACPP = "llamacpp"
    FAKE = "fake"


class EventLine(LogEntry, frozen=True, kw_only=True):
    """One line of GET /admin/events: an entry of the log with its wall-clock time, ISO 8601 in UTC."""

    at: str


Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Url = Annotated[str, typer.Option(envvar="GODWIT_URL", help="The head.")]
Name = Annotated[str, typer.Argument(help="A model's name; `godwit models list` shows those that there are.")]

models = typer.Typer(no_args_is_help=True, help="List, add, remove and pin the models of a running cluster.")


def add_commands(app: typer.Typer) -> None:
    """Add `models`, `explain` and `events` to the command line."""
    app.add_typer(models, name="models")
    app.command()(explain)
    app.command()(events)


@models.command(name="list")
def list_all(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show every model, where its checkpoint is, and where it is loaded."""

    async def ask() -> bytes:
        async with AdminClient(url, cli_settings.admin_key()) as client:
            return await client.models_json()

    answer = uvloop.run(ask())
    if as_json:
        typer.echo(answer)
    else:
        show_models(Console(), decode(answer, Models))


@models.command()
def add(
    name: Annotated[str, typer.Argument(help="What clients ask for; a built-in model needs nothing more.")],
    path: Annotated[Path | None, typer.Option(help="A GGUF file on the workers' machines.")] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="Fetched when it is first loaded.")
    ] = None,
    sha256: Annotated[str | None, typer.Option(help="What the fetched file must have.")] = None,
    engine: Annotated[Engine, typer.Option(help="What computes.")] = Engine.LLAMACPP,
    chat_template: Annotated[Path | None, typer.Option(help="A file with a jinja template.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="The engine's own option; repeatable.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Have all workers serve one more model, which is loaded when it is first asked for; waits until they
    can."""
    model = ModelSettings(
        name=name,
        path=None if path is None else str(path.absolute()),
        url=source,
        sha256=sha256,
        preload="none",
        engine=engine.value,
        chat_template=None if chat_template is None else _text(chat_template),
        options=dict(_option(one) for one in option or ()),
    )
    model = check_settings(Settings(models=(model,))).models[0]

    async def ask() -> bytes:
        async with AdminClient(url, cli_settings.admin_key()) as client:
            with Console(stderr=True).status(f"adding {name}"):
                return await client.add_model(model)

    _show_answers(uvloop.run(ask()), "added to", as_json)


@models.command()
def rm(name: Name, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Have all workers forget a model that was added."""

    async def ask() -> bytes:
        async with AdminClient(url, cli_settings.admin_key()) as client:
            return await client.remove_model(name)

    if _show_answers(uvloop.run(ask()), "removed from", as_json):
        raise typer.Exit(1)


@models.command()
def pin(
    name: Name,
    off: Annotated[bool, typer.Option("--off", help="Let it be evicted again.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Keep a model loaded where it is loaded, however much its memory is needed."""

    async def ask() -> None:
        async with AdminClient(url, cli_settings.admin_key()) as client:
            await client.pin(name, is_pinned=not off)

    uvloop.run(ask())
    typer.echo(f"{name} is {'not pinned any more' if off else 'pinned'}")


def explain(
    model: Annotated[str, typer.Argument(help="A model's name.")],
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show where a request for a model would start now, what the other workers would take, and why."""

    async def ask() -> bytes:
        async with AdminClient(url, cli_settings.admin_key()) as client:
            return await client.explain_json(model)

    answer = uvloop.run(ask())
    if as_json:
        typer.echo(answer)
        return
    explained = decode(answer, Explained)
    show_explanation(Console(), explained.explanation)
    show_emulation(Console(), explained.emulated_tiers)


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with those to come.")] = False,
    since: Annotated[int, typer.Option(min=0, metavar="N", help="Only those after this number.")] = 0,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show what the scheduler decided, why, and what came of it."""

    async def ask() -> None:
        async with AdminClient(url, cli_settings.admin_key()) as client:
            show_emulation(Console(stderr=True), (await client.status()).emulated_tiers)
            async for line in client.events(since, follow=follow):
                typer.echo(line.rstrip(b"\n") if as_json else describe_event(decode(line, EventLine)))

    uvloop.run(ask())


def describe_event(event: EventLine) -> str:
    """One line about a decision, or about what came of one."""
    places = [event.worker or "", f"→ {event.destination}" if event.destination else ""]
    about = [event.request or "", event.model or "", *places]
    subject = " ".join(part for part in about if part)
    reason = f": {event.reason}" if event.reason else ""
    what = "took" if event.kind in OUTCOMES else "expected"
    took = "" if event.seconds is None else f" ({what} {event.seconds:.2f} s)"
    return f"{event.seq} {event.at} {event.kind} {subject}{reason}{took}"


def show_explanation(console: Console, explanation: Explanation) -> None:
    """What the policy would do now, and a line for each worker that serves the model."""
    title = f"{explanation.model} by {explanation.policy}: {escape(explanation.text)}"
    table = make_table(title, "worker", "from", "seconds", "MB/s", "what it would take")
    for row in explanation.rows:
        seconds = "-" if row.seconds is None else f"{row.seconds:.2f}"
        rate = "-" if row.bandwidth_bytes_per_s is None else f"{row.bandwidth_bytes_per_s / 1e6:,.0f}"
        worker = f"{row.worker} (chosen)" if row.is_chosen else row.worker
        table.add_row(worker, row.tier, seconds, rate, escape(row.text))
    console.print(table)


def show_models(console: Console, answer: Models) -> None:
    """A line for each model on each worker."""
    if not answer.models:
        console.print("There is no model: no worker is connected, and none was added.")
        return
    console.print(_models_table(answer))
    show_emulation(console, answer.emulated_tiers)


def _models_table(answer: Models) -> Table:
    table = make_table("Models", "name", "from", "worker", "is", "running", "device", "checkpoint")
    for model in answer.models:
        origin = ("added" if model.is_added else "configured") + (", pinned" if model.is_pinned else "")
        if not model.places:
            table.add_row(model.name, origin, "-", "on no worker", "-", "-", "-")
        for place in model.places:
            where = f"loading from {place.tier}" if place.is_loading else f"in {place.tier}"
            state = f"loaded, {where}" if place.is_loaded else where
            sizes = (size_of(place.device_bytes), size_of(place.checkpoint_bytes))
            table.add_row(model.name, origin, place.worker, state, str(place.num_running), *sizes)
    return table


def _show_answers(content: bytes, verb: str, as_json: bool) -> bool:
    """Print what the workers said; gives whether one of them refused."""
    answers = decode(content, ModelAnswers)
    refused = {worker: reason for worker, reason in answers.workers.items() if reason is not None}
    if as_json:
        typer.echo(content)
        return bool(refused)
    done = [worker for worker in answers.workers if worker not in refused]
    typer.echo(f"{answers.model}: {verb} {', '.join(done) or 'no worker'}")
    for worker, reason in refused.items():
        typer.echo(f"{answers.model}: not {verb} {worker}: {reason}", err=True)
    return bool(refused)


def _option(text: str) -> tuple[str, Option]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--option: KEY=VALUE, not {text!r}")
    try:
        return key, msgspec.json.decode(value, type=bool | int | float)
    except msgspec.MsgspecError:
        return key, value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template: {path} cannot be read: {error}") from error
