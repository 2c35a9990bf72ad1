"""What the commands share that work in many processes at once."""

import multiprocessing
import os
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Jobs = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Processes at once (as many as there are CPUs).")
]
# Spawned, since a fork would copy the progress bar's thread in the middle of what it does.
SPAWN = multiprocessing.get_context("spawn")


def num_processes(jobs: int | None, num_tasks: int) -> int:
    """How many processes so many tasks get: `jobs`, None: as many as there are CPUs."""
    return min(jobs or os.cpu_count() or 1, num_tasks)


def progress_bar(console: Console) -> Progress:
    """How many tasks are done; nothing where no terminal is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)
