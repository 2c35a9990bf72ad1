"""Faults of the protocol itself, each of which `godwit sim chaos` must find: who checks the checkers.

Each replaces one method for as long as it lasts; what is replaced knows nothing of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from godwit.protocol.events import Do
from godwit.protocol.incoming import DestinationMoves, Incoming
from godwit.protocol.journal import Journal, Verdict
from godwit.protocol.messages import TokenEvent
from godwit.protocol.outgoing import Outgoing, SourceMoves
from godwit.scheduling.bookings import Moving, Place
from godwit.scheduling.ledger import Ledger
from godwit.sim.chaos import Played, play_seed
from godwit.types import RequestId, WorkerId

Patch = tuple[type, str, Callable[..., Any]]


def _skip_the_epoch_check() -> Patch:
    take = Journal.take

    def patched(self: Journal, worker: WorkerId, event: TokenEvent) -> tuple[Verdict, TokenEvent | None]:
        if self.owner is None or self.is_candidate(worker, event.epoch):
            return take(self, worker, event)
        return take(self, self.owner, replace(event, epoch=self.epoch))

    return Journal, "take", patched


def _free_the_kv_before_the_first_token() -> Patch:
    perform = SourceMoves._perform

    def patched(self: SourceMoves, outgoing: Outgoing, effect: object) -> None:
        perform(self, outgoing, effect)
        if effect is Do.SEND_COMMIT:
            self._free(outgoing.running)

    return SourceMoves, "_perform", patched


def _deliver_twice() -> Patch:
    take = Journal.take

    def patched(self: Journal, worker: WorkerId, event: TokenEvent) -> tuple[Verdict, TokenEvent | None]:
        verdict, fresh = take(self, worker, event)
        # What overlaps is not cut off.
        return verdict, None if fresh is None else event

    return Journal, "take", patched


def _forget_the_roll_back() -> Patch:
    end_move = Ledger.end_move

    def patched(
        self: Ledger, request: RequestId, worker: WorkerId | None, num_tokens: int = 0
    ) -> Moving | None:
        move = self.moves.get(request)
        if worker is None and move is not None and move.is_reserved:
            self._moves[request] = replace(move, is_reserved=False)
        return end_move(self, request, worker, num_tokens)

    return Ledger, "end_move", patched


def _forget_the_roll_back_of_claims() -> Patch:
    end_claim = Ledger.end_claim

    def patched(self: Ledger, place: Place) -> None:
        # Its victims are gone when it becomes the load; else they may stay, which is forgotten here.
        self._claims[place.worker][place.model] = frozenset()
        end_claim(self, place)

    return Ledger, "end_claim", patched


def _lose_a_tail_token() -> Patch:
    perform = DestinationMoves._perform

    def patched(self: DestinationMoves, incoming: Incoming, effect: object) -> None:
        if effect is Do.APPEND and len(incoming.fresh) > 1:
            incoming.fresh = incoming.fresh[:-1]
        perform(self, incoming, effect)

    return DestinationMoves, "_perform", patched


MUTATIONS: dict[str, Callable[[], Patch]] = {
    "skip the epoch check": _skip_the_epoch_check,
    "free the KV before the first token": _free_the_kv_before_the_first_token,
    "deliver twice": _deliver_twice,
    "forget the roll-back": _forget_the_roll_back,
    "forget the roll-back of claims": _forget_the_roll_back_of_claims,
    "lose a tail token": _lose_a_tail_token,
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The protocol with one fault in it."""
    owner, attribute, patched = MUTATIONS[name]()
    original = getattr(owner, attribute)
    setattr(owner, attribute, patched)
    try:
        yield
    finally:
        setattr(owner, attribute, original)


def hunt(name: str, seeds: range) -> tuple[int, Played] | None:
    """After how many seeds a mutation is found, and what was broken then; None: after none of them."""
    with mutated(name):
        for number, seed in enumerate(seeds, start=1):
            played = play_seed(seed)
            if played.problem is not None:
                return number, played
    return None
