"""The choice for one move is the cost model's, with what is measured where it is."""

import math

import pytest

from godwit.costs.choice import AUTO, METHODS, MoveCosts
from godwit.costs.constants import Constant, Measurement
from godwit.costs.crossover import Method, MigrationCost, Server, crossover_table, crossover_tokens
from godwit.costs.known import Constants, PairConstants, ServerConstants
from godwit.costs.kv import KvSize
from godwit.costs.shipping import SPLIT_GRAIN_TOKENS

MEASURED = Measurement("a laptop", 9, 0, 1e12)


def constant(value: float) -> Constant:
    return Constant(value, MEASURED)


def server(prefill_tps: float, loaded_tps: float | None = None) -> ServerConstants:
    loaded = None if loaded_tps is None else constant(loaded_tps)
    return ServerConstants(constant(prefill_tps), constant(0.01), loaded, constant(23_000))


def pair(bandwidth: float, loaded: float | None = None) -> PairConstants:
    return PairConstants(constant(0.05), constant(bandwidth), None if loaded is None else constant(loaded))


KNOWN = Constants(
    pair=pair(4e8),
    models={"m": server(150)},
    workers={("slow", "m"): server(50), ("busy", "m"): server(300, 100)},
    pairs={("a", "far"): pair(2e6), ("a", "busy"): pair(4e8, 1e8)},
)


def terms(prefill_tps: float, bandwidth: float) -> tuple[MigrationCost, Server]:
    return MigrationCost(0.05, 0.01, SPLIT_GRAIN_TOKENS), Server(
        prefill_tps, bandwidth, KvSize.linear(23_000)
    )


def test_what_nobody_measured_is_assumed() -> None:
    known = MoveCosts().terms("any", "a", "b")
    assert known.cost == MigrationCost(0.5, 0.2, SPLIT_GRAIN_TOKENS)
    assert known.source == known.destination == Server(250, 1.25e9, KvSize.linear(128_000))


@pytest.mark.parametrize(("source", "destination"), [("a", "b"), ("a", "slow"), ("a", "far"), ("b", "busy")])
def test_the_choice_and_the_crossover_table_change_at_the_same_context(source: str, destination: str) -> None:
    costs = MoveCosts(KNOWN)
    known = costs.terms("m", source, destination)
    column = {"link": known.source.bandwidth_bytes_per_s}
    tokens = crossover_table(known.destination, known.source.kv, known.cost, column)["link"].tokens
    assert tokens == crossover_tokens(known.source, known.destination, known.cost).tokens

    def seconds(method: Method, context_tokens: int) -> float:
        return costs.choose(method, "m", context_tokens, source, destination).seconds

    if math.isinf(tokens):
        assert destination == "far"
        assert costs.choose(AUTO, "m", 3, source, destination).method is Method.TOKENS
        assert seconds(Method.TOKENS, 10**6) < seconds(Method.KV, 10**6)
        return
    below, above = math.ceil(tokens) - 1, math.floor(tokens) + 1
    assert seconds(Method.TOKENS, below) <= seconds(Method.KV, below)
    assert seconds(Method.KV, above) < seconds(Method.TOKENS, above)
    assert costs.choose(AUTO, "m", above, source, destination).method is not Method.TOKENS


@pytest.mark.parametrize("context_tokens", [1, 5, 50, 500, 5000])
@pytest.mark.parametrize(
    ("source", "destination", "prefill_tps", "bandwidth"),
    [("a", "b", 150, 4e8), ("a", "slow", 50, 4e8), ("a", "far", 150, 2e6), ("far", "a", 150, 4e8)],
)
def test_each_pair_and_each_worker_has_its_own_constants(
    context_tokens: int, source: str, destination: str, prefill_tps: float, bandwidth: float
) -> None:
    cost, end = terms(prefill_tps, bandwidth)
    plan = MoveCosts(KNOWN).choose(AUTO, "m", context_tokens, source, destination)
    assert plan.method == cost.planned(context_tokens, end, end).method
    assert plan.seconds == pytest.approx(cost.planned(context_tokens, end, end).seconds)


def test_between_loaded_workers_the_rates_under_load_count_where_they_were_measured() -> None:
    costs = MoveCosts(KNOWN)
    cost, end = terms(100, 1e8)
    loaded = costs.choose("tokens", "m", 900, "a", "busy", both_loaded=True)
    assert loaded.seconds == pytest.approx(cost.recompute(900, end))
    loaded = costs.choose("kv", "m", 900, "a", "busy", both_loaded=True)
    assert loaded.seconds == pytest.approx(cost.kv_transfer(900, end, end))
    assert costs.choose(AUTO, "m", 900, "a", "b", both_loaded=True) == costs.choose(AUTO, "m", 900, "a", "b")


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_method_that_is_asked_for_is_taken_and_predicted(method: str) -> None:
    costs = MoveCosts(KNOWN)
    plan = costs.choose(method, "m", 1000, "a", "b")
    assert plan.method == method and plan.seconds >= costs.choose(AUTO, "m", 1000, "a", "b").seconds


def test_there_is_no_other_method() -> None:
    with pytest.raises(ValueError, match="swim"):
        MoveCosts().choose("swim", "m", 1000, "a", "b")


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="a rate is above 0"):
        PairConstants(bandwidth_bytes_per_s=Constant(0))
    with pytest.raises(ValueError, match="a rate is above 0"):
        ServerConstants(prefill_loaded_tps=Constant(0))
