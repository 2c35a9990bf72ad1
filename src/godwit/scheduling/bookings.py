"""What the scheduler's books consist of, and where something has become possible."""

from typing import NamedTuple

from msgspec import Struct

from godwit.scheduling.ask import Ask
from godwit.scheduling.view import Running, WorkerView
from godwit.types import ModelName, RequestId, WorkerId


class Place(NamedTuple):
    """A model on a worker."""

    worker: WorkerId
    model: ModelName


class Moving(Struct, frozen=True):
    """A move under way; `is_reserved` is False once the destination that kept the slot is gone."""

    model: ModelName
    destination: WorkerId
    is_reserved: bool = True
    ask: Ask = Ask()


class Saved(NamedTuple):
    """The books at one moment, for `Ledger.restore`."""

    workers: dict[WorkerId, WorkerView]
    running: dict[RequestId, Running]
    moves: dict[RequestId, Moving]
    promises: dict[RequestId, Place]
    claims: dict[WorkerId, dict[ModelName, frozenset[ModelName]]]
    evicted: set[Place]


class Stirred:
    """Where something may be possible that was not before: placements are tried again only there."""

    def __init__(self) -> None:
        self._eased: set[WorkerId] = set()
        self._models: set[ModelName] = set()

    def ease(self, worker: WorkerId) -> None:
        """The worker has had a slot or memory freed, or more may be freed there."""
        self._eased.add(worker)

    def stir(self, model: ModelName) -> None:
        """Requests of the model are to be looked at again."""
        self._models.add(model)

    def take(self) -> tuple[set[WorkerId], set[ModelName]] | None:
        """The eased workers and the stirred models since this was last asked; None where there is nothing."""
        if not self._eased and not self._models:
            return None
        taken, self._eased, self._models = (self._eased, self._models), set(), set()
        return taken
