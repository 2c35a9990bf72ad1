"""Which simulations a report needs: cases, policies and seeds, and what is varied beside them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import product
from typing import Any

import msgspec
from msgspec import Struct

from godwit.errors import ConfigError
from godwit.scenarios.play import Task
from godwit.scenarios.read import Overrides, Raw, head_of, scenario_of
from godwit.scenarios.schema import Scenario
from godwit.sim.metrics import Metrics


class Sweep(StrEnum):
    """How the constants that nobody knows are varied."""

    NONE = "none"
    EACH = "each"
    ALL = "all"


class Options(Struct, frozen=True):
    """What the command line says. `policies` empty: all of the scenario's."""

    scenario: str
    policies: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    overrides: Overrides = ()
    sweep: Sweep = Sweep.NONE
    has_ablations: bool = False


class Cell(Struct, frozen=True):
    """One row to be: a policy in a case. `setting` is what --sweep or --ablations varied, if they did."""

    part: str
    policy: str
    scenario: Scenario
    overrides: Overrides
    setting: dict[str, Any]

    @property
    def group(self) -> bytes:
        """The same for all policies in the same case and setting of the same part."""
        return msgspec.json.encode((self.part, self.overrides))

    @property
    def input(self) -> bytes:
        """All that its runs depend on, besides seeds."""
        one = self.scenario
        head = head_of(one, self.policy)
        return msgspec.json.encode((one.models, one.machines, one.workload, one.world, one.slo, head))


class Row(Struct, frozen=True):
    """A cell with its figures, one for each seed, in their order."""

    cell: Cell
    runs: tuple[Metrics, ...]


def plan(raw: Raw, options: Options) -> list[Cell]:
    """All cells, the main part first; ConfigError for a policy that the scenario has not."""
    scenario = scenario_of(raw, options.overrides)
    policies = options.policies or tuple(scenario.policies)
    for policy in policies:
        head_of(scenario, policy)
    cells = _cells(raw, scenario, options, "main", policies, [()])
    cells += _cells(raw, scenario, options, "sweep", policies, _sweep(scenario, options))
    if options.has_ablations:
        varied = [((key, value),) for key, values in scenario.ablations.keys.items() for value in values]
        chosen = tuple(one for one in scenario.ablations.policies or policies if one in policies)
        if varied and not chosen:
            about = ", ".join(scenario.ablations.policies)
            raise ConfigError(f"--ablations: those of this scenario are of the policies: {about}")
        cells += _cells(raw, scenario, options, "ablations", chosen, varied)
    return cells


def tasks_of(cells: Sequence[Cell], options: Options) -> tuple[list[Task], list[list[int]]]:
    """The tasks, and for each cell which of them are its seeds. What is the same is simulated once."""
    tasks: list[Task] = []
    known: dict[bytes, list[int]] = {}
    places = []
    for cell in cells:
        key = cell.input
        if key not in known:
            known[key] = list(range(len(tasks), len(tasks) + len(options.seeds)))
            tasks += [Task(options.scenario, cell.policy, seed, cell.overrides) for seed in options.seeds]
        places.append(known[key])
    return tasks, places


def rows_of(cells: Sequence[Cell], places: Sequence[Sequence[int]], found: Sequence[Metrics]) -> list[Row]:
    """The cells with what their tasks have found."""
    return [
        Row(cell, tuple(found[number] for number in numbers))
        for cell, numbers in zip(cells, places, strict=True)
    ]


def _cells(
    raw: Raw,
    scenario: Scenario,
    options: Options,
    part: str,
    policies: Iterable[str],
    settings: Iterable[Overrides],
) -> list[Cell]:
    cells = []
    for setting in settings:
        for case in _cases(scenario, (*options.overrides, *setting)):
            overrides = (*options.overrides, *case, *setting)
            made = scenario_of(raw, overrides)
            cells += [Cell(part, policy, made, overrides, dict(setting)) for policy in policies]
    return cells


def _cases(scenario: Scenario, said: Overrides) -> list[Overrides]:
    """All combinations; a key that somebody has set has that one value."""
    keys = {key for key, _ in said}
    return _products({key: values for key, values in scenario.cases.items() if key not in keys})


def _sweep(scenario: Scenario, options: Options) -> list[Overrides]:
    match options.sweep:
        case Sweep.NONE:
            return []
        case Sweep.EACH:
            return [((key, value),) for key, values in scenario.sweep.items() for value in values]
        case Sweep.ALL:
            return _products(scenario.sweep)


def _products(axes: Mapping[str, Sequence[Any]]) -> list[Overrides]:
    return [tuple(zip(axes, values, strict=True)) for values in product(*axes.values())]
