"""Survival curves: conditioned on age by hand, and each family against sessions whose law is known."""

import numpy as np
import pytest

from godwit.costs.families import (
    FAMILIES,
    Family,
    exponential,
    family_named,
    kaplan_meier,
    weibull,
    weibull_ml,
)
from godwit.costs.hierarchy import hierarchical
from godwit.costs.survival import GRID_S, Floats, Sessions, conditional, table
from godwit.errors import ConfigError


def ended(*seconds: float) -> Sessions:
    return Sessions(seconds, (True,) * len(seconds))


def stays(tables: Floats, row: int, age_s: float, *times_s: float) -> list[float]:
    """S(t|a) of one row."""
    found = conditional(tables, np.array([row]), np.array([age_s]), np.array([times_s]))
    return [float(one) for one in found[0]]


def drawn(scale_s: float, shape: float, n: int, *, seed: int = 1, until_s: float = np.inf) -> Sessions:
    """Weibull sessions, those longer than `until_s` cut off there."""
    seconds = scale_s * np.random.default_rng(seed).weibull(shape, n)
    return Sessions(tuple(np.minimum(seconds, until_s).tolist()), tuple((seconds <= until_s).tolist()))


# --- conditional on age ----------------------------------------------------------------------------------


def test_a_constant_hazard_forgets_its_age() -> None:
    tables = table(np.exp(-0.01 * GRID_S)[None, :])
    assert stays(tables, 0, 0.0, 100.0) == pytest.approx([np.exp(-1)])
    assert stays(tables, 0, 777.0, 0.0, 100.0) == pytest.approx([1.0, np.exp(-1)])


def test_an_old_server_of_an_ageing_kind_leaves_sooner() -> None:
    """S(t) = exp(-(t/100)²): S(100|100) = exp(-4)/exp(-1)."""
    tables = table(np.exp(-((GRID_S / 100) ** 2))[None, :])
    assert stays(tables, 0, 0.0, 100.0) == pytest.approx([np.exp(-1)], rel=0.01)
    assert stays(tables, 0, 100.0, 100.0) == pytest.approx([np.exp(-3)], rel=0.01)


def test_beyond_the_end_of_a_curve_the_last_hazard_goes_on() -> None:
    """S = 0 from 100 s on: a server that is 500 s old all the same is neither safe nor a division by 0."""
    tables = table((GRID_S < 100.0).astype(np.float64)[None, :])
    (after_5_s, after_500_s) = stays(tables, 0, 500.0, 5.0, 500.0)
    assert 0 < after_5_s < 0.2
    assert 0 <= after_500_s < 1e-9
    assert stays(tables, 0, 90.0, 5.0) == pytest.approx([1.0])


def test_beyond_the_grid_too() -> None:
    tables = table(np.exp(-1e-8 * GRID_S)[None, :])
    assert stays(tables, 0, 2e7, 1e8) == pytest.approx([np.exp(-1)])


def test_a_server_that_has_not_come_yet_has_age_zero_and_past_times_are_now() -> None:
    tables = table(np.exp(-0.01 * GRID_S)[None, :])
    assert stays(tables, 0, 0.0, -5.0) == [1.0]


# --- the families ----------------------------------------------------------------------------------------


def test_a_wrong_name_lists_the_right_ones() -> None:
    assert family_named("weibull") is weibull
    names = "exponential, hierarchical, kaplan_meier, weibull"
    with pytest.raises(ConfigError, match=rf"hazard.family: .*'gamma'.* {names}$"):
        family_named("gamma")


@pytest.mark.parametrize(("scale_s", "shape"), [(600.0, 0.6), (2400.0, 3.0), (28_800.0, 1.5)])
@pytest.mark.parametrize("cut", [np.inf, 1.0])
def test_maximum_likelihood_finds_scale_and_shape_also_where_sessions_are_cut_off(
    scale_s: float, shape: float, cut: float
) -> None:
    found = weibull_ml(drawn(scale_s, shape, 4000, until_s=cut * scale_s))
    assert found == pytest.approx((scale_s, shape), rel=0.06)


def test_who_leaves_out_what_was_cut_off_is_far_too_pessimistic() -> None:
    """Sessions of 600 s, seen for 300 s each: those that ended were all shorter than that."""
    seen = drawn(600.0, 1.0, 2000, until_s=300.0)
    assert weibull_ml(seen)[0] == pytest.approx(600.0, rel=0.1)
    assert weibull_ml(ended(*seen.ended_s))[0] < 200.0
    assert stays(kaplan_meier([seen]), 0, 0.0, 250.0) == pytest.approx([np.exp(-250 / 600)], abs=0.03)
    assert stays(kaplan_meier([ended(*seen.ended_s)]), 0, 0.0, 250.0)[0] < 0.25


def test_sessions_of_one_length_and_few_sessions_give_a_curve_all_the_same() -> None:
    assert weibull_ml(ended(30.0, 30.0, 30.0)) == pytest.approx((30.0, 20.0))
    assert weibull_ml(ended(30.0))[1] == 1.0
    assert weibull_ml(Sessions()) == pytest.approx((86_400.0, 1.0))


def test_the_product_limit_by_hand() -> None:
    """Ends at 100 and 300 s, one cut off at 200 s: S = 2/3 from 100 s on, and 0 from 300 s on, or nearly."""
    one = Sessions((100.0, 200.0, 300.0), (True, False, True))
    tables = kaplan_meier([Sessions((), ()), one])
    pooled = stays(tables, 0, 0.0, 90.0, 150.0, 250.0, 320.0)
    assert pooled[:3] == pytest.approx([1.0, 2 / 3, 2 / 3])
    assert 0 < pooled[3] <= 1 / 6
    # At 150 s it has survived the first step.
    assert stays(tables, 0, 150.0, 100.0) == pytest.approx([1.0])


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_finds_a_law_that_all_servers_share(name: str) -> None:
    fleet = [drawn(600.0, 1.0, 12, seed=seed) for seed in range(40)]
    tables = FAMILIES[name](fleet)
    newcomer = len(fleet)
    for age_s, time_s in ((0.0, 60.0), (0.0, 600.0), (500.0, 300.0)):
        assert stays(tables, newcomer, age_s, time_s) == pytest.approx([np.exp(-time_s / 600)], abs=0.06)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_newcomer_is_like_the_fleet_and_a_fleet_without_history_like_what_is_assumed(name: str) -> None:
    nobody = FAMILIES[name]([])
    assert nobody.shape == (1, len(GRID_S))
    assert 0.9 < stays(nobody, 0, 0.0, 60.0)[0] <= 1.0
    fleet = [drawn(120.0, 1.0, 10, seed=seed) for seed in range(20)]
    tables = FAMILIES[name]([*fleet, Sessions()])
    assert stays(tables, 20, 0.0, 120.0) == pytest.approx(stays(tables, 21, 0.0, 120.0))
    assert stays(tables, 20, 0.0, 120.0) == pytest.approx([np.exp(-1)], abs=0.08)


@pytest.mark.parametrize("name", FAMILIES)
def test_curves_only_fall_and_hazards_are_finite(name: str) -> None:
    fleet = [
        ended(0.001),
        ended(30.0, 30.0),
        drawn(1e6, 0.5, 30),
        Sessions((5.0,), (False,), 1e6),
        Sessions(),
    ]
    tables = FAMILIES[name](fleet)
    assert np.isfinite(tables).all()
    assert (np.diff(tables, axis=1) >= -1e-12).all()
    assert (tables[:, 0] == 0).all()


def test_a_server_with_a_history_is_held_to_it() -> None:
    """Five sessions of 20 s each, in a fleet whose servers stay for hours."""
    fleet = [*(drawn(28_800.0, 1.5, 4, seed=seed) for seed in range(20)), ended(19.0, 20.0, 20.0, 21.0, 20.0)]
    for name in ("hierarchical", "kaplan_meier", "weibull", "exponential"):
        tables = FAMILIES[name](fleet)
        assert stays(tables, 20, 0.0, 60.0)[0] < 0.5, name
        assert stays(tables, 0, 0.0, 60.0)[0] > 0.9, name


# --- the hierarchical estimate ---------------------------------------------------------------------------


def two_kinds(num_sessions: int, first_seed: int = 0) -> tuple[list[Sessions], list[tuple[float, float]]]:
    """30 laptops and 10 spot servers."""
    laws = [(600.0, 0.6)] * 30 + [(2400.0, 3.0)] * 10
    return [drawn(*law, num_sessions, seed=first_seed + i) for i, law in enumerate(laws)], laws


def test_it_knows_servers_apart_from_their_second_session_on() -> None:
    """Two sessions each: what S(300 s|500 s) is off, in nats, over ten fleets."""

    def off(family: Family) -> float:
        found = []
        for first_seed in range(0, 1000, 100):
            fleet, laws = two_kinds(2, first_seed)
            tables = family(fleet)
            for row, (scale_s, shape) in enumerate(laws):
                true = np.exp((500 / scale_s) ** shape - (800 / scale_s) ** shape)
                told = stays(tables, row, 500.0, 300.0)[0]
                found.append(true * np.log(true / told) + (1 - true) * np.log((1 - true) / (1 - told)))
        return float(np.mean(found))

    assert off(hierarchical) < 0.75 * off(weibull)
    assert off(hierarchical) < 0.9 * off(exponential)
    assert off(hierarchical) < 0.75 * off(kaplan_meier)


def test_one_more_session_moves_it_and_the_age_of_the_one_under_way_does() -> None:
    fleet, _ = two_kinds(3)
    short, long = ended(20.0, 40.0), ended(2300.0, 2500.0)
    tables = hierarchical([*fleet, short, long])
    assert stays(tables, 40, 0.0, 120.0)[0] < 0.7 < stays(tables, 41, 0.0, 120.0)[0]
    # A newcomer that is still there after 1000 s is likely none of those that go early.
    newcomer = len(tables) - 1
    assert stays(tables, newcomer, 1000.0, 120.0) > stays(tables, newcomer, 10.0, 120.0)


def test_a_spot_server_that_grows_old_is_more_likely_to_go() -> None:
    fleet, _ = two_kinds(4)
    tables = hierarchical(fleet)
    young, old = (
        np.mean([stays(tables, row, age, 300.0) for row in range(30, 40)]) for age in (300.0, 2400.0)
    )
    assert old < young - 0.1
