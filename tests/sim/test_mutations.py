"""Faults of the protocol itself are found: five of the issue, and claims that are not rolled back."""

import pytest

from godwit.sim.chaos import play, play_seed
from godwit.sim.faults import WEIGHTS
from godwit.sim.mutations import MUTATIONS, hunt, mutated
from godwit.sim.shortest import shortest
from godwit.sim.situation import situation_of


@pytest.mark.parametrize("name", MUTATIONS)
def test_chaos_finds_it_within_1000_seeds(name: str) -> None:
    found = hunt(name, range(1000))
    assert found is not None, f"the protocol may {name}"
    number, played = found
    assert number == played.seed + 1
    assert play_seed(played.seed).problem is None, "it is the mutation that is found"


def test_a_failing_situation_is_shortened() -> None:
    found = hunt("lose a tail token", range(1000))
    assert found is not None
    whole = situation_of(found[1].seed, WEIGHTS)
    with mutated("lose a tail token"):
        short = shortest(whole)
        assert play(short).problem is not None
    assert len(short.asks) < len(whole.asks) and len(short.faults) < len(whole.faults)
    assert shortest(short) == short, "without the mutation it does not fail, and is left as it is"


def test_a_mutation_ends() -> None:
    with pytest.raises(ZeroDivisionError), mutated("deliver twice"):
        raise ZeroDivisionError
    assert play_seed(3).problem is None
