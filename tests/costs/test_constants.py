"""Constants say where they come from."""

import math

import pytest

from godwit.costs.constants import Constant, Measurement


def test_provenance() -> None:
    assert Constant(0.5).provenance == "assumed"
    measured = Constant(0.043, Measurement("2 × Xeon, 2025-11-30", 24, 0.0401, 0.0459))
    assert measured.provenance == "measured on 2 × Xeon, 2025-11-30, n = 24, 95 % interval [0.0401, 0.0459]"


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_a_constant_is_a_possible_cost(value: float) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        Constant(value)


def test_a_lower_bound_has_no_upper_end() -> None:
    measured = Constant(4e8, Measurement("here", 9, 4e8, None))
    assert measured.provenance == "measured on here, n = 9, 95 % interval [4e+08, ∞)"


def test_a_measurement_has_samples_and_an_interval() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Measurement("here", 0, 1, 2)
    with pytest.raises(ValueError, match="not from 2 to 1"):
        Measurement("here", 5, 2, 1)
