"""How much of an output is still to come: by guesses, by experience, never nothing, never the truth."""

import math

import numpy as np
import pytest

from godwit.costs.lengths import OutputLengths, mean_excess


@pytest.mark.parametrize("n", [0.0, 50.0, 300.0, 2000.0])
def test_the_mean_excess_is_that_of_a_lognormal(n: float) -> None:
    draws = np.random.default_rng(3).lognormal(5.0, 1.0, 4_000_000)
    beyond = draws[draws > n]
    assert mean_excess(5.0, 1.0, n) == pytest.approx(float((beyond - n).mean()), rel=0.02)


def test_far_beyond_everything_it_grows_with_what_there_is() -> None:
    far = math.exp(5.0 + 6 * 0.5)
    assert mean_excess(5.0, 0.5, 2 * far) == pytest.approx(2 * mean_excess(5.0, 0.5, far))
    assert mean_excess(5.0, 0.05, 1e9) > 0


def test_a_guess_counts_and_is_never_used_up() -> None:
    lengths = OutputLengths()
    left = [lengths.remaining("m", n, 100, None) for n in (0, 50, 100, 200, 1000)]
    assert left[0] == pytest.approx(113, abs=1)
    assert 40 < left[1] < 80
    assert min(left) > 10


def test_without_a_guess_recent_outputs_of_the_model_count() -> None:
    lengths = OutputLengths()
    unknown = lengths.remaining("m", 0, None, None)
    for _ in range(50):
        lengths.learn("m", 20, None)
    assert lengths.remaining("m", 0, None, None) < 40 < unknown
    assert lengths.remaining("other", 0, None, None) == unknown


def test_the_limit_bounds_it_and_there_is_always_one_token_to_come() -> None:
    lengths = OutputLengths()
    assert lengths.remaining("m", 0, 1000, 64) == 64
    assert lengths.remaining("m", 60, 1000, 64) == 4
    assert lengths.remaining("m", 64, 1000, 64) == 1
    assert lengths.remaining("m", 0, None, 10) == 10


def test_how_far_guesses_are_off_is_learnt() -> None:
    """Clients who always guess half: by and by twice the guess is believed, and without much doubt."""
    lengths = OutputLengths()
    for _ in range(200):
        lengths.learn("m", 200, 100)
    assert lengths.remaining("m", 0, 300, None) == pytest.approx(600, rel=0.05)


def test_an_output_of_nothing_teaches_nothing() -> None:
    lengths = OutputLengths()
    before = lengths.remaining("m", 0, None, None)
    lengths.learn("m", 0, None)
    assert lengths.remaining("m", 0, None, None) == before
