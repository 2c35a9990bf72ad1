"""The pure parts of the crossover benchmark against known truths."""

import math

import pytest

from godwit.bench.crossover_fit import fit_constants, predicted_crossover, profile_of
from godwit.bench.crossover_plan import (
    METHODS,
    Countdown,
    calibration_contexts,
    calibration_moves,
    cell_moves,
    nominal_link_s,
)
from godwit.bench.crossover_report import (
    Cell,
    make_cell,
    make_link,
    measured_crossover,
    regret_of,
    split_ratios,
)
from godwit.costs.crossover import TransferWins
from godwit.protocol.entry import MoveRecord
from godwit.types import ModelName, MoveId, Phases, RequestId, WorkerId

KV_BYTES = 1000


def moved(method: str, seconds: float, context: int = 100, *, kv_tokens: int = 0) -> MoveRecord:
    """The record of a move whose destination could decode after so long."""
    return MoveRecord(
        MoveId("m"),
        RequestId("r"),
        WorkerId("a"),
        WorkerId("b"),
        method,
        "done",
        "",
        (),
        0,
        1,
        seconds,
        seconds,
        kv_tokens,
        kv_tokens * KV_BYTES,
        None,
        ModelName("m"),
        context,
        context - kv_tokens,
        False,
        Phases(ready_s=2 * seconds),
        Phases(ready_s=seconds),
    )


def cell(transfer_s: float, recompute_s: float, split_s: float, chosen: str, context: int = 100) -> Cell:
    """A cell of single moves; `chosen` is what auto did."""
    by_method = {"kv": transfer_s, "tokens": recompute_s, "split": split_s}
    stopped = {
        "transfer": [moved("kv", transfer_s)],
        "recompute": [moved("tokens", recompute_s)],
        "split": [moved("split", split_s, kv_tokens=40)],
        "auto": [moved(chosen, by_method[chosen.rpartition("→")[2]] * 1.1)],
    }
    return make_cell(10.0, context, stopped, {})


def test_the_measured_crossover_lies_where_the_straight_line_between_two_contexts_is_0() -> None:
    found = measured_crossover([(300, -0.1), (100, 0.3)])
    assert found is not None
    assert found.wins is TransferWins.ABOVE
    assert found.tokens == pytest.approx(250)


@pytest.mark.parametrize(
    ("excess", "wins", "tokens"),
    [
        ([(100, 1.0), (200, 0.1)], TransferWins.NEVER, math.inf),
        ([(100, -1.0), (200, -0.1)], TransferWins.ALWAYS, 0),
        ([(100, -1.0), (200, 1.0)], TransferWins.BELOW, 150),
        ([(100, 0.0)], TransferWins.NEVER, math.inf),
        ([(100, 1.0), (200, -1.0), (300, 1.0)], TransferWins.IN_RANGES, 250),
    ],
)
def test_what_the_signs_say(excess: list[tuple[float, float]], wins: TransferWins, tokens: float) -> None:
    found = measured_crossover(excess)
    assert found is not None
    assert found.wins is wins
    assert found.tokens == pytest.approx(tokens)


def test_without_a_context_there_is_no_crossover() -> None:
    assert measured_crossover([]) is None


def test_a_cell_has_medians_and_the_largest() -> None:
    stopped = {
        "transfer": [moved("kv", seconds) for seconds in (3.0, 1.0, 2.0)],
        "recompute": [moved("tokens", 4.0)] * 3,
        "split": [moved("split", 1.5, kv_tokens=60)] * 3,
        "auto": [moved("kv", 2.2), moved("split", 1.6), moved("kv", 2.4)],
    }
    live = {"transfer": [moved("kv", 2.5)], "auto": [moved("kv", 2.6)]}
    made = make_cell(None, 100, stopped, live)
    assert (made.transfer_s, made.recompute_s, made.split_s, made.auto_s) == (2.0, 4.0, 1.5, 2.2)
    assert made.max_s == {"transfer": 3.0, "recompute": 4.0, "split": 1.5, "auto": 2.4}
    assert made.predicted_s == {"transfer": 4.0, "recompute": 8.0, "split": 3.0, "auto": 4.4}
    assert made.auto_method == "transfer"
    assert made.split_kv_tokens == 60
    assert made.regret == pytest.approx(2.0 / 1.5, abs=1e-4)
    assert made.split_over_best == 0.75
    assert (made.live_transfer_s, made.live_recompute_s, made.live_auto_s) == (2.5, None, 2.6)
    assert made.live_pause_ms == {"transfer": 2500.0, "auto": 2600.0}


def test_a_split_that_had_nothing_to_ship_is_a_recompute() -> None:
    assert cell(2.0, 1.0, 1.0, "split→tokens").auto_method == "recompute"


def test_regret_is_1_where_auto_took_the_fastest_whatever_its_own_time() -> None:
    assert cell(1.0, 2.0, 3.0, "kv").regret == 1.0
    assert cell(1.0, 2.0, 3.0, "split").regret == 3.0
    regret = regret_of([cell(1.0, 2.0, 3.0, "kv")] * 3 + [cell(1.0, 2.0, 3.0, "tokens")])
    assert regret is not None
    assert (regret.p50, regret.share_within_1_15) == (1.0, 0.75)
    assert 1.0 < regret.p95 <= 2.0
    assert regret_of([]) is None


def test_split_ratios_leave_out_what_is_far_apart() -> None:
    close, far = cell(1.0, 2.0, 0.8, "split"), cell(1.0, 2.1, 1.2, "kv")
    assert (close.is_close, far.is_close) == (True, False)
    ratios = split_ratios([close, far])
    assert ratios is not None
    assert (ratios.p50, ratios.max, ratios.n) == (1.0, 1.2, 2)
    assert split_ratios([]) is None


@pytest.mark.parametrize(
    ("per_kv_token_s", "wins", "tokens"),
    [(0.002, TransferWins.ABOVE, 37.5), (0.02, TransferWins.NEVER, None)],
)
def test_constants_are_found_and_give_the_crossover(
    per_kv_token_s: float, wins: TransferWins, tokens: float | None
) -> None:
    contexts = (32, 128, 512)
    records = [moved("kv", 0.4 + per_kv_token_s * c, c, kv_tokens=c) for c in contexts]
    records += [moved("tokens", 0.1 + 0.01 * c, c) for c in contexts]
    constants = fit_constants(records, "this test")
    assert constants.transfer_overhead_s.value == pytest.approx(0.4)
    assert constants.recompute_overhead_s.value == pytest.approx(0.1)
    assert constants.prefill_tps.value == pytest.approx(100)
    assert constants.bandwidth_bytes_per_s.value == pytest.approx(KV_BYTES / per_kv_token_s)
    assert constants.kv_bytes_per_token.value == KV_BYTES
    assert "n = 3" in constants.prefill_tps.provenance
    predicted = predicted_crossover(profile_of(constants, "m", "x", "2025-11-30"), "m")
    row = make_link(10.0, None, constants, predicted, [cell(1.0, 2.0, 1.5, "kv")])
    assert (row.transfer_wins_predicted, row.crossover_tokens_predicted) == (wins, tokens)
    assert (row.transfer_wins_measured, row.crossover_tokens_measured) == ("always", 0)
    assert row.effective_mbit == pytest.approx(KV_BYTES / per_kv_token_s * 8 / 1e6)


@pytest.mark.parametrize("contexts", [(64,), (64, 256), (64, 256, 1024, 2048), (16, 17), (16,)])
def test_calibration_is_not_fitted_on_the_cells(contexts: tuple[int, ...]) -> None:
    chosen = calibration_contexts(contexts)
    assert len(chosen) >= 3 or contexts[0] < 20
    assert len(chosen) >= 2
    assert not set(chosen) & set(contexts)
    assert len(calibration_moves(contexts)) == 4 * len(chosen)


def test_the_order_of_methods_rotates_and_live_moves_come_last() -> None:
    moves = cell_moves(100, 4, 1)
    assert [move.method for move in moves[:20:4]] == [METHODS[turn % 4] for turn in (0, 1, 2, 3, 0)]
    assert [move.live for move in moves] == [False] * 16 + [True] * 4
    assert all(sum(move.method == method for move in moves) == 5 for method in METHODS)


def test_the_default_run_is_meant_to_take_about_half_an_hour() -> None:
    contexts = (64, 256, 1024, 2048)
    total_s = sum(nominal_link_s(contexts, 3, 1, mbit) for mbit in (10, 50, 100, 1000, None))
    assert 15 * 60 < total_s < 45 * 60


def test_what_is_left_follows_the_real_pace() -> None:
    countdown = Countdown(600.0, 1000.0)
    assert countdown.left(1000.0) == "about 10 min left"
    countdown.done(300.0)
    assert countdown.left(1610.0) == "about 10 min left"
    countdown.done(290.0)
    assert countdown.left(2200.0) == "about 20 s left"
