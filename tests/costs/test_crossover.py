"""Transfer, recompute or both: the formulas against reference values and against trying everything."""

import math
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from godwit.costs.crossover import (
    LINKS,
    Crossover,
    Method,
    MigrationCost,
    Server,
    TransferWins,
    crossover_table,
    crossover_tokens,
)
from godwit.costs.kv import KvSize
from tests.costs.situations import CONTEXTS, OVERHEADS_S, PREFILLS_TPS, costs, linear_kvs, servers

KV = KvSize.linear(128_000)
ASSUMED = MigrationCost(transfer_overhead_s=0.5, recompute_overhead_s=0.2)
WHOLE = (Method.TOKENS, Method.KV)


def _destination(prefill_tps: float) -> Server:
    return Server(prefill_tps, math.inf, KV)


@pytest.mark.parametrize(
    ("prefill_tps", "lan", "rdma", "tolerance"), [(3000, 1299, 914, 2), (250, 77, 75, 1)]
)
def test_the_reference_values(prefill_tps: float, lan: float, rdma: float, tolerance: float) -> None:
    table = crossover_table(_destination(prefill_tps), 128_000, ASSUMED, LINKS)
    assert list(table) == ["wan", "lan", "rdma"]
    assert (table["wan"].wins, table["wan"].tokens) == (TransferWins.NEVER, math.inf)
    assert {table[link].wins for link in ("lan", "rdma")} == {TransferWins.ABOVE}
    assert table["lan"].tokens == pytest.approx(lan, abs=tolerance)
    assert table["rdma"].tokens == pytest.approx(rdma, abs=tolerance)


def test_units_are_seconds_tokens_and_bytes() -> None:
    source = Server(1000, LINKS["wan"], KV)
    destination = Server(250, LINKS["lan"], KV)
    # 1,000 tokens are 128 MB = 1,024 Mbit, over 100 Mbit/s; and 1,000 tokens at 250 a second.
    assert ASSUMED.kv_transfer(1000, source, destination) == pytest.approx(0.5 + 10.24)
    assert ASSUMED.recompute(1000, destination) == pytest.approx(0.2 + 4)


@pytest.mark.parametrize(("near", "far"), [("rdma", "wan"), ("wan", "rdma")])
def test_the_slower_end_of_a_link_decides(near: str, far: str) -> None:
    source, destination = Server(250, LINKS[near], KV), Server(250, LINKS[far], KV)
    slow = Server(250, LINKS["wan"], KV)
    assert ASSUMED.kv_transfer(1000, source, destination) == ASSUMED.kv_transfer(1000, slow, slow)
    assert crossover_tokens(source, destination, ASSUMED).wins is TransferWins.NEVER
    table = crossover_table(destination, KV, ASSUMED, {"link": LINKS[near]})
    assert table["link"].wins is TransferWins.NEVER


@pytest.mark.parametrize("prefill_tps", [3000.0, 250.0, 100.0])
@pytest.mark.parametrize("link", sorted(LINKS))
def test_the_rule_changes_its_mind_where_the_table_says(prefill_tps: float, link: str) -> None:
    source, destination = Server(prefill_tps, LINKS[link], KV), _destination(prefill_tps)
    answer = crossover_table(destination, KV, ASSUMED, LINKS)[link]
    if answer.wins is TransferWins.NEVER:
        assert ASSUMED.planned(10**9, source, destination, WHOLE).method is Method.TOKENS
        return
    below, above = math.floor(answer.tokens), math.floor(answer.tokens) + 1
    assert ASSUMED.planned(below, source, destination, WHOLE).method is Method.TOKENS
    assert ASSUMED.planned(above, source, destination, WHOLE).method is Method.KV


@pytest.mark.parametrize(
    ("overheads_s", "bandwidth", "wins", "tokens"),
    [
        ((0.5, 0.2), 12.8e6, TransferWins.NEVER, math.inf),  # slower per token, and later to start
        ((0.5, 0.2), 25.6e6, TransferWins.NEVER, math.inf),  # as fast per token
        ((0.2, 0.2), 25.6e6, TransferWins.NEVER, math.inf),  # the same in everything: ship less
        ((0.2, 0.5), 25.6e6, TransferWins.ALWAYS, 0),  # as fast per token, and sooner to start
        ((0.2, 0.2), 51.2e6, TransferWins.ALWAYS, 0),
        ((0.2, 0.5), 51.2e6, TransferWins.ALWAYS, 0),
        ((0.5, 0.2), 51.2e6, TransferWins.ABOVE, 120),
        ((0.2, 0.5), 12.8e6, TransferWins.BELOW, 60),
    ],
)
def test_every_case_has_its_name(
    overheads_s: tuple[float, float], bandwidth: float, wins: TransferWins, tokens: float
) -> None:
    # 5 ms a token to recompute; 10, 5 and 2.5 ms a token to ship.
    answer = crossover_tokens(Server(200, bandwidth, KV), _destination(200), MigrationCost(*overheads_s))
    assert answer.wins is wins
    assert answer.tokens == pytest.approx(tokens)


def test_a_sliding_window_can_make_recompute_win_in_the_middle_only() -> None:
    kv = KvSize.measured([(100, 1e8), (1000, 1.9e8)])
    answer = crossover_tokens(Server(500, 1e8, kv), Server(500, 1e8, kv), MigrationCost(0.2, 0.8))
    # Shipping: 0.2 s, then 10 ms a token up to 100 tokens, then 1 ms. Recompute: 0.8 s, 2 ms a token.
    assert answer.wins is TransferWins.IN_RANGES
    assert [bound for span in answer.ranges for bound in span] == pytest.approx([0, 75, 300, math.inf])
    assert answer.tokens == pytest.approx(300)


@given(source=servers, destination=servers, cost=costs)
def test_the_crossover_is_where_the_two_lines_cross(
    source: Server, destination: Server, cost: MigrationCost
) -> None:
    answer = crossover_tokens(source, destination, cost)
    for context in range(0, 2000, 7):
        transfer_s = cost.kv_transfer(context, source, destination)
        recompute_s = cost.recompute(context, destination)
        if not math.isclose(transfer_s, recompute_s, rel_tol=1e-9):
            is_inside = any(start <= context < end for start, end in answer.ranges)
            assert is_inside == (transfer_s < recompute_s)


@given(overheads_s=st.tuples(OVERHEADS_S, OVERHEADS_S), prefill_tps=PREFILLS_TPS, kv=linear_kvs)
def test_a_linear_crossover_is_the_formula(
    overheads_s: tuple[float, float], prefill_tps: float, kv: KvSize
) -> None:
    source, destination = Server(prefill_tps, 1e8, kv), Server(prefill_tps, 1e8, kv)
    answer = crossover_tokens(source, destination, MigrationCost(*overheads_s))
    numerator = overheads_s[0] - overheads_s[1]
    denominator = 1 / prefill_tps - kv.bytes(0, 1) / 1e8
    if answer.wins in (TransferWins.ABOVE, TransferWins.BELOW):
        assert answer.tokens == pytest.approx(numerator / denominator)
        assert (answer.wins is TransferWins.ABOVE) == (denominator > 0)
    else:
        assert min(numerator, denominator) <= 0 <= max(numerator, denominator)


@given(context=CONTEXTS, source=servers, destination=servers, cost=costs)
def test_nothing_is_cheaper_than_the_plan(
    context: int, source: Server, destination: Server, cost: MigrationCost
) -> None:
    transfer_s = cost.kv_transfer(context, source, destination)
    recompute_s = cost.recompute(context, destination)
    grain_s = cost.split_grain_tokens / destination.prefill_tps
    splits = {
        shipped: max(
            cost.kv_transfer(shipped, source, destination),
            cost.recompute(context - shipped, destination),
        )
        + grain_s
        for shipped in range(1, context)
    }
    ends = [recompute_s, transfer_s]
    plan = cost.planned(context, source, destination)
    assert plan.seconds == min(*ends, *splits.values())
    split = cost.split(context, source, destination)
    assert split.seconds == plan.seconds
    if split.shipped_tokens in splits:
        assert split.seconds == splits[split.shipped_tokens]
    else:
        assert split.seconds in ends and split.shipped_tokens in (0, context)


@given(context=CONTEXTS, source=servers, destination=servers, cost=costs)
def test_a_split_is_never_worse_unless_one_side_has_nothing_to_carry(
    context: int, source: Server, destination: Server, cost: MigrationCost
) -> None:
    split = cost.split(context, source, destination)
    best_s = min(cost.kv_transfer(context, source, destination), cost.recompute(context, destination))
    overhead_s = max(cost.transfer_overhead_s, cost.recompute_overhead_s)
    assert split.seconds <= max(best_s, overhead_s)
    if cost.planned(context, source, destination).method is Method.SPLIT:
        assert 0 < split.shipped_tokens < context
        assert split.seconds <= best_s


@given(context=st.integers(1, 100_000), prefill_tps=PREFILLS_TPS, cost=costs, kv=linear_kvs)
def test_a_linear_split_is_where_the_formula_says(
    context: int, prefill_tps: float, cost: MigrationCost, kv: KvSize
) -> None:
    server = Server(prefill_tps, 1e8, kv)
    per_token_s = kv.bytes(0, 1) / 1e8
    balanced = (context / prefill_tps + cost.recompute_overhead_s - cost.transfer_overhead_s) / (
        1 / prefill_tps + per_token_s
    )
    assume(0 < balanced < context and cost.split_grain_tokens == 0)
    assert abs(cost.split(context, server, server).shipped_tokens - balanced) <= 1


def test_two_equal_rates_add_up() -> None:
    server = Server(1000, 1000 * 128_000, KV)
    plan = MigrationCost(0, 0).planned(1000, server, server)
    assert (plan.method, plan.seconds, plan.shipped_tokens) == (Method.SPLIT, 0.5, 500)


def test_without_a_source_only_recompute_is_left() -> None:
    destination = _destination(250)
    plan = ASSUMED.unplanned(1000, destination)
    assert (plan.method, plan.shipped_tokens) == (Method.TOKENS, 0)
    assert plan.seconds == ASSUMED.recompute(1000, destination)


@pytest.mark.parametrize("method", list(Method))
def test_a_plan_keeps_to_the_methods_that_are_possible(method: Method) -> None:
    server = Server(250, LINKS["lan"], KV)
    assert ASSUMED.planned(1000, server, server, {method}).method is method


def test_where_two_methods_cost_the_same_the_lighter_is_taken() -> None:
    server = Server(1000, 1000 * 128_000, KV)
    assert MigrationCost(0.2, 0.2).planned(100, server, server, set(WHOLE)).method is Method.TOKENS
    assert ASSUMED.planned(0, server, server).method is Method.TOKENS


def test_no_range_and_all_lengths() -> None:
    assert Crossover(()).wins is TransferWins.NEVER
    assert Crossover(((0.0, math.inf),)).wins is TransferWins.ALWAYS


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Server(0, 1, KV), "prefill_tps is a number above 0, not 0"),
        (lambda: Server(math.nan, 1, KV), "prefill_tps"),
        (lambda: Server(1, 0, KV), "bandwidth_bytes_per_s is above 0, not 0"),
        (lambda: MigrationCost(-0.1, 0), "overhead .* not -0.1"),
        (lambda: MigrationCost(0, math.inf), "overhead .* not inf"),
        (lambda: ASSUMED.planned(1, Server(1, 1, KV), Server(1, 1, KV), ()), "at least one method"),
        (lambda: ASSUMED.kv_transfer(-1, Server(1, 1, KV), Server(1, 1, KV)), "not from 0 to -1"),
    ],
)
def test_what_cannot_be_is_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
