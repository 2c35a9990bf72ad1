"""Moves teach what they cost: per pair, per worker and model, and for those that nobody has seen."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.costs.choice import AUTO, MoveCosts, Observation
from godwit.costs.constants import Constant, Measurement
from godwit.costs.crossover import Method
from godwit.costs.known import Constants, PairConstants, ServerConstants
from godwit.costs.kv import KvSize
from godwit.types import Phases

CONTEXTS = (200, 1000, 400, 1600, 800, 300, 1200, 600)
MEASURED = Measurement("a laptop", 9, 0, 1e12)
KNOWN = Constants(
    pair=PairConstants(Constant(0.05, MEASURED), Constant(4e8, MEASURED)),
    models={
        "m": ServerConstants(
            Constant(150, MEASURED), Constant(0.02, MEASURED), kv_bytes_per_token=Constant(23_000, MEASURED)
        )
    },
)


@dataclass
class Truth:
    """What moves to one worker really take."""

    transfer_overhead_s: float = 0.05
    bandwidth: float = 4e8
    recompute_overhead_s: float = 0.02
    prefill_tps: float = 150.0
    kv_bytes_per_token: int = 23_000

    def move(
        self,
        costs: MoveCosts,
        method: str,
        context: int,
        ends: tuple[str, str] = ("a", "b"),
        *,
        times: float = 1.0,
        both_loaded: bool = False,
    ) -> Method:
        """Plan a move, let it take what it takes (`times` as long), and teach it; gives the method."""
        plan = costs.choose(method, "m", context, *ends, both_loaded=both_loaded)
        shipped, computed = plan.shipped_tokens, context - plan.shipped_tokens
        num_bytes = shipped * self.kv_bytes_per_token
        transfer_s = times * (self.transfer_overhead_s + num_bytes / self.bandwidth) if shipped else None
        compute_s = times * (self.recompute_overhead_s + computed / self.prefill_tps) if computed else None
        actual = Phases(transfer_s, compute_s, max(transfer_s or 0, compute_s or 0))
        predicted = Phases(plan.shipping_s or None, plan.computing_s or None, plan.seconds)
        costs.learn(Observation("m", *ends, actual, predicted, computed, shipped, num_bytes, both_loaded))
        return plan.method


def prefill_tps(costs: MoveCosts, worker: str = "b") -> float:
    return costs.terms("m", "a", worker).destination.prefill_tps


def bandwidth(costs: MoveCosts, source: str = "a", destination: str = "b") -> float:
    return costs.terms("m", source, destination).source.bandwidth_bytes_per_s


def test_a_worker_that_is_slower_than_its_profile_is_learnt() -> None:
    costs, truth = MoveCosts(KNOWN), Truth(prefill_tps=40, recompute_overhead_s=0.3)
    for context in CONTEXTS:
        truth.move(costs, "tokens", context)
    learnt = costs.terms("m", "a", "b")
    assert learnt.destination.prefill_tps == pytest.approx(40)
    assert learnt.cost.recompute_overhead_s == pytest.approx(0.3)


def test_a_wrong_bandwidth_is_corrected_after_a_few_moves_and_auto_changes_its_mind() -> None:
    costs, truth = MoveCosts(KNOWN), Truth(bandwidth=1e6)
    assert costs.choose(AUTO, "m", 5, "a", "b").method is not Method.TOKENS
    assert costs.choose(AUTO, "m", 1000, "a", "b").shipped_tokens > 900
    for context in CONTEXTS[:4]:
        truth.move(costs, AUTO, context)
    assert costs.choose(AUTO, "m", 5, "a", "b").method is Method.TOKENS
    # The link carries 43 tokens/s beside the 150 that are computed.
    assert costs.choose(AUTO, "m", 1000, "a", "b").shipped_tokens == pytest.approx(223, abs=10)
    assert costs.choose("kv", "m", 1000, "a", "b").seconds == pytest.approx(23.05, rel=0.05)


@pytest.mark.parametrize("when", [0, 3, 7, 9])
@pytest.mark.parametrize("method", ["tokens", "kv"])
def test_one_move_that_took_a_hundred_times_as_long_spoils_nothing(method: str, when: int) -> None:
    costs, truth, rng = MoveCosts(KNOWN), Truth(), np.random.default_rng(4)
    for i in range(10):
        noise = float(rng.normal(1, 0.01))
        truth.move(costs, method, CONTEXTS[i % 8], times=100 if i == when else noise)
        # A single move in ten never makes a way look more than a few per cent dearer, or cheaper.
        fair = MoveCosts(KNOWN).choose(method, "m", 1000, "a", "b").seconds
        assert costs.choose(method, "m", 1000, "a", "b").seconds == pytest.approx(fair, rel=0.1)


def test_a_first_move_that_was_slow_is_not_believed_before_a_second() -> None:
    costs, slow = MoveCosts(KNOWN), Truth(bandwidth=1e7)
    slow.move(costs, "kv", 1000)
    assert bandwidth(costs) == pytest.approx(4e8)
    slow.move(costs, "kv", 1000)
    assert costs.choose("kv", "m", 1000, "a", "b").seconds == pytest.approx(2.35)


def test_the_tenth_worker_starts_from_what_the_others_taught() -> None:
    costs, truth = MoveCosts(KNOWN), Truth(bandwidth=1e7, prefill_tps=900)
    for context in CONTEXTS:
        for worker in "bc":
            truth.move(costs, "kv", context, ("a", worker))
            truth.move(costs, "tokens", context, ("a", worker))
    assert bandwidth(costs, "x", "y") == pytest.approx(1e7)
    assert prefill_tps(costs, "y") == pytest.approx(900)
    other_model = costs.terms("other", "x", "y")
    assert other_model.destination.prefill_tps == pytest.approx(250)
    assert other_model.source.bandwidth_bytes_per_s == pytest.approx(1e7)


def test_what_is_measured_of_a_worker_stands_against_what_others_taught() -> None:
    known = Constants(
        pair=KNOWN.pair,
        models=KNOWN.models,
        workers={("gpu", "m"): ServerConstants(Constant(5000, MEASURED))},
        pairs={("a", "gpu"): PairConstants(bandwidth_bytes_per_s=Constant(1e10, MEASURED))},
    )
    costs, truth = MoveCosts(known), Truth(bandwidth=1e7, prefill_tps=900)
    for context in CONTEXTS:
        truth.move(costs, "kv", context)
        truth.move(costs, "tokens", context)
    assert (prefill_tps(costs, "gpu"), bandwidth(costs, "a", "gpu")) == pytest.approx((5000, 1e10))


def test_workers_and_directions_do_not_teach_each_other_what_they_know_better() -> None:
    costs = MoveCosts(KNOWN)
    for context in CONTEXTS:
        Truth(bandwidth=1e7, prefill_tps=40).move(costs, "kv", context, ("a", "b"))
        Truth(bandwidth=1e7, prefill_tps=40).move(costs, "tokens", context, ("a", "b"))
        Truth(bandwidth=1e8, prefill_tps=400).move(costs, "kv", context, ("b", "a"))
        Truth(bandwidth=1e8, prefill_tps=400).move(costs, "tokens", context, ("b", "a"))
    assert (bandwidth(costs, "a", "b"), prefill_tps(costs, "b")) == pytest.approx((1e7, 40))
    assert (bandwidth(costs, "b", "a"), prefill_tps(costs, "a")) == pytest.approx((1e8, 400))


def test_moves_between_loaded_workers_teach_the_same_line() -> None:
    loaded = Constants(
        models={"m": ServerConstants(Constant(150), prefill_loaded_tps=Constant(75))},
        pairs={("a", "b"): PairConstants(Constant(0.05), Constant(4e8), Constant(1e8))},
    )
    costs = MoveCosts(loaded)
    free, busy = Truth(bandwidth=8e7, prefill_tps=60), Truth(bandwidth=2e7, prefill_tps=30)
    for context in CONTEXTS[:4]:
        for method in ("kv", "tokens"):
            free.move(costs, method, context)
            busy.move(costs, method, context, both_loaded=True)
    assert (bandwidth(costs), prefill_tps(costs)) == pytest.approx((8e7, 60))
    under_load = costs.terms("m", "a", "b", both_loaded=True).destination
    assert (under_load.bandwidth_bytes_per_s, under_load.prefill_tps) == pytest.approx((2e7, 30))


def test_kv_that_nobody_measured_is_learnt_by_range() -> None:
    costs = MoveCosts()
    for tokens, size in ((2000, 21e6), (500, 9e6), (510, 9.2e6)):
        seen = Observation("m", "a", "b", Phases(1.0, None, 1.0), kv_tokens=tokens, kv_bytes=int(size))
        costs.learn(seen)
    assert costs.terms("m", "c", "d").source.kv == KvSize.measured([(510, 9.2e6), (2000, 21e6)])
    costs.learn(Observation("m", "a", "b", Phases(1.0, None, 1.0), kv_tokens=1000, kv_bytes=500_000))
    assert costs.terms("m", "c", "d").source.kv == KvSize.measured([(1000, 5e5), (2000, 21e6)])
    assert costs.terms("other", "c", "d").source.kv == KvSize.linear(128_000)


def test_kv_that_somebody_measured_stands() -> None:
    costs = MoveCosts(KNOWN)
    Truth(kv_bytes_per_token=99).move(costs, "kv", 1000)
    assert costs.terms("m", "a", "b").source.kv == KvSize.linear(23_000)


NONSENSE = (0.0, -1.0, math.nan, math.inf, 1e-12, 1e300)


@pytest.mark.parametrize("seconds", NONSENSE)
def test_seconds_that_no_move_takes_teach_nothing(seconds: float) -> None:
    costs = MoveCosts(KNOWN)
    costs.learn(Observation("m", "a", "b", Phases(None, seconds, seconds), computed_tokens=100))
    costs.learn(Observation("m", "a", "b", Phases(seconds, None, seconds), kv_tokens=0, kv_bytes=100))
    assert costs.report() == MoveCosts(KNOWN).report()


@pytest.mark.parametrize("tokens", [0, -5])
def test_counts_that_no_move_has_teach_nothing(tokens: int) -> None:
    costs = MoveCosts(KNOWN)
    costs.learn(Observation("m", "a", "b", Phases(1.0, 1.0, 1.0), None, tokens, tokens, tokens))
    assert costs.report() == MoveCosts(KNOWN).report()


points = st.tuples(
    st.integers(-1, 10**6), st.integers(-1, 10**6), st.integers(-1, 10**12), st.floats(), st.floats()
)


@given(st.lists(points, max_size=12), st.booleans())
def test_whatever_was_seen_a_way_can_be_chosen(
    seen: list[tuple[int, int, int, float, float]], both_loaded: bool
) -> None:
    costs = MoveCosts(KNOWN)
    for computed, tokens, size, transfer_s, compute_s in seen:
        actual = Phases(transfer_s, compute_s, compute_s)
        costs.learn(Observation("m", "a", "b", actual, None, computed, tokens, size, both_loaded))
    for method in (AUTO, *Method):
        plan = costs.choose(method, "m", 1000, "a", "b", both_loaded=both_loaded)
        assert 0 <= plan.seconds < math.inf and 0 <= plan.shipped_tokens <= 1000
    costs.report()


def test_the_same_moves_teach_the_same() -> None:
    reports = []
    for _ in range(2):
        costs, rng = MoveCosts(KNOWN), np.random.default_rng(9)
        for i in range(60):
            ends = ("a", f"w{i % 7}")
            Truth().move(costs, AUTO, CONTEXTS[i % 8], ends, times=float(rng.lognormal()))
        reports.append(costs.report())
    assert reports[0] == reports[1]


def test_what_was_longest_not_asked_for_is_forgotten_first() -> None:
    costs, fast = MoveCosts(KNOWN, max_kept=4), Truth(prefill_tps=1500)
    for context in CONTEXTS:
        fast.move(costs, "tokens", context, ("a", "kept"))
        fast.move(costs, "kv", context, ("a", "kept"))
    for i in range(50):
        Truth().move(costs, "tokens", 1000, ("a", f"w{i}"))
        Truth().move(costs, "kv", 1000, (f"w{i}", "kept"))
        assert prefill_tps(costs, "kept") == pytest.approx(1500)
    for i in range(20):
        seen = Observation(f"m{i}", "a", "b", Phases(1, 1, 1), None, 10, 10, 10)
        costs.learn(seen)
    report = costs.report()
    assert len(report.pairs) == 1 + 4
    assert len([one for one in report.servers if one.worker is not None]) == 4
    # The models that are known from the start, any other, and the four latest; each once.
    assert [one.model for one in report.servers if one.worker is None] == [
        None, "m", "m16", "m17", "m18", "m19"
    ]  # fmt: skip


# --- what people see ----------------------------------------------------------------------------------------


def test_the_report_says_of_each_constant_where_it_comes_from() -> None:
    costs = MoveCosts(KNOWN)
    Truth().move(costs, "kv", 1000)
    Truth().move(costs, "kv", 500)
    Truth().move(costs, "tokens", 500)
    report = costs.report()
    assert [(one.source, one.destination) for one in report.pairs] == [(None, None), ("a", "b")]
    pair = report.pairs[1]
    assert (pair.bandwidth_bytes_per_s.n, pair.transfer_overhead_s.n) == (2, 2)
    assert pair.transfer_overhead_s.provenance == "learnt from 2 moves"
    assert [(one.worker, one.model) for one in report.servers] == [(None, None), (None, "m"), ("b", "m")]
    any_model, model, worker = report.servers
    assert any_model.prefill_tps.provenance == "assumed" and any_model.prefill_tps.value == 250
    assert model.prefill_tps == worker.prefill_tps
    assert worker.prefill_tps.provenance == "learnt from 1 move"
    assert worker.kv_bytes_per_token.provenance.startswith("measured on a laptop")
    assert worker.kv_bytes_per_token.value == 23_000
    untouched = MoveCosts(KNOWN).report()
    assert untouched.servers[1].prefill_tps.provenance.startswith("measured on a laptop")
    assert (untouched.servers[1].prefill_tps.value, untouched.servers[1].prefill_tps.n) == (150, 0)
    assert untouched.errors == {}


def test_a_report_changes_nothing() -> None:
    costs = MoveCosts(KNOWN, max_kept=2)
    for worker in "bc":
        Truth().move(costs, "tokens", 1000, ("a", worker))
    before = costs.report()
    assert costs.report() == before
    Truth().move(costs, "tokens", 1000, ("a", "d"))
    assert {one.worker for one in costs.report().servers} == {None, "c", "d"}


def test_errors_are_told_by_phase() -> None:
    costs, truth = MoveCosts(KNOWN), Truth(prefill_tps=75)
    truth.move(costs, "tokens", 300)
    assert set(costs.errors()) == {"compute", "ready"}
    assert costs.errors()["ready"].bias_s == pytest.approx(300 / 75 - 300 / 150)
    assert costs.bias_s("compute") == pytest.approx(2)
    assert math.isnan(costs.bias_s("transfer"))
    truth.move(costs, "kv", 300)
    assert costs.errors()["transfer"].p50_s == pytest.approx(0, abs=1e-9)
    assert costs.errors()["ready"].n == 2
