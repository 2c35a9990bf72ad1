"""`godwit demo` and `godwit bench …`."""

from pathlib import Path
from typing import Annotated

import typer
import uvloop

from godwit.demo import demo as run_demo_command

bench = typer.Typer(no_args_is_help=True, help="Measure this machine; figures are ratios from one run.")
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Logs = Annotated[Path | None, typer.Option(help="Folder for the workers' output.")]


def add_commands(app: typer.Typer) -> None:
    """Add `demo` and `bench` to the command line."""
    app.command()(demo)
    app.add_typer(bench, name="bench")


def demo(as_json: Json = False, logs: Logs = None) -> None:
    """Move a real model's stream between two workers, kill one, and show that nothing was lost."""
    if not uvloop.run(run_demo_command(as_json, logs)).ok:
        raise typer.Exit(1)
