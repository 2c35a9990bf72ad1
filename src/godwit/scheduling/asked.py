"""Where a move goes that somebody asks for, or why it cannot."""

from godwit.errors import ConflictError, NoFreeSlotError, NotFoundError
from godwit.scheduling.choices import Choice
from godwit.scheduling.events import MoveRequested
from godwit.scheduling.keeping import avoided, may_reach
from godwit.scheduling.ledger import Ledger
from godwit.scheduling.policies import quickest
from godwit.scheduling.startup import fit
from godwit.scheduling.view import ClusterView, Running
from godwit.types import MUST_KEEP, ModelName, Promise, WorkerId, broken_promises


def asked_choice(ledger: Ledger, view: ClusterView, event: MoveRequested) -> Choice:
    """The destination, or the quickest where none is named; NotFoundError, ConflictError, NoFreeSlotError.

    One where the request could go on only approximately, or not for as long, must be forced, unless its
    server leaves anyway.
    """
    place = ledger.running.get(event.request)
    if place is None:
        raise NotFoundError(f"{event.request} does not run now; `godwit status` lists what does")
    if event.request in ledger.moves:
        raise ConflictError(f"{event.request} is moving already; wait for that move to end")
    if event.destination == place.worker:
        raise ConflictError(f"{event.request} runs on {place.worker} already")
    if event.destination is not None:
        choice = _choice_at(ledger, view, event.destination, place.model)
    else:
        choice = _quickest(ledger, view, place)
    _check_room(view, place, choice.worker, is_forced=event.is_forced)
    _check_promises(view, place, choice.worker, is_forced=event.is_forced)
    return choice


def _quickest(ledger: Ledger, view: ClusterView, place: Running) -> Choice:
    """Of those that can continue exactly, if there are any with room."""
    for avoid in (*avoided(view, place), frozenset[WorkerId]()):
        choice = quickest(view, place.model, avoid | {place.worker})
        if choice is not None and not ledger.is_coming(choice.worker, place.model):
            return choice
    raise NoFreeSlotError(f"no other server has room for one more request of {place.model}")


def _check_room(view: ClusterView, place: Running, destination: WorkerId, *, is_forced: bool) -> None:
    """How far a request is, is guessed here; a destination that is too short for it declines by itself."""
    source = view.workers[place.worker]
    most = view.workers[destination].models[place.model].info.context_tokens
    last = may_reach(place, source.models[place.model].info)
    if last > most and not (is_forced or source.is_draining):
        raise ConflictError(
            f"{destination} has a context of {most} tokens and {place.request} may come to {last}: there it "
            "would be cut off; move it to one with a longer context, or force it (`godwit migrate --force`)"
        )


def _check_promises(view: ClusterView, place: Running, destination: WorkerId, *, is_forced: bool) -> None:
    source = view.workers[place.worker]
    carries = view.workers[destination].models[place.model].info.carries
    broken = broken_promises(place.ask.promises, source.models[place.model].info.carries, carries)
    if not broken:
        return
    what = f"the engine on {destination} cannot continue {place.request} exactly: {_of(broken)} would be lost"
    if MUST_KEEP.intersection(broken):
        raise ConflictError(f"{what}, and the output would be wrong; move it to a server that can")
    if not (is_forced or source.is_draining):
        raise ConflictError(f"{what}; move it to a server that can, or force it (`godwit migrate --force`)")


def _of(broken: tuple[Promise, ...]) -> str:
    return f"its {' and its '.join(broken)}"


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
