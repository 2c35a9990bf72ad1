"""Which simulations there are, and that none is made twice."""

import tomllib

import pytest

from godwit.errors import ConfigError
from godwit.scenarios.plan import Options, Sweep, plan, tasks_of
from tests.scenarios.small import FLEET, TOML

RAW, FLEET_RAW = tomllib.loads(TOML), tomllib.loads(FLEET)


def test_each_case_and_policy_is_a_cell() -> None:
    cells = plan(RAW, Options("own.toml"))
    rates = [(cell.scenario.workload.rate_per_s, cell.policy) for cell in cells]
    assert rates == [(rate, policy) for rate in (0.1, 0.2) for policy in ("random", "live_migration")]
    tasks, places = tasks_of(cells, Options("own.toml", seeds=(4, 5)))
    assert [task.seed for task in tasks] == [4, 5] * 4
    assert places == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_what_is_set_is_not_varied() -> None:
    cells = plan(RAW, Options("own.toml", ("random",), overrides=(("workload.rate_per_s", 0.3),)))
    assert [cell.scenario.workload.rate_per_s for cell in cells] == [0.3]


@pytest.mark.parametrize(("sweep", "settings"), [(Sweep.EACH, 4), (Sweep.ALL, 4)])
def test_a_sweep(sweep: Sweep, settings: int) -> None:
    cells = plan(RAW, Options("own.toml", ("random",), sweep=sweep))
    swept = [cell.setting for cell in cells if cell.part == "sweep"]
    assert len(swept) == settings * 2
    assert {len(setting) for setting in swept} == {1 if sweep is Sweep.EACH else 2}


def test_what_is_the_same_is_simulated_once() -> None:
    options = Options("own.toml", ("random",), seeds=(0,), sweep=Sweep.EACH)
    cells = plan(RAW, options)
    tasks, places = tasks_of(cells, options)
    # Of two rates the main part, and a slower SSD and a smaller cache; 5 GB/s and 20 GB are the main part's.
    assert (len(cells), len(tasks)) == (10, 6)
    assert all(len(numbers) == 1 for numbers in places)


def test_ablations_are_of_their_policies_only() -> None:
    options = Options("own.toml", seeds=(0,), has_ablations=True)
    cells = plan(FLEET_RAW, options)
    ablations = [(cell.policy, *cell.setting.values()) for cell in cells if cell.part == "ablations"]
    assert ablations == [("window", 0), ("window", 20)]


def test_an_unknown_policy() -> None:
    with pytest.raises(ConfigError, match="no policy 'bla'; choose one of: random, live_migration"):
        plan(RAW, Options("own.toml", ("bla",)))
