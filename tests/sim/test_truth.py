"""What heads are told that need not estimate."""

import numpy as np
import pytest

from godwit.sim.sessions import draw_stays
from godwit.sim.spec import Life, Rates, Stay, WorkerSpec
from godwit.sim.truth import known_hazards
from godwit.types import WorkerId

A, B = WorkerId("a"), WorkerId("b")


def worker(name: WorkerId, *stays: Stay, life: Life | None = None) -> WorkerSpec:
    return WorkerSpec(name, "host", 1, 1, Rates((0.1,), 1.0), stays=stays, life=life)


def test_from_their_history_they_must_estimate_it() -> None:
    assert known_hazards("history", [worker(A)]) is None


def test_when_each_leaves() -> None:
    told = known_hazards("leaving", [worker(A, Stay(50, 70), Stay(0, 20)), worker(B, Stay(0))])
    assert told is not None
    horizons_s = np.array([[0.0, 9.0, 10.0, 45.0]] * 2)
    assert told.survival([A, B], 10.0, horizons_s).tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert told.survival([A], 60.0, np.array([[9.0, 10.0]])).tolist() == [[1, 0]]


@pytest.mark.parametrize("shape", [0.6, 1.0, 3.0])
@pytest.mark.parametrize("age_s", [0.0, 300.0])
def test_by_what_law_each_leaves(shape: float, age_s: float) -> None:
    """It says what happens: of those that are so old, so many stay."""
    life = Life(600, shape, 60)
    stays = draw_stays(np.random.default_rng(3), life, 1e7)
    lasted_s = np.array([stay.end_s - stay.start_s for stay in stays])
    told = known_hazards("lives", [worker(A, *stays, life=life)])
    assert told is not None
    horizons_s = np.array([[50.0, 400.0, 1500.0]])
    so_old = lasted_s[lasted_s > age_s]
    stayed = [(so_old > age_s + horizon_s).mean() for horizon_s in horizons_s[0]]
    one = stays[int(np.argmax(lasted_s > age_s))]
    predicted = told.survival([A], one.start_s + age_s, horizons_s)
    assert predicted[0] == pytest.approx(stayed, abs=0.02)


def test_one_whose_stays_came_from_no_law_stays() -> None:
    told = known_hazards("lives", [worker(A, Stay(0, 20))])
    assert told is not None
    assert told.survival([A], 10.0, np.array([[1e6]])).tolist() == [[1]]
