"""Leaves out of a failing situation whatever it does not need to fail."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from godwit.sim.chaos import play
from godwit.sim.situation import Situation

T = TypeVar("T")


def shortest(situation: Situation) -> Situation:
    """What is left when no fault and no request can be left out any more; itself where it does not fail."""
    if not _fails(situation):
        return situation
    faults = _fewest(situation.faults, lambda kept: _fails(replace(situation, faults=kept)))
    situation = replace(situation, faults=faults)
    return replace(
        situation, asks=_fewest(situation.asks, lambda kept: _fails(replace(situation, asks=kept)))
    )


def _fails(situation: Situation) -> bool:
    return play(situation).problem is not None


def _fewest(items: Sequence[T], is_enough: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    kept = tuple(items)
    size = max(1, len(kept) // 2)
    while size:
        first = 0
        while first < len(kept):
            fewer = kept[:first] + kept[first + size :]
            if is_enough(fewer):
                kept = fewer
            else:
                first += size
        size //= 2
    return kept
