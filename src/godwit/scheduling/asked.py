"""Where a move goes that somebody asks for, or why it cannot."""

from godwit.errors import ConflictError, NoFreeSlotError, NotFoundError
from godwit.scheduling.choices import Choice
from godwit.scheduling.events import MoveRequested
from godwit.scheduling.ledger import Ledger
from godwit.scheduling.policies import quickest
from godwit.scheduling.startup import fit
from godwit.scheduling.view import ClusterView
from godwit.types import ModelName, WorkerId


def asked_choice(ledger: Ledger, view: ClusterView, event: MoveRequested) -> Choice:
    """The destination, or the quickest where none is named; NotFoundError, ConflictError, NoFreeSlotError."""
    place = ledger.running.get(event.request)
    if place is None:
        raise NotFoundError(f"{event.request} does not run now; `godwit status` lists what does")
    if event.request in ledger.moves:
        raise ConflictError(f"{event.request} is moving already; wait for that move to end")
    if event.destination is None:
        choice = quickest(view, place.model, frozenset((place.worker,)))
        if choice is None or ledger.is_coming(choice.worker, place.model):
            raise NoFreeSlotError(f"no other server has room for one more request of {place.model}")
        return choice
    if event.destination == place.worker:
        raise ConflictError(f"{event.request} runs on {place.worker} already")
    return _choice_at(ledger, view, event.destination, place.model)


def _choice_at(ledger: Ledger, view: ClusterView, destination: WorkerId, model: ModelName) -> Choice:
    worker = ledger.workers.get(destination)
    if worker is None:
        known = ", ".join(sorted(ledger.workers)) or "none"
        raise NotFoundError(f"there is no worker {destination!r}; workers: {known}")
    if model not in worker.models:
        raise ConflictError(f"{destination} does not have the model {model}; `godwit status` shows who has")
    if worker.is_draining:
        raise ConflictError(f"{destination} is draining and takes nothing new")
    choice = fit(view, worker, model)
    if choice is None or ledger.is_coming(destination, model):
        raise NoFreeSlotError(f"{destination} has no free slot or no memory for one more request of {model}")
    return choice
