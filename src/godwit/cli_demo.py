"""`godwit demo` and `godwit demo figure3`."""

import signal
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.console import Console
from rich.markup import escape

from godwit.demo import demo as run_demo_command
from godwit.errors import ConfigError
from godwit.figure3.play import play
from godwit.figure3.plot import check_plot, save_plot
from godwit.figure3.report import Emulated, Figure3Report
from godwit.figure3.scene import Scene, open_stage
from godwit.figure3.show import show_report

demo_app = typer.Typer(invoke_without_command=True)
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Logs = Annotated[Path | None, typer.Option(help="Folder for the workers' output.")]
_DEFAULTS = Scene().emulated


def add_commands(app: typer.Typer) -> None:
    """Add `demo` to the command line."""
    app.add_typer(demo_app, name="demo")


@demo_app.callback()
def demo(ctx: typer.Context, as_json: Json = False, logs: Logs = None) -> None:
    """Move a real model's stream between two workers, kill one, and show that nothing was lost."""
    if ctx.invoked_subcommand is not None:
        if as_json or logs is not None:
            raise ConfigError(f"demo {ctx.invoked_subcommand}: its options go behind its name")
        return
    if not uvloop.run(run_demo_command(as_json, logs)).ok:
        raise typer.Exit(1)


@demo_app.command()
def figure3(
    repeat: Annotated[int, typer.Option(min=1, max=100, help="Runs under each policy.")] = 1,
    ssd_mb_per_s: Annotated[
        float, typer.Option(min=0.01, max=100_000, help="Emulated: how fast models come from SSD.")
    ] = _DEFAULTS.ssd_mb_per_s,
    dram_mb_per_s: Annotated[
        float, typer.Option(min=0.01, max=100_000, help="Emulated: how fast models come from DRAM.")
    ] = _DEFAULTS.dram_mb_per_s,
    plot: Annotated[Path | None, typer.Option(help="Draw the timelines into this file.")] = None,
    as_json: Json = False,
    logs: Logs = None,
) -> None:
    """A server has a request's model near but is busy, another one has it far: four policies compared."""
    if plot is not None:
        check_plot(plot)
    scene = Scene(emulated=Emulated(ssd_mb_per_s, dram_mb_per_s))
    report = _play(scene, repeat, logs)
    if plot is not None:
        save_plot(report, plot)
        Console(stderr=True).print(f"drawn into {escape(str(plot))}", soft_wrap=True, highlight=False)
    if as_json:
        typer.echo(msgspec.json.encode(report))
    else:
        show_report(Console(), report)
    if not report.ok:
        raise typer.Exit(1)


def _play(scene: Scene, repeat: int, logs: Path | None) -> Figure3Report:
    # A gigabyte of copies must not stay behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    waiting = Console(stderr=True).status("copying the models, so that each server has its own")
    with waiting as status, open_stage(scene) as stage:
        return uvloop.run(play(stage, status.update, repeat=repeat, logs=logs))
