"""The expected loss and the two rules for early moves, by hand and against Monte Carlo."""

import numpy as np
import pytest

from godwit.costs.hazard import Recompute, Side, Survival, cost_s, expected_loss_s, window_cost_s
from godwit.costs.survival import Floats


def one(value: float) -> Floats:
    return np.array([value])


def never(times_s: Floats) -> Floats:
    return np.ones_like(times_s)


def gone_at(at_s: float) -> Survival:
    """An oracle: it is there until then."""
    return lambda times_s: (times_s < at_s).astype(np.float64)


def exponential(rate: float) -> Survival:
    return lambda times_s: np.asarray(np.exp(-rate * times_s))


def weibull(scale_s: float, shape: float, age_s: float) -> Survival:
    return lambda times_s: np.asarray(
        np.exp((age_s / scale_s) ** shape - ((age_s + times_s) / scale_s) ** shape)
    )


# 1 s and 10 ms a token elsewhere, after a stall of 2 s.
ELSEWHERE = Recompute(one(1.0), one(0.01), 2.0)


@pytest.mark.parametrize("shape", [0.6, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("age_s", [0.0, 30.0, 900.0])
@pytest.mark.parametrize("time_s", [10.0, 80.0, 400.0])
def test_sixteen_cells_are_within_two_percent_of_monte_carlo(
    shape: float, age_s: float, time_s: float
) -> None:
    scale_s, silent_s, token_s, context = 600.0, 4.0, 1 / 12, 500.0
    rng = np.random.default_rng(7)
    # Stays beyond the age, by inversion of S(t|a); only those that end in time lose anything.
    end = np.exp(-(((age_s + time_s) / scale_s) ** shape - (age_s / scale_s) ** shape))
    draws = end + (1 - end) * rng.random(200_000)
    stays_s = scale_s * ((age_s / scale_s) ** shape - np.log(draws)) ** (1 / shape) - age_s
    held = context + np.maximum(0.0, stays_s - silent_s) / token_s
    wanted = (1 - end) * float((2.0 + 1.0 + 0.01 * held).mean())
    found = expected_loss_s(
        weibull(scale_s, shape, age_s),
        one(0.0),
        one(time_s),
        one(context),
        one(silent_s),
        one(token_s),
        ELSEWHERE,
    )
    assert found[0] == pytest.approx(wanted, rel=0.02)


def test_a_server_that_stays_costs_time_only() -> None:
    """2 s until it draws, then 100 tokens at 0.1 s."""
    assert cost_s(never, one(2.0), one(50.0), one(100.0), one(0.1), ELSEWHERE) == 12.0


def test_a_server_that_surely_leaves_costs_the_recompute_of_what_it_had_by_then() -> None:
    """It is gone at 5 s of 10: in the cell from 5 to 5.625 s or the one before, with about 50 + 50 tokens."""
    cost = cost_s(gone_at(5.0), one(0.0), one(50.0), one(100.0), one(0.1), ELSEWHERE)
    assert cost == pytest.approx(10.0 + 2.0 + 1.0 + 0.01 * 100.0, abs=0.01 * 6)


def test_no_token_is_drawn_before_the_start() -> None:
    """All of it lost in the silent time: no more context than at its beginning."""
    cost = cost_s(gone_at(1.0), one(8.0), one(50.0), one(20.0), one(0.1), ELSEWHERE)
    assert cost == pytest.approx(10.0 + 2.0 + 1.0 + 0.5)


# --- the window rule and the classic one, side by side ---------------------------------------------------


def staying(survival: Survival) -> float:
    return float(cost_s(survival, one(0.0), one(400.0), one(200.0), one(0.1), ELSEWHERE)[0])


def window(source: Survival, destination: Survival, token_s: float = 0.1, window_s: float = 5.0) -> float:
    """A move of 400 tokens that has 200 to draw, with a pause of 0.2 s."""
    ends = (Side(source, one(0.1), ELSEWHERE), Side(destination, one(token_s), ELSEWHERE))
    return float(window_cost_s(*ends, one(window_s), one(0.2), one(400.0), one(200.0))[0])


def classic(destination: Survival, token_s: float = 0.1) -> float:
    """The same, with 5 s of prefill."""
    return float(cost_s(destination, one(5.0), one(400.0), one(200.0), one(token_s), ELSEWHERE)[0])


def test_a_move_between_servers_that_stay_costs_its_pause_or_its_prefill() -> None:
    assert staying(never) == pytest.approx(20.0)
    assert window(never, never) == pytest.approx(20.2)
    assert classic(never) == pytest.approx(25.0)


def test_leaving_before_a_sure_loss_saves_it_by_the_window_rule_alone() -> None:
    """The source goes at 10 s, with 500 tokens: a loss of 8 s, a pause of 0.2 s, or a prefill of 5 s."""
    at_10_s = gone_at(10.0)
    assert staying(at_10_s) == pytest.approx(28.0, abs=0.1)
    assert staying(at_10_s) - window(at_10_s, never) == pytest.approx(7.8, abs=0.1)
    assert staying(at_10_s) - classic(never) == pytest.approx(3.0, abs=0.1)


def test_it_is_too_late_when_the_source_goes_within_the_window() -> None:
    """At 3 s, with 430 tokens: the loss is there either way, but none comes after it."""
    at_3_s = gone_at(3.0)
    assert staying(at_3_s) == pytest.approx(20.0 + 2.0 + 1.0 + 4.3, abs=0.1)
    assert window(at_3_s, gone_at(8.0)) == pytest.approx(20.2 + 2.0 + 1.0 + 4.3, abs=0.1)


def test_the_destination_is_reckoned_with_from_the_window_on() -> None:
    """Gone before the request arrives it costs nothing: the source carries on."""
    assert window(never, gone_at(4.0)) == pytest.approx(20.2)
    assert window(never, gone_at(12.0)) == pytest.approx(20.2 + 2.0 + 1.0 + 5.2, abs=0.1)


def test_what_the_source_may_lose_later_counts_as_often_as_the_source_lives_that_long() -> None:
    """S_i(W) = e^(-0.5); the destination surely goes at 12 s."""
    rate = 0.1
    both = window(exponential(rate), gone_at(12.0)) - window(exponential(rate), never)
    assert both == pytest.approx(np.exp(-rate * 5.0) * 8.2, abs=0.1)


def test_a_faster_destination_is_worth_the_way() -> None:
    """5 s and 150 tokens at 0.02 s, instead of 20 s."""
    assert window(never, never, token_s=0.02) == pytest.approx(5.2 + 3.0)


def test_a_request_that_ends_within_the_window_has_nothing_to_gain() -> None:
    assert window(never, never, window_s=20.0) == np.inf
