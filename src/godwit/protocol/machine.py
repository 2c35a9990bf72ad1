"""A transition table: the only way in which a move changes its state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from godwit.errors import InvariantBrokenError


class Stateful(Protocol):
    """Frozen data with a `state`."""

    @property
    def state(self) -> Enum: ...


D = TypeVar("D", bound=Stateful)
Step = tuple[D, tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Row(Generic[D]):
    """What an event does in a state: `handler(data, event)` gives the next data and the effects.

    `next` lists the states that it may lead to, `why` is the row's line in the docs.
    """

    next: tuple[Enum, ...]
    handler: Callable[[D, Any], Step[D]]
    why: str


@dataclass(frozen=True, slots=True)
class Table(Generic[D]):
    """All rows of one machine. `ends` are final: whatever comes late is ignored there."""

    name: str
    states: type[Enum]
    events: tuple[type, ...]
    ends: frozenset[Enum]
    rows: Mapping[tuple[Enum, type], Row[D]]

    def step(self, data: D, event: object) -> Step[D]:
        """Next data and the effects to perform, in order; the machine performs nothing itself.

        A (state, event) pair without a row means nothing there: the event came late, twice or early.
        """
        row = self.rows.get((data.state, type(event)))
        if row is None:
            return data, ()
        after, effects = row.handler(data, event)
        if after.state not in row.next:
            raise InvariantBrokenError(f"{self.name}: {data.state} on {event} led to {after.state}")
        return after, effects
