"""Runs become medians, ratios and aims."""

import msgspec
import pytest

from godwit.figure3.report import POLICIES, Emulated, Figure3Report, make_report, typical
from godwit.figure3.runs import Run, make_run, recomputed_tokens
from tests.figure3.story import MODEL_A, MODEL_B, A, B, client, entry, move, tokens

MODELS = {"A": "model-a", "B": "model-b"}
EMULATED = Emulated(40.0, 200.0)


def run(
    policy: str,
    b_ttft_s: float,
    a_max_itl_s: float = 0.1,
    a_total_s: float = 14.0,
    recomputed: int = 0,
    ids: tuple[int, ...] = (1, 2, 3),
) -> Run:
    """A run with these figures and nothing else of interest."""
    figures = (policy, b_ttft_s, a_max_itl_s, 0.05, a_total_s, recomputed)
    return Run(*figures, ("w2",), ("w1",), None, ids, (), ())


def report(*runs: Run) -> Figure3Report:
    return make_report(runs, MODELS, EMULATED)


def test_each_policy_has_the_medians_of_its_runs_and_their_spread() -> None:
    row = report(*(run("locality", ttft, recomputed=3) for ttft in (9.0, 30.0, 10.0))).policies["locality"]
    assert (row.b_ttft_s, row.a_max_itl_s, row.a_total_s, row.recomputed_tokens) == (10.0, 0.1, 14.0, 3)
    assert (row.spread["b_ttft_s"].min, row.spread["b_ttft_s"].max) == (9.0, 30.0)


def test_ratios_are_those_of_the_medians_and_the_aims_say_whether_they_are_met() -> None:
    found = report(
        *(run("availability", ttft) for ttft in (8.0, 1.0, 9.0)),
        *(run("locality", 3.9) for _ in range(3)),
        *(run("preemption", 2.0, a_max_itl_s=4.0) for _ in range(3)),
        *(run("live_migration", ttft, a_max_itl_s=0.2, a_total_s=15.4) for ttft in (4.0, 3.0, 40.0)),
    )
    assert found.repeat == 3
    assert found.ratios == {
        "live_over_availability_ttft": 0.5,
        "live_over_locality_ttft": 1.026,
        "live_over_preemption_ttft": 2.0,
        "live_over_preemption_itl": 0.05,
        "live_over_availability_total": 1.1,
    }
    assert {aim.ratio: aim.is_met for aim in found.aims} == {
        "live_over_availability_ttft": True,
        "live_over_locality_ttft": False,
        "live_over_preemption_itl": True,
        "live_over_availability_total": True,
    }


def test_equal_is_not_below() -> None:
    found = report(run("locality", 4.0), run("live_migration", 4.0))
    assert [aim.is_met for aim in found.aims] == [False]
    assert list(found.ratios) == ["live_over_locality_ttft"]


def test_without_live_migration_there_is_nothing_to_compare() -> None:
    found = report(run("locality", 4.0))
    assert (found.ratios, found.aims) == ({}, ())


def test_an_answer_that_differs_is_not_ok() -> None:
    assert report(run("availability", 4.0), run("preemption", 4.0)).ok
    found = report(run("availability", 4.0), run("preemption", 4.0, ids=(1, 2, 4)))
    assert (found.ok, found.a_is_identical) == (False, False)


@pytest.mark.parametrize(("ttfts", "shown"), [((3.0, 1.0, 2.0), 2.0), ((4.0, 1.0), 1.0), ((5.0,), 5.0)])
def test_the_run_that_is_shown_has_the_median_ttft(ttfts: tuple[float, ...], shown: float) -> None:
    found = report(*(run("locality", ttft) for ttft in ttfts))
    assert typical(found, "locality").b_ttft_s == shown


def test_the_json_has_the_policies_in_order_with_their_figures() -> None:
    found = msgspec.json.decode(msgspec.json.encode(report(*(run(name, 4.0) for name in reversed(POLICIES)))))
    assert list(found["policies"]) == list(POLICIES)
    assert {"b_ttft_s", "a_max_itl_s", "a_total_s", "recomputed_tokens"} <= set(
        found["policies"]["preemption"]
    )
    assert found["emulated"] == {"ssd_mb_per_s": 40.0, "dram_mb_per_s": 200.0}


def test_a_run_has_the_clients_figures() -> None:
    log = [
        entry(10.0, "Start", request=A, model=MODEL_A, worker="w2"),
        entry(13.0, "Preempt", request=A, model=MODEL_A, worker="w2"),
        entry(14.0, "Start", request=A, model=MODEL_A, worker="w1"),
        entry(15.0, "Start", request=B, model=MODEL_B, worker="w2"),
    ]
    a = client("A", 10.0, [*tokens(11.0, 5), *tokens(17.0, 5)])
    b = client("B", 13.0, tokens(15.5, 3))
    made = make_run("preemption", a, b, log, [move("failover", 5)], a_ids=range(10), a_prompt_tokens=100)
    assert (made.b_ttft_s, made.a_max_itl_s, made.a_median_itl_s, made.a_total_s) == (2.5, 4.0, 0.5, 9.0)
    assert (made.recomputed_tokens, made.how) == (105, "preempted")
    assert (made.a_servers, made.b_servers) == (("w2", "w1"), ("w2",))
    assert made.decisions[1] == "+0.00 s Preempt model-a w2"
    assert made.bars


def test_what_travelled_as_kv_was_not_computed_again() -> None:
    assert recomputed_tokens(move("tokens", 60), 300) == 360
    assert recomputed_tokens(move("kv", 60, kv_tokens=352), 300) == 8
    assert recomputed_tokens(move("failover", 60), 300) == 360
