"""Moves that somebody asked for and waits for."""

from collections.abc import Callable
from dataclasses import dataclass

from godwit.errors import GodwitError
from godwit.protocol.entry import MoveRecord
from godwit.types import MoveLimits

Outcome = MoveRecord | GodwitError


@dataclass(slots=True)
class Wish:
    """A move that somebody asked for and waits for; `method` is one of `godwit.costs.choice.METHODS`."""

    limits: MoveLimits
    method: str
    done: Callable[[Outcome], None]
