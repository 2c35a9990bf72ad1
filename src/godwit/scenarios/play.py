"""Run tasks in processes, each a policy and a seed of a scenario, and gather their figures."""

import json
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager

from msgspec import Struct

from godwit.errors import ConfigError, GodwitError
from godwit.scenarios.build import build
from godwit.scenarios.read import Overrides, read_raw, scenario_of
from godwit.sim.cluster import simulate
from godwit.sim.coarse import coarsen, refine
from godwit.sim.metrics import Metrics, measure
from godwit.traces import data_folder


class Task(Struct, frozen=True):
    """One simulation of a built-in scenario with these keys set."""

    scenario: str
    policy: str
    seed: int
    overrides: Overrides = ()

    @property
    def command(self) -> str:
        """What runs it alone."""
        # JSON's texts, numbers and lists are TOML's.
        settings = [f"--set {shlex.quote(f'{key}={json.dumps(value)}')}" for key, value in self.overrides]
        seed = f"--first-seed {self.seed} --seeds 1"
        return " ".join(["godwit sim", self.scenario, f"--policy {self.policy}", seed, *settings])


class RunFailedError(GodwitError):
    """A simulation ended with an exception: a bug, for which the message says how to see it again."""

    code = "run_failed"


def play_one(task: Task) -> Metrics:
    """Simulate one task, and count."""
    scenario = scenario_of(read_raw(task.scenario), task.overrides)
    run = build(scenario, task.policy, task.seed, data_folder())
    grain = scenario.world.grain
    outcome = refine(simulate(coarsen(run, grain)), run, grain)
    workload = scenario.workload
    return measure(outcome, scenario.slo, workload.warm_up_s, workload.counted_s, run.timeout_s)


def play(tasks: Sequence[Task], executor: Executor, done: Callable[[], None] = lambda: None) -> list[Metrics]:
    """All tasks' figures, in their order; `done` is called after each one.

    RunFailedError names the task that failed first; the others are still with the executor then.
    """
    with _interrupts_held_back():
        futures = [executor.submit(play_one, task) for task in tasks]
    numbers = {future: number for number, future in enumerate(futures)}
    for future in as_completed(futures):
        if (problem := future.exception()) is not None:
            raise _failure(tasks[numbers[future]], problem) from problem
        done()
    return [future.result() for future in futures]


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Processes that begin here are deaf to Ctrl-C, which a terminal sends them too: their parent ends them.

    They have it from their first instruction on, and the parent hears what came meanwhile a moment later.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _failure(task: Task, problem: BaseException) -> GodwitError:
    if isinstance(problem, ConfigError):
        return problem
    return RunFailedError(
        f"{task.scenario}, policy {task.policy}, seed {task.seed}: {type(problem).__name__}: {problem}; "
        f"to see it again: {task.command}"
    )
