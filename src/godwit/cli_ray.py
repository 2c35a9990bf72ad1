"""`godwit ray`: Godwit on the nodes of a Ray cluster."""

import importlib.util
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from godwit import cli_run, cli_settings
from godwit.config import check_listen, is_loopback
from godwit.errors import ConfigError, ConflictError, LinkError, UnavailableError
from godwit.fleet.plan import FleetPlan, Node, has_resources, head_on, head_url, read_resources

START_S = 60.0
STOP_S = 60.0
POLL_S = 0.2

ray = typer.Typer(no_args_is_help=True, help="Run Godwit on the nodes of a Ray cluster.")
Address = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The Ray cluster; without it the one of this node.")
]


class HeadPlace(StrEnum):
    """Where the head runs: kept by a detached actor of Ray, or in this process until Ctrl-C."""

    ACTOR = "actor"
    DRIVER = "driver"


@ray.command()
def up(
    address: Address = None,
    config: Annotated[Path | None, typer.Option(help="Settings in TOML; flags win over them.")] = None,
    assigned: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, as in head.port=80.")
    ] = None,
    resource: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=AMOUNT", help="What a node must have to get a worker; repeatable."),
    ] = None,
    head: Annotated[HeadPlace, typer.Option(help="What keeps the head.")] = HeadPlace.ACTOR,
    join: Annotated[
        str | None, typer.Option(metavar="URL", help="How workers reach the head, if not at its node.")
    ] = None,
) -> None:
    """Start a head, and a worker on each node that has the resources, now and in future."""
    _need_ray()
    from godwit.fleet import rays

    settings = cli_settings.read_settings(config, assigned or ())
    cli_settings.check_choices(settings)
    if settings.head.port == 0:
        raise ConfigError("head.port: 0 is no port that workers find again after a restart; name one")
    is_detached = head is HeadPlace.ACTOR
    join = None if join is None else cli_settings.head_at(join)
    plan = FleetPlan(settings, read_resources(resource or []), join, is_detached)
    rays.connect(address)
    try:
        if there := sorted(rays.actors()):
            raise ConflictError(
                f"Godwit is up on this Ray cluster ({there[0]}); stop it with `godwit ray down`"
            )
        nodes = rays.nodes()
        node = (
            next((one for one in nodes if rays.HEAD_NODE in one.resources), nodes[0])
            if is_detached
            else rays.here()
        )
        check_reach(plan, node)
        if node.id == rays.here().id:
            cli_settings.check_head_files(settings)
        if is_detached:
            _start(plan, node, nodes, Console(stderr=True))
        else:
            _run(plan, node, nodes, Console(stderr=True))
    finally:
        rays.disconnect()


@ray.command()
def down(address: Address = None) -> None:
    """Stop the head and all workers; streams that run end with an error."""
    _need_ray()
    from godwit.fleet import rays

    console = Console(stderr=True)
    rays.connect(address)
    try:
        names = sorted(rays.actors())
        if rays.HEAD in names:
            with console.status("stopping the head and its workers"):
                try:
                    rays.ask(rays.HEAD, "stop", STOP_S)
                except LinkError as error:
                    console.print(f"[red]{escape(error.message)}[/red]")
        for name in names:
            rays.kill(name)
    finally:
        rays.disconnect()
    console.print(f"Stopped: {', '.join(names)}." if names else "Godwit does not run on this Ray cluster.")
    if names and rays.HEAD not in names:
        console.print("Where `godwit ray up --head driver` runs, it starts them again: end it with Ctrl-C.")


def check_reach(plan: FleetPlan, node: Node) -> None:
    """Refuse a head that others can reach without keys, or that its own controller could not order about."""
    settings = head_on(plan, node.address)
    check_listen("head.host", settings.head.host, settings.security, serves_clients=True)
    if settings.security.admin_key is None and not is_loopback(settings.head.host):
        raise ConfigError(
            "security.admin_key (or GODWIT_ADMIN_KEY): missing; drains of Ray's nodes are asked for with it"
        )


def _need_ray() -> None:
    """Godwit works without Ray, so what imports it is imported where it is needed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("godwit ray needs Ray: pip install 'godwit[ray]'")


def _start(plan: FleetPlan, node: Node, nodes: list[Node], console: Console) -> None:
    from godwit.fleet import rays
    from godwit.fleet.headactor import HeadActor

    rays.start_head(HeadActor, plan)
    with console.status(f"starting the head at {node.address}"):
        _until_listening()
    _show(head_url(plan, node.address), plan, nodes, console)
    console.print("Stop it with: godwit ray down", highlight=False)


def _until_listening() -> None:
    from godwit.fleet import rays

    end = time.monotonic() + START_S
    while True:
        try:
            state = rays.ask(rays.HEAD, "state")
            if state.is_listening:
                return
            problem = state.problem
        except LinkError as error:
            problem = error.message
        if time.monotonic() > end:
            raise UnavailableError(
                f"the head does not listen after {START_S:.0f} s; it is tried again until `godwit ray down`. "
                f"What is known:\n{problem or 'nothing yet'}"
            )
        time.sleep(POLL_S)  # an actor tells nobody that its head listens; it is asked


def _run(plan: FleetPlan, node: Node, nodes: list[Node], console: Console) -> None:
    from godwit.fleet.controller import watch

    # Where it listens is not always where workers reach it: at any address, behind a name.
    url = head_url(plan, node.address)

    def ready(_: str) -> None:
        _show(url, plan, nodes, console)
        console.print("Ctrl-C stops it.", highlight=False)

    cli_run.run_head_with(head_on(plan, node.address), lambda _: watch(plan, url), ready)


def _show(url: str, plan: FleetPlan, nodes: list[Node], console: Console) -> None:
    names = ", ".join(node.worker for node in nodes if has_resources(node, plan.wanted)) or "none yet"
    for line in (
        f"Godwit serves on {url}/v1; workers that start: {names}.",
        f"See how far they are with: godwit status --url {url}",
    ):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
