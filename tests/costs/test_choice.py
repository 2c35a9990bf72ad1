"""The choice for one move is the cost model's, with what is measured where it is."""

import pytest

from godwit.costs.choice import ASSUMED_SERVER, AUTO, METHODS, MoveCosts
from godwit.costs.crossover import Method, MigrationCost, Server, crossover_tokens
from godwit.costs.kv import KvSize

COST = MigrationCost(0.05, 0.01)
MEASURED = Server(150.0, 4e8, KvSize.linear(23_000))
COSTS = MoveCosts(COST, {"measured": MEASURED})


def test_auto_ships_no_kv_below_the_crossover_and_some_above() -> None:
    tokens = crossover_tokens(ASSUMED_SERVER, ASSUMED_SERVER, MoveCosts().cost).tokens
    assert MoveCosts().choose(AUTO, "any", int(tokens / 2)).method is Method.TOKENS
    assert MoveCosts().choose(AUTO, "any", int(tokens * 2)).method is not Method.TOKENS


@pytest.mark.parametrize("context_tokens", [1, 5, 50, 500, 5000])
def test_a_measured_model_is_chosen_for_by_its_own_constants(context_tokens: int) -> None:
    assert COSTS.choose(AUTO, "measured", context_tokens) == COST.planned(context_tokens, MEASURED, MEASURED)


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_method_that_is_asked_for_is_taken_and_predicted(method: str) -> None:
    plan = COSTS.choose(method, "measured", 1000)
    assert plan.method == method and plan.seconds >= COSTS.choose(AUTO, "measured", 1000).seconds


def test_there_is_no_other_method() -> None:
    with pytest.raises(ValueError, match="swim"):
        COSTS.choose("swim", "measured", 1000)
